"""How fast searches are: the retriever alone, and through the environment, over corpora of several sizes.

    python -m benchmarks.retrieval
    python -m benchmarks.retrieval --passages 10000 1000000 --sessions 1 16 64

Passages and queries are synthetic (words drawn by Zipf's law). Each row plays the same queries: in threads of
this process on the bare retriever, then as `<search>` steps of as many sessions of one server. Rates are of one
run on one machine: compare the rows, not the numbers of two machines.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import tyro
from rich.console import Console
from rich.table import Table

from gym_agents.horizon import HorizonLimit, make_vector_env
from gym_agents.launcher import LocalServer
from servers.searchqa.bm25 import BM25
from servers.searchqa.index import build
from servers.searchqa.passages import Passage
from servers.searchqa.sources import RETRIEVER

VOCABULARY = 50_000
K = 3


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    passages: tuple[int, ...] = (10_000, 1_000_000)
    """Sizes of the corpora."""
    sessions: tuple[int, ...] = (1, 16, 64)
    """How many search at once."""
    seconds: float = 5.0
    """How long each measurement lasts."""
    folder: Path = Path(tempfile.gettempdir()) / "searchqa-bench"
    """Where the indices are kept; those that lie there are used again."""


@dataclass(frozen=True)
class Speed:
    """Latencies of searches, in milliseconds, and how many there were a second."""

    p50: float
    p99: float
    rate: float

    @classmethod
    def of(cls, latencies: Sequence[float], seconds: float) -> Speed:
        """From each search's seconds, and those that all took together."""
        p50, p99 = np.percentile(latencies, (50, 99)) * 1e3
        return cls(float(p50), float(p99), len(latencies) / seconds)


def texts(count: int, words: tuple[int, int], seed: int) -> Iterator[str]:
    """Texts of so many words each, drawn by Zipf's law."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        drawn = rng.zipf(1.2, size=int(rng.integers(*words))) % VOCABULARY
        yield " ".join(f"word{number}" for number in drawn)


def index_of(count: int, folder: Path) -> Path:
    """The index of so many synthetic passages."""
    path = folder / f"{count}"
    if not path.exists():
        passages = (Passage(f"title{n}", text) for n, text in enumerate(texts(count, (40, 80), seed=0)))
        build(passages, path, "bm25", source="synthetic")
    return path


def alone(retriever: BM25, queries: Sequence[str], sessions: int, seconds: float) -> Speed:
    """The bare retriever, asked by so many threads."""
    latencies: list[float] = []
    ends = time.perf_counter() + seconds

    def ask(first: int) -> None:
        at = first
        while (started := time.perf_counter()) < ends:
            retriever.search(queries[at % len(queries)], K)
            latencies.append(time.perf_counter() - started)
            at += sessions

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Speed.of(latencies, seconds)


def through_the_environment(envs: HorizonLimit, queries: Sequence[str], seconds: float) -> Speed:
    """As many sessions as the vector has, each of which searches again as soon as it has its answer."""
    envs.reset(seed=0, options={"item": 0})
    latencies: list[float] = []
    sent = [0.0] * envs.num_envs
    began = time.perf_counter()
    _search(envs, list(range(envs.num_envs)), queries, sent)
    while time.perf_counter() - began < seconds:
        ready = envs.recv()
        now = time.perf_counter()
        latencies += [now - sent[event.index] for event in ready]
        _search(envs, [event.index for event in ready], queries[len(latencies) % len(queries) :], sent)
    return Speed.of(latencies, time.perf_counter() - began)


def _search(envs: HorizonLimit, indices: list[int], queries: Sequence[str], sent: list[float]) -> None:
    replies = [f"<search>{queries[at % len(queries)]}</search>" for at in range(len(indices))]
    for index in indices:
        sent[index] = time.perf_counter()
    envs.send(indices, replies)


def measure(settings: Settings, count: int, table: Table) -> None:
    """Adds a row for each number of sessions over a corpus of this size."""
    path = index_of(count, settings.folder)
    os.environ[RETRIEVER] = str(path)
    queries = list(texts(2_000, (2, 6), seed=1))
    retriever = BM25(path)
    with closing(LocalServer("searchqa")) as server:
        address = server.start()
        for sessions in settings.sessions:
            bare = alone(retriever, queries, sessions, settings.seconds)
            with closing(make_vector_env(sessions, "searchqa", server=address, max_episode_steps=-1)) as envs:
                whole = through_the_environment(envs, queries, settings.seconds)
            added = (1 / whole.rate - 1 / bare.rate) * 1e3
            resident = psutil.Process(server.pid).memory_info().rss / 2**20
            cells = (bare.p50, bare.p99, bare.rate, whole.p50, whole.p99, whole.rate, added)
            share = f"{added * bare.rate / 1e3:+.0%}"
            table.add_row(
                f"{count:,}", str(sessions), *(f"{cell:,.2f}" for cell in cells), share, f"{resident:,.0f}"
            )


def main(settings: Settings) -> None:
    """Measures and prints."""
    table = Table(
        "passages", "sessions", "p50 ms", "p99 ms", "searches/s", title="retriever alone | environment"
    )
    for column in ("p50 ms", "p99 ms", "searches/s", "added ms a search", "added", "server MB"):
        table.add_column(column)
    settings.folder.mkdir(parents=True, exist_ok=True)
    for count in settings.passages:
        measure(settings, count, table)
    Console(width=160).print(table)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
