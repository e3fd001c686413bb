"""The embedded corpus made ready: its index and the questions generated from it, once for each user.

`python -m servers.searchqa.embedded` does it beforehand; the first server would do it otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import bm25s
import msgspec

from gym_agents.cache import cache_folder
from gym_agents.errors import BackendMissing
from gym_agents.tasks import scenario_row
from servers.searchqa.bm25 import BM25
from servers.searchqa.corpora import EmbeddedCorpus, embedded_corpus
from servers.searchqa.facts import FactBase, read_facts
from servers.searchqa.index import build
from servers.searchqa.questions import Question, QuestionSet, make_splits
from servers.searchqa.retrieval import Retriever
from servers.searchqa.scoring import normalize
from servers.searchqa.styles import STYLES

NUMBERING = "searchqa-embedded"
HELD_OUT = 0.35
"""Share of the groups of linked articles that are kept for evaluation."""
PARTING = 1
"""Seed by which they are drawn; this one leaves every task enough questions on both sides."""
COMMONEST = 0.06
"""Largest share of a task's questions that may have the same answer."""
MAX_TRAIN = 600
"""Most training questions of a task."""
_QUESTIONS = "questions.json"
_questions = msgspec.json.Decoder(dict[str, list[Question]])


def embedded_index() -> Path:
    """The folder of the BM25 index of the corpus."""
    return _folder() / "index"


def embedded_questions() -> QuestionSet:
    """The generated questions, numbered task by task, evaluation before training."""
    folder = _folder()
    numbered: dict[int, Question] = {}
    items: dict[str, dict[str, list[int]]] = {"train": defaultdict(list), "eval": defaultdict(list)}
    by_split = _questions.decode((folder / _QUESTIONS).read_bytes())
    for task in scenario_row("searchqa").tasks:
        for split in ("eval", "train"):
            for question in (one for one in by_split[split] if one.task == task.name):
                items[split][task.name].append(len(numbered))
                numbered[len(numbered)] = question
    return QuestionSet(NUMBERING, f"embedded questions {folder.name}", numbered, make_splits(items))


@functools.cache
def _folder() -> Path:
    """The folder of index and questions, keyed by what they are made of and by what.

    It appears in the cache whole or not at all; a process that finds another one's there drops its own.
    """
    corpus = embedded_corpus()
    folder = cache_folder() / f"searchqa-{_key(corpus)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(f"Indexing {corpus.name} once into {folder} (about 10 s) ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="searchqa.", dir=folder.parent) as aside:
            made = Path(aside) / folder.name
            _make(corpus, made)
            _rename(made, folder)
    return folder


def _rename(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # no other process was faster
            raise


def _key(corpus: EmbeddedCorpus) -> str:
    """A digest of the corpus, of this package's code, and of the index's format."""
    digest = hashlib.sha256(corpus.source)
    digest.update(bm25s.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _make(corpus: EmbeddedCorpus, folder: Path) -> None:
    folder.mkdir()
    build((summary.passage for summary in corpus.summaries), folder / "index", "bm25", source=corpus.name)
    retriever = BM25(folder / "index")
    questions = generate(read_facts(corpus.summaries), retriever)
    (folder / _QUESTIONS).write_bytes(msgspec.json.encode(questions))


def generate(base: FactBase, retriever: Retriever) -> dict[str, list[Question]]:
    """The questions of `train` and `eval`, no article of one of which leads to an answer in the other.

    Raises:
        BackendMissing: if the corpus gives too few, as another version of it might.
    """
    eval_base, train_base = _parted(base)
    questions: dict[str, list[Question]] = {"train": [], "eval": []}
    for task, style in zip(scenario_row("searchqa").tasks, STYLES, strict=True):
        held_out = _chosen(style(eval_base), retriever, task.eval_items)
        if len(held_out) < task.eval_items:
            raise BackendMissing(
                f"The corpus gives {len(held_out)} of {task.eval_items} questions for {task.name}."
            )
        questions["eval"] += held_out
        questions["train"] += _chosen(style(train_base), retriever, MAX_TRAIN)
    return questions


def _parted(base: FactBase) -> tuple[FactBase, FactBase]:
    """The facts of held-out articles and those of the others; articles that facts link are not parted."""
    group_of: dict[str, str] = {}

    def group(title: str) -> str:
        while group_of.setdefault(title, title) != title:
            title = group_of[title]
        return title

    for fact in base.facts:
        first, second = sorted((group(fact.title), group(fact.entity or fact.title)))
        group_of[second] = first
    held_out = {first for first in map(group, list(group_of)) if _draw(first) < HELD_OUT}
    sides = [
        [fact for fact in base.facts if (group(fact.title) in held_out) is side] for side in (True, False)
    ]
    return FactBase(base.names, sides[0]), FactBase(base.names, sides[1])


def _draw(title: str) -> float:
    """A number within [0, 1) that depends on the title alone, so that a new fact moves few others."""
    return int.from_bytes(hashlib.sha256(f"{PARTING} {title}".encode()).digest()[:4]) / 2**32


def _chosen(drafts: Iterable[Question], retriever: Retriever, count: int) -> list[Question]:
    """So many drafts as wanted, or as there are, drawn: each can be found, and no answer is too common."""
    distinct = list({draft.text: draft for draft in drafts}.values())
    random.Random(NUMBERING).shuffle(distinct)
    most = max(1, int(COMMONEST * min(count, len(distinct))))
    uses: Counter[str] = Counter()
    chosen: list[Question] = []
    for draft in distinct:
        answer = normalize(draft.answers[0])
        if len(chosen) < count and uses[answer] < most and _is_found(draft, retriever):
            uses[answer] += 1
            chosen.append(draft)
    return chosen


def _is_found(question: Question, retriever: Retriever) -> bool:
    """Whether the expert's searches show every supporting article, and the answer in one of them."""
    shown = {passage.title: passage for query in question.queries for passage in retriever.search(query, 3)}
    texts = (normalize(f"{title} {shown[title].text}") for title in question.titles if title in shown)
    met = all(title in shown for title in question.titles)
    return met and any(normalize(question.answers[0]) in text for text in texts)


if __name__ == "__main__":
    embedded_index()
