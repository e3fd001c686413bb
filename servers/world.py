"""The two things that a backend writes: a `World`, loaded once a process, and its `Episode`s."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gym_agents.errors import ItemError, NotOffered, UnknownTask, near_match
from gym_agents.scenario import Scenario

SPLITS = ("train", "eval")


@dataclass(frozen=True)
class Result:
    """What one command did."""

    observation: str
    score: float
    """Where the score stands now, within [0, 1]; the session pays out its change as the reward, and with the
    first step whatever stood there before the agent acted."""
    terminated: bool = False
    """The world says that the episode is over."""
    success: bool = False
    """The world's own verdict that the task is solved; only ever True when `terminated`."""
    valid: bool = True
    """False where the world refused the command and nothing changed."""
    truncation: str | None = None
    """Why a limit of the world's own cut the episode, where one did."""
    info: dict[str, Any] = field(default_factory=dict)
    """More facts about the step, the same in every run, under names that no info has of its own."""


class Episode(ABC):
    """One attempt at one item. Called by one thread at a time."""

    observation: str
    """The first observation; it carries the task."""
    info: Mapping[str, Any] = MappingProxyType({})
    """More facts about the start, as in `Result`."""

    @abstractmethod
    def step(self, command: str) -> Result:
        """Plays one command, already read by the scenario's grammar."""

    def expert(self) -> str:
        """The command that an expert would give now, from any state that the expert itself can reach."""
        raise NotOffered("This world has no expert.")

    def actions(self) -> list[str]:
        """The commands that are valid now."""
        raise NotOffered("This world cannot list its valid actions.")

    def view(self) -> dict[str, Any]:
        """The state as plain data, for a page to draw."""
        raise NotOffered("This world has no structured view.")

    def picture(self) -> bytes:
        """The state as a PNG."""
        raise NotOffered("This world draws no picture.")

    def close(self) -> None:  # noqa: B027 - most episodes hold nothing
        """Frees what the episode holds; called exactly once."""


class World(ABC):
    """What a server process loads once: data, recipes, simulators."""

    scenario: Scenario
    numbering: str
    """Name of the numbering of the items: the scenario's name where it is upstream's."""
    backend = ""
    """Names and versions of the packages that an episode depends on."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks, as in `gym_agents.tasks`."""
    inline = False
    """True where a step takes microseconds and never waits: it then runs on the event loop, unthreaded."""
    max_sessions: int | None = None
    """Most sessions that one process has room for, whatever the server was told; `None`: any number."""
    replays = True
    """True where the same (item, seed, options, replies) always gives the same episode."""

    @abstractmethod
    def items(self, task: str | None, split: str) -> Sequence[int]:
        """The items of a task (`None`: of the scenario) in `train` or `eval`, in order; `demand` has let both pass."""

    @abstractmethod
    def start(self, item: int, seed: int, options: Any) -> Episode:
        """A fresh attempt at the item. The item is one that `task_of` accepts."""

    def task_of(self, item: int) -> str | None:
        """The task that an item belongs to, `None` where it belongs to none.

        Raises:
            ItemError: if the scenario has no such item.
        """
        if any(item in self.items(None, split) for split in SPLITS):
            return None
        raise ItemError(f"{self.scenario.title} has no item {item}.")

    def demand(self, task: str | None, split: str = SPLITS[0]) -> None:
        """Refuses what there is not.

        Raises:
            UnknownTask: it has no such task, with the nearest name.
            ItemError: there is no such split.
        """
        if task is not None and task not in self.tasks:
            raise UnknownTask(f"{self.scenario.title} has no task {task!r}.{near_match(task, self.tasks)}")
        if split not in SPLITS:
            raise ItemError(f"There is no split {split!r}: it must be {' or '.join(map(repr, SPLITS))}.")

    def close(self) -> None:  # noqa: B027 - most worlds hold nothing
        """Frees what the world holds."""
