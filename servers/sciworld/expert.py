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
"""So many paths are kept; one is about 2 kB and takes from a tenth of a second to some seconds to work out."""


class GoldPaths:
    """Works gold paths out, each in a simulator that no episode is using, at the first question."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._path = functools.lru_cache(CACHED)(self._work_out)

    def next(self, variation: Variation, options: SciWorldOptions, played: Sequence[str]) -> str:
        """The command that follows the ones that were played.

        Raises:
            NotOffered: if they are not the beginning of the gold path, or all of it.
        """
        path = self._path(variation, ",".join(options.simplified))
        if path[: len(played)] != tuple(played):
            raise NotOffered("The expert knows one path, from the start, and this episode has left it.")
        if len(played) == len(path):
            raise NotOffered("The expert's path has been played to its end.")
        return path[len(played)]

    def _work_out(self, variation: Variation, simplifications: str) -> tuple[str, ...]:
        with self._pool.lent() as simulator:
            simulator.load(variation, simplifications, gold=True)
            lines = [command(line, SciWorldOptions()) for line in simulator.gold_path()]
        return tuple(line.text for line in lines if isinstance(line, Command))
