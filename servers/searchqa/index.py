"""`python -m servers.searchqa.index wiki-18.jsonl index/`: builds an index that a server can search.

It says what it will need and how far it is. One that was broken off goes on where it stopped.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import tyro
from rich.console import Console
from rich.progress import Progress

from gym_agents.errors import AgentGymError, UsageError
from servers.searchqa import bm25, dense
from servers.searchqa.corpora import corpus_file
from servers.searchqa.passages import SHARD, Passage, offsets_file, write_shard

MANIFEST = "index.json"

Kind = Literal["bm25", "dense"]


class Manifest(msgspec.Struct, frozen=True):
    """What an index holds; written last, so that a folder without it is no index."""

    kind: Kind
    passages: int


@dataclass(frozen=True)
class Settings:
    """What to build."""

    corpus: Annotated[Path, tyro.conf.Positional]
    """JSON Lines file of passages, whose `contents` are a quoted title, a line break and the text."""
    folder: Annotated[Path, tyro.conf.Positional]
    """Where the index goes; it appears there whole or not at all."""
    kind: Kind = "bm25"
    """`bm25`, or `dense` (E5 embeddings; wants the extra searchqa-dense and, for large corpora, a GPU)."""


_BYTES = {"bm25": (1_000, 1_000), "dense": (3_800, 3_600)}
"""For each passage of 100 words: on disk while building, and in memory at the end of it."""


def need(kind: Kind, passages: int) -> str:
    """What an index will need, roughly."""
    disk, memory = (passages * each / 1e9 for each in _BYTES[kind])
    return f"{passages:,} passages: about {disk:.1f} GB of disk and {memory:.1f} GB of memory for {kind}."


def build(
    passages: Iterable[Passage],
    folder: Path,
    kind: Kind,
    *,
    source: str,
    encode: dense.Encoder | None = None,
    advance: Callable[[int], object] = lambda done: None,
) -> None:
    """Builds an index beside its folder, shard by shard, and renames it.

    Args:
        passages: the corpus, in order.
        folder: where the index goes; it must not exist.
        kind: how it is to be searched.
        source: what the corpus is; a build that was broken off is only continued for the same one.
        encode: the encoder of a dense index.
        advance: is told how many passages have been done.

    Raises:
        UsageError: if a build of another source lies there, or there is no passage.
    """
    partial = _open_partial(folder, f"{kind} {source}")
    shards, count = [], 0
    for shard, batch in enumerate(_batches(passages)):
        path = partial / (f"terms-{shard:05}.npz" if kind == "bm25" else f"vectors-{shard:05}.npy")
        if not offsets_file(partial, shard).exists():
            if kind == "bm25":
                bm25.write_terms(path, batch)
            else:
                dense.write_vectors(path, batch, encode or dense.E5())
            write_shard(partial, shard, batch)
        shards.append(path)
        count += len(batch)
        advance(count)
    if not count:
        raise UsageError("The corpus holds no passage.")
    (bm25 if kind == "bm25" else dense).write_index(partial, shards)
    for path in shards:
        path.unlink()
    (partial / MANIFEST).write_bytes(msgspec.json.encode(Manifest(kind, count)))
    partial.rename(folder)


def _batches(passages: Iterable[Passage]) -> Iterator[list[Passage]]:
    stream = iter(passages)
    while batch := list(itertools.islice(stream, SHARD)):
        yield batch


def _open_partial(folder: Path, source: str) -> Path:
    """The folder of a build under way, new or broken off."""
    partial = folder.with_name(f"{folder.name}.partial")
    note = partial / "source"
    if note.exists() and note.read_text("utf-8") != source:
        raise UsageError(
            f"{partial} holds a build that was broken off, of another corpus or kind: remove it."
        )
    partial.mkdir(parents=True, exist_ok=True)
    note.write_text(source, "utf-8")
    return partial


def main() -> int:
    """Entry point; a mistake of the caller's ends with a message and exit code 2."""
    settings = tyro.cli(Settings, prog="python -m servers.searchqa.index", description=__doc__)
    try:
        _build_from_file(settings)
    except AgentGymError as error:
        print(f"python -m servers.searchqa.index: {error.message}", file=sys.stderr)
        return 2
    return 0


def _build_from_file(settings: Settings) -> None:
    corpus, folder = settings.corpus, settings.folder
    if not corpus.is_file():
        raise UsageError(f"There is no file {corpus}.")
    if folder.exists():
        raise UsageError(f"{folder} exists already.")
    console = Console(stderr=True)
    with corpus.open("rb") as file:
        count = sum(1 for _ in file)
    console.print(need(settings.kind, count))
    console.print(f"{shutil.disk_usage(corpus.parent).free / 1e9:.1f} GB of disk are free.")
    with Progress(console=console) as progress:
        task = progress.add_task("passages", total=count)
        build(
            corpus_file(corpus),
            folder,
            settings.kind,
            source=f"{corpus.resolve()} {corpus.stat().st_size}",
            advance=lambda done: progress.update(task, completed=done),
        )
    console.print(f"Serve it with AGENTGYM_SEARCHQA_RETRIEVER={folder}.")


if __name__ == "__main__":
    sys.exit(main())
