"""Horizon schedules: how many turns an episode may take, as training goes on."""

from __future__ import annotations

from statistics import fmean

import msgspec

from trainers.config import HorizonConfig


class Progress(msgspec.Struct, frozen=True):
    """Where an adaptive schedule stands; the others need no state."""

    stage: int = 0
    updates: int = 0
    """Done in this stage."""
    recent: tuple[tuple[float, float], ...] = ()
    """Success and share of cut episodes in the latest updates of this stage, at most `window` of them."""


def horizon_at(config: HorizonConfig, update: int, progress: Progress) -> int:
    """The turn limit h(t) of update t = 1, 2, ...: a function of what a checkpoint holds.

    ScalingInter-RL (arXiv 2509.08755): updates 1..every play at most h1 turns, the next `every` at most h2,
    and so on; the last stage stays. The adaptive schedule is our own.

    >>> paper = HorizonConfig("stepwise", stages=(10, 20, 30), every=100)
    >>> [horizon_at(paper, update, Progress()) for update in (1, 100, 101, 200, 201, 900)]
    [10, 10, 20, 20, 30, 30]
    """
    if config.schedule == "fixed":
        return config.stages[-1]
    if config.schedule == "adaptive":
        return config.stages[progress.stage]
    return config.stages[min((update - 1) // config.every, len(config.stages) - 1)]


def advance(config: HorizonConfig, progress: Progress, *, success: float, cut: float) -> Progress:
    """The progress after one more update, whose episodes succeeded and were cut by the turn limit in these shares.

    The next stage begins once the last `window` updates of this one have a mean success of `raise_at_success`:
    what can be learned within the limit is learned. Or else, after `every` updates, once a mean share of
    `raise_at_cut` of their episodes was cut: it is the limit that stops the policy.

    >>> quick = HorizonConfig("adaptive", stages=(4, 8), window=2, raise_at_success=0.5)
    >>> advance(quick, advance(quick, Progress(), success=0.4, cut=0.6), success=0.6, cut=0.4)
    Progress(stage=1, updates=0, recent=())
    """
    if config.schedule != "adaptive":
        return progress
    recent = (*progress.recent, (success, cut))[-config.window :]
    updates = progress.updates + 1
    if _is_over(config, updates, recent) and progress.stage + 1 < len(config.stages):
        return Progress(progress.stage + 1)
    return Progress(progress.stage, updates, recent)


def _is_over(config: HorizonConfig, updates: int, recent: tuple[tuple[float, float], ...]) -> bool:
    if len(recent) < config.window:
        return False
    success, cut = map(fmean, zip(*recent, strict=True))
    learned = success >= config.raise_at_success
    return learned or (updates >= config.every and cut >= config.raise_at_cut)
