"""The expert: the simulator's gold paths."""

from __future__ import annotations

import functools
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

    Not every path is gold: where two animals have one name, the simulator's planner can name neither. So
    each is played to its end before it is recommended.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._path = functools.lru_cache(CACHED)(self._work_out)

    def next(self, variation: Variation, options: SciWorldOptions, played: Sequence[str]) -> str:
        """The command that follows the ones that were played.

        Raises:
            NotOffered: if the simulator has no path that works, or they are not the beginning of it.
        """
        path = self._path(variation, ",".join(options.simplified))
        if not path:
            raise NotOffered(f"The simulator's own path does not solve {variation.task} {variation.number}.")
        if len(played) >= len(path) or path[: len(played)] != tuple(played):
            raise NotOffered("The expert knows one path, from the start, and this episode is not on it.")
        return path[len(played)]

    def _work_out(self, variation: Variation, simplifications: str) -> tuple[str, ...]:
        with self._pool.lent() as simulator:
            lines = [
                command(line, SciWorldOptions()) for line in simulator.gold_path(variation, simplifications)
            ]
            path = [line.text for line in lines if isinstance(line, Command)]
            simulator.load(variation, simplifications)
            for turn, line in enumerate(path, start=1):
                if simulator.step(line).completed:
                    return tuple(path[:turn])
        return ()
