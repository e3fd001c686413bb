"""SciWorld as a world: 23 tasks of the ScienceWorld simulator in upstream's numbering, 15 of them in five tasks."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from gym_agents.errors import OptionError
from gym_agents.scenarios.sciworld import SCENARIO, SciWorldOptions
from gym_agents.tasks import scenario_row
from servers.sciworld.expert import GoldPaths
from servers.sciworld.items import Items
from servers.sciworld.jvm import HASH_CODE
from servers.sciworld.pool import MAX_SIMULATORS, Pool
from servers.sciworld.simulator import UNKNOWN, Outcome, Variation
from servers.world import Episode, Result, World

FULL_SCORE = 100
_ELECTRICAL = ("power-component", "conductivity")
"""Parts of the names of tasks that cannot be solved without connecting wires."""


class SciWorldWorld(World):
    """The simulator; a Java process runs from the start, with one simulator loaded.

    Raises:
        BackendMissing: if no Java starts.
    """

    scenario = SCENARIO
    numbering = SCENARIO.name
    tasks = tuple(task.name for task in scenario_row("sciworld").tasks)
    max_sessions = MAX_SIMULATORS

    def __init__(self) -> None:
        self._pool = Pool()
        self._gold = GoldPaths(self._pool)
        version = importlib.metadata.version("scienceworld")
        self.backend = f"scienceworld {version}, Java {self._pool.jvm.version}, hashCode {HASH_CODE}"
        with self._pool.lent() as simulator:
            self._items = Items(simulator.variations)

    def items(self, task: str | None, split: str) -> Sequence[int]:
        """The items of a task (`None`: of all five): `train` is the simulator's own training set, and
        `eval` a choice from its test set.
        """
        return self._items.of(task, split)

    def task_of(self, item: int) -> str | None:
        """The task that an item belongs to, `None` where it is in none of the five.

        Raises:
            ItemError: if there is no such item.
        """
        return self._items.task_of(item)

    def start(self, item: int, seed: int, options: SciWorldOptions) -> SciWorldEpisode:
        """A fresh attempt at the item; the seed changes nothing, since the variation seeds the simulator.

        Raises:
            OptionError: if a simplification takes away what the item's task needs.
        """
        variation = self._items[item]
        if "noElectricalAction" in options.simplified and any(word in variation.task for word in _ELECTRICAL):
            raise OptionError(
                f"{variation.task} cannot be solved with the simplification noElectricalAction."
            )
        return SciWorldEpisode(self._pool, self._gold, variation, options)

    def close(self) -> None:
        """Ends the Java process."""
        self._pool.close()


class SciWorldEpisode(Episode):
    """One attempt at one variation, in a simulator that it holds until it is closed."""

    def __init__(self, pool: Pool, gold: GoldPaths, variation: Variation, options: SciWorldOptions) -> None:
        self._gold = gold
        self._variation = variation
        self._options = options
        self._played: list[str] = []
        with ExitStack() as held:
            self._simulator = held.enter_context(pool.lent())
            opening = self._simulator.load(variation, ",".join(options.simplified))
            self.observation = f"{self._simulator.describe()}\n{opening.observation}"
            self._held = held.pop_all()
        self.info = {"simulator_task": variation.task, "variation": variation.number, **_facts(opening)}

    def step(self, command: str) -> Result:
        """Plays one command.

        A raw score below 0 is the simulator's verdict on a wrong focus: the episode has failed.
        """
        outcome = self._simulator.step(command)
        self._played.append(command)
        over = outcome.completed or outcome.score < 0
        return Result(
            observation=outcome.observation,
            score=min(max(outcome.score, 0), FULL_SCORE) / FULL_SCORE,
            terminated=over,
            success=over and outcome.score >= FULL_SCORE,
            valid=not outcome.observation.startswith(UNKNOWN),
            truncation=None if over else self._over_limit(outcome.moves),
            info=_facts(outcome),
        )

    def _over_limit(self, moves: int) -> str | None:
        limit = self._options.step_limit
        return f"The world's own limit of {limit} moves was passed." if moves > limit else None

    def expert(self) -> str:
        """The next command of the simulator's gold path, as long as the episode has followed it."""
        return self._gold.next(self._variation, self._options, self._played)

    def actions(self) -> list[str]:
        """Every command that would do something now; hundreds to thousands."""
        return self._simulator.actions()

    def view(self) -> dict[str, Any]:
        """The room and what is held, in words, and all things, each with its properties and what it holds."""
        simulator = self._simulator
        return {
            "task": simulator.describe(),
            "room": simulator.look(),
            "inventory": simulator.inventory(),
            "things": _thing(simulator.object_tree()),
        }

    def close(self) -> None:
        """Gives the simulator back."""
        self._held.close()


def _facts(outcome: Outcome) -> dict[str, int]:
    return {"raw_score": outcome.score, "moves": outcome.moves}


def _thing(node: dict[str, Any]) -> dict[str, Any]:
    """A node of the simulator's tree without the properties that it lacks."""
    contents = [_thing(part) for part in node["contents"].values()]
    own = {name: value for name, value in node.items() if name != "contents" and value not in (None, "")}
    return own | {"contents": contents}
