"""BabyAI as a world: 40 levels of Minigrid in upstream's numbering, 18 of them in six tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gym_agents.errors import ItemError, NotOffered
from gym_agents.scenarios.babyai import SCENARIO
from gym_agents.tasks import scenario_row
from servers.babyai.describe import describe, view
from servers.babyai.expert import next_move
from servers.babyai.game import Game
from servers.babyai.levels import BACKEND, LEVELS, build, level_number
from servers.babyai.moves import Refused, play, valid_moves
from servers.babyai.picture import draw
from servers.world import Episode, Result, World

SEEDS = {"train": range(45), "eval": range(45, 50)}
"""The seeds of each split, the same for every level."""

_TASK_OF_LEVEL = {int(level): task.name for task in scenario_row("babyai").tasks for level in task.parts}
_ENDINGS = {"success": "The goal is reached.", "failure": "The mission has failed."}


class BabyAIEpisode(Episode):
    """One attempt at one level."""

    def __init__(self, item: int) -> None:
        level = build(item)
        self._game = Game(level)
        self._has_expert = LEVELS[level_number(item) - 1] != "KeyInBox"
        self.observation = f"Goal: {level.mission}\n{describe(self._game)}"
        self.info = {"level": LEVELS[level_number(item) - 1], "max_steps": level.max_steps}

    def step(self, command: str) -> Result:
        """Makes one move; an impossible one is refused with a reason and changes nothing."""
        game, known = self._game, set(self._game.things)
        try:
            play(game, command)
        except Refused as refusal:
            return self._result(str(refusal), valid=False)
        in_sight = {thing.name for thing, _ in game.in_sight}
        passed = [thing for name, thing in game.things.items() if name not in known | in_sight]
        return self._result(_ENDINGS.get(game.status) or describe(game, passed))

    def _result(self, observation: str, *, valid: bool = True) -> Result:
        game = self._game
        return Result(
            observation=observation,
            score=game.score,
            terminated=game.over,
            success=game.status == "success",
            valid=valid,
            info={"steps": game.steps},
        )

    def expert(self) -> str:
        """The next move of a planner that knows only what has been seen."""
        if not self._has_expert:
            raise NotOffered("This level has no expert: its key lies in a box that nothing tells of.")
        return next_move(self._game)

    def actions(self) -> list[str]:
        """The moves that are possible now."""
        return valid_moves(self._game)

    def view(self) -> dict[str, Any]:
        """The grid as plain data."""
        return view(self._game)

    def picture(self) -> bytes:
        """The grid as Minigrid draws it, the cells in view lit up."""
        return draw(self._game.level)


class BabyAIWorld(World):
    """Minigrid's levels; nothing is loaded beforehand, a level is generated when it is asked for."""

    scenario = SCENARIO
    numbering = SCENARIO.name
    backend = BACKEND
    tasks = tuple(task.name for task in scenario_row("babyai").tasks)
    inline = True

    def items(self, task: str | None, split: str) -> Sequence[int]:
        """The items of a task's levels (`None`: of all 18) with the split's seeds, in order."""
        levels = sorted(level for level, name in _TASK_OF_LEVEL.items() if task in (None, name))
        return [len(LEVELS) * seed + level - 1 for seed in SEEDS[split] for level in levels]

    def task_of(self, item: int) -> str | None:
        """The task of the item's level; every number from 0 on names a level and a seed.

        Raises:
            ItemError: if the number is negative.
        """
        if item < 0:
            raise ItemError(f"BabyAI has no item {item}: items count from 0.")
        return _TASK_OF_LEVEL.get(level_number(item))

    def start(self, item: int, seed: int, options: Any) -> Episode:
        """Generates the level; the item alone decides it, whatever the seed."""
        return BabyAIEpisode(item)
