"""Where a server takes its questions and its passages from: environment variables, or the embedded corpus."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gym_agents.errors import UsageError
from servers.searchqa.bm25 import BM25
from servers.searchqa.dense import Dense
from servers.searchqa.embedded import embedded_index, embedded_questions
from servers.searchqa.flashrag import load_questions
from servers.searchqa.index import MANIFEST, Manifest
from servers.searchqa.questions import QuestionSet
from servers.searchqa.remote import Remote
from servers.searchqa.retrieval import Retriever

QUESTIONS = "AGENTGYM_SEARCHQA_QUESTIONS"
"""Names a folder of FlashRAG's question files; unset, the embedded questions are played."""
RETRIEVER = "AGENTGYM_SEARCHQA_RETRIEVER"
"""Names an index folder, or the address of a retrieval server; unset, the embedded corpus is searched."""


def open_questions(settings: Mapping[str, str] = os.environ) -> QuestionSet:
    """The questions that the settings name.

    Raises:
        UsageError: if there are none, or if they would be asked of a corpus that was not made for them.
    """
    folder = settings.get(QUESTIONS)
    if not folder:
        return embedded_questions()
    if not settings.get(RETRIEVER):
        raise UsageError(f"{QUESTIONS} is set: name the corpus for these questions by {RETRIEVER}, too.")
    return load_questions(Path(folder))


def open_retriever(settings: Mapping[str, str] = os.environ) -> Retriever:
    """The retriever that the settings name.

    Raises:
        UsageError: if it is neither an address nor a folder with an index.
    """
    place = settings.get(RETRIEVER)
    if not place:
        return BM25(embedded_index())
    if place.startswith(("http://", "https://")):
        return Remote(place)
    manifest = Path(place) / MANIFEST
    if not manifest.is_file():
        raise UsageError(
            f"{RETRIEVER} is {place!r}, which is neither an http address nor a finished index: "
            "build one with `python -m servers.searchqa.index`."
        )
    kind = msgspec.json.decode(manifest.read_bytes(), type=Manifest).kind
    return BM25(Path(place)) if kind == "bm25" else Dense(Path(place))
