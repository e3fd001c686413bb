"""Passages: how they are kept on disk, and how a search shows them."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gym_agents.scenarios.searchqa import MAX_PASSAGE_CHARS

SHARD = 50_000
"""Passages in each file of a store, but for its last."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[str, str])


@dataclass(frozen=True, slots=True)
class Passage:
    """One piece of the corpus, as it is found and shown."""

    title: str
    text: str


def show(passages: Sequence[Passage]) -> str:
    """A search's observation: each passage on a line of its own, behind its number, between two tags.

    No passage can end its line or write a tag: line breaks become blanks, and `<` becomes `&lt;`.
    """
    if not passages:
        return "<information>\nNo passage was found.\n</information>"
    lines = (_line(number, passage) for number, passage in enumerate(passages, start=1))
    return "\n".join(("<information>", *lines, "</information>"))


def _line(number: int, passage: Passage) -> str:
    text = " ".join(f"[{number}] {passage.title}: {passage.text}".split()).replace("<", "&lt;")
    return text if len(text) <= MAX_PASSAGE_CHARS else f"{text[: MAX_PASSAGE_CHARS - 6]} [...]"


def shard_file(folder: Path, shard: int) -> Path:
    """The file of a shard's passages."""
    return folder / f"passages-{shard:05}.jsonl"


def write_shard(folder: Path, shard: int, passages: Iterable[Passage]) -> None:
    """Writes a shard; it counts as written once its file of offsets is there."""
    offsets = [0]
    with shard_file(folder, shard).open("wb") as file:
        for passage in passages:
            file.write(_encoder.encode((passage.title, passage.text)) + b"\n")
            offsets.append(file.tell())
    aside = folder / "offsets.partial.npy"
    np.save(aside, np.array(offsets, np.int64))
    aside.rename(offsets_file(folder, shard))


def offsets_file(folder: Path, shard: int) -> Path:
    """The file that says where each passage of a shard begins, and where the last one ends."""
    return shard_file(folder, shard).with_suffix(".npy")


class PassageStore:
    """The passages of a folder by their number; the files are memory-mapped, and shared between processes."""

    def __init__(self, folder: Path) -> None:
        shards = range(len(list(folder.glob("passages-*.npy"))))
        self._offsets: list[Any] = [np.load(offsets_file(folder, shard), mmap_mode="r") for shard in shards]
        self._texts = [_mapped(shard_file(folder, shard)) for shard in shards]

    def __len__(self) -> int:
        return sum(len(offsets) - 1 for offsets in self._offsets)

    def __getitem__(self, number: int) -> Passage:
        shard, place = divmod(number, SHARD)
        start, end = self._offsets[shard][place : place + 2]
        return Passage(*_decoder.decode(self._texts[shard][start:end]))


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
