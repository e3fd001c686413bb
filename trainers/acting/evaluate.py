"""Held-out evaluation: items x attempts, and what can be said of the success rates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000

Way = Literal["greedy", "sampled"]


class ItemResult(msgspec.Struct, frozen=True):
    """Every attempt at one item; attempts that the environment failed are counted apart."""

    item_id: str
    task: str | None
    greedy: tuple[bool, ...]
    sampled: tuple[bool, ...]
    env_errors: int


class Evaluation(msgspec.Struct, frozen=True):
    """What one set of weights made of the held-out items."""

    update: int
    """How many updates the weights had seen."""
    horizon: int | None
    results: tuple[ItemResult, ...]

    def rates(self, way: Way) -> dict[str, float]:
        """Share of successes of each item, over its finished attempts; items without one are left out."""
        attempts = {result.item_id: getattr(result, way) for result in self.results}
        return {item: sum(done) / len(done) for item, done in attempts.items() if done}

    @property
    def env_errors(self) -> int:
        return sum(result.env_errors for result in self.results)


class Interval(NamedTuple):
    """A mean with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap(values: Iterable[float], seed: int = 0) -> Interval:
    """The mean over items, and the 2.5 and 97.5 percentiles of the means of resampled items.

    The items are what varies: attempts at one item are averaged before. For two evaluations of the same
    items, the interval of their differences is the paired one.

    Raises:
        ValueError: if there is no value.
    """
    sample: npt.NDArray[np.float64] = np.fromiter(values, dtype=np.float64)  # [items]
    if not sample.size:
        raise ValueError("No item was finished, so there is no mean.")
    picked = np.random.default_rng(seed).integers(sample.size, size=(RESAMPLES, sample.size))
    means = sample[picked].mean(axis=1)  # [resamples]
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(sample.mean()), float(low), float(high))


def success(evaluation: Evaluation, way: Way) -> Interval:
    """Success rate over items."""
    return bootstrap(evaluation.rates(way).values())


def gain(before: Evaluation, after: Evaluation, way: Way) -> Interval:
    """Success rate after minus before, over the items that both finished."""
    earlier, later = before.rates(way), after.rates(way)
    return bootstrap(later[item] - earlier[item] for item in earlier if item in later)
