"""Questions: what an item is, and which items a task and a split hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from gym_agents.tasks import scenario_row

TASKS = tuple(task.name for task in scenario_row("searchqa").tasks)


class Question(msgspec.Struct, frozen=True):
    """One item."""

    task: str
    text: str
    answers: tuple[str, ...]
    """All that is accepted; the first is the one to show."""
    titles: tuple[str, ...] = ()
    """Titles of the passages that lead to the answer, in the order in which they do; may be unknown."""
    queries: tuple[str, ...] = ()
    """What an expert searches for, one query after the other."""


Splits = Mapping[str, Mapping[str | None, tuple[int, ...]]]
"""Per split and task (`None`: all tasks), its items in order."""


@dataclass(frozen=True)
class QuestionSet:
    """The items that a server plays."""

    numbering: str
    name: str
    """What they are, for the handshake."""
    questions: Mapping[int, Question]
    """By item number."""
    splits: Splits

    @property
    def embedded(self) -> bool:
        """Whether these are the questions generated from the embedded corpus, and no published set."""
        return self.numbering != scenario_row("searchqa").name


def make_splits(items: Mapping[str, Mapping[str, Sequence[int]]]) -> Splits:
    """The splits, given the items of each split and task."""
    splits: dict[str, Mapping[str | None, tuple[int, ...]]] = {}
    for split in ("train", "eval"):
        by_task: dict[str | None, tuple[int, ...]] = {
            task: tuple(items[split].get(task, ())) for task in TASKS
        }
        by_task[None] = tuple(sorted(item for of_task in by_task.values() for item in of_task))
        splits[split] = MappingProxyType(by_task)
    return MappingProxyType(splits)
