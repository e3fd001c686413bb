"""The expert: the simulator's gold paths."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from gym_agents.errors import NotOffered
from gym_agents.scenario import Command
from gym_agents.scenarios.sciworld import SciWorldOptions, command
from servers.sciworld.pool import Pool
from servers.sciworld.simulator import Variation

CACHED = 1024
"""So many paths are kept; one is about 2 kB, and takes a tenth of a second to some seconds to work out."""


class GoldPaths:
    """Works gold paths out, each at its first use, in a simulator that no episode is using.

    The simulator's planner walks and opens doors even where a simplification saves that, and it knows where
    things are without looking; so a shorter form that looks is tried first. And not every path is gold:
    where two animals have one name, the planner can name neither. So each is played to its end before it is
    recommended.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._path = functools.lru_cache(CACHED)(self._work_out)

    def next(self, variation: Variation, options: SciWorldOptions, played: Sequence[str]) -> str:
        """The command that follows the ones that were played.

        Raises:
            NotOffered: if the simulator has no path that works, or they are not the beginning of it.
        """
        path = self._path(variation, options.simplified)
        if not path:
            raise NotOffered(f"The simulator's own path does not solve {variation.task} {variation.number}.")
        if len(played) >= len(path) or path[: len(played)] != tuple(played):
            raise NotOffered("The expert knows one path, from the start, and this episode is not on it.")
        return path[len(played)]

    def _work_out(self, variation: Variation, simplified: tuple[str, ...]) -> tuple[str, ...]:
        names = ",".join(simplified)
        with self._pool.lent() as simulator:
            lines = [command(line, SciWorldOptions()) for line in simulator.gold_path(variation, names)]
            path = [line.text for line in lines if isinstance(line, Command)]
            for candidate in (look_first(shorten(path, simplified)), look_first(path), path):
                simulator.load(variation, names)
                for turn, line in enumerate(candidate, start=1):
                    if simulator.step(line).completed:
                        return tuple(candidate[:turn])
        return ()


def shorten(path: Sequence[str], simplified: Sequence[str]) -> list[str]:
    """The path without the doors and ways that the simplifications save.

    >>> path = ["open door to hall", "go to hall", "open door to attic", "go to attic", "look around"]
    >>> shorten(path, ["teleportAction"])
    ['teleport to attic', 'look around']
    >>> shorten(path, ["openDoors"])
    ['go to hall', 'go to attic', 'look around']
    >>> shorten(path, []) == path
    True
    """
    if "openDoors" in simplified or "teleportAction" in simplified:
        path = [line for line in path if not line.startswith("open door to ")]
    if "teleportAction" not in simplified:
        return list(path)
    shorter: list[str] = []
    for walking, lines in itertools.groupby(path, lambda line: line.startswith("go to ")):
        run = list(lines)
        shorter += [run[-1].replace("go to ", "teleport to ", 1)] if walking else run
    return shorter


def look_first(path: Sequence[str]) -> list[str]:
    """The path with a look around in every place where it would focus on something unseen.

    >>> look_first(["go to attic", "focus on bat", "focus on owl"])
    ['go to attic', 'look around', 'focus on bat', 'focus on owl']
    """
    seeing: list[str] = []
    for before, line in itertools.pairwise(["", *path]):
        if line.startswith("focus on ") and before.startswith(("go to ", "teleport to ")):
            seeing.append("look around")
        seeing.append(line)
    return seeing
