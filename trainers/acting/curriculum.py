"""Horizon schedules: how many turns an episode may take, as training goes on."""

from __future__ import annotations

from trainers.config import HorizonConfig


def horizon_at(config: HorizonConfig, update: int) -> int:
    """The turn limit h(t) of update t = 1, 2, ...: a function of the two alone, so a resumed run needs no more.

    ScalingInter-RL (arXiv 2509.08755): updates 1..every play at most h1 turns, the next `every` at most h2,
    and so on; the last stage stays.

    >>> paper = HorizonConfig("stepwise", stages=(10, 20, 30), every=100)
    >>> [horizon_at(paper, update) for update in (1, 100, 101, 200, 201, 900)]
    [10, 10, 20, 20, 30, 30]
    """
    if config.schedule == "fixed":
        return config.stages[-1]
    return config.stages[min((update - 1) // config.every, len(config.stages) - 1)]
