"""Held-out evaluation: items x attempts, and what can be said of the success rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from gym_agents.trajectory import Outcome, Trajectory
from trainers.acting.engines.base import Sampling
from trainers.acting.rollout import Job

RESAMPLES = 10_000

Way = Literal["greedy", "sampled"]
WAYS: tuple[Way, ...] = ("greedy", "sampled")


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
    """Turn limit; of several scenarios, the largest."""
    results: tuple[ItemResult, ...]
    weights: str = ""
    """Whose result it is: the fingerprint of the weights."""

    def rates(self, way: Way) -> dict[str, float]:
        """Share of successes of each item, over its finished attempts; items without one are left out."""
        attempts = {result.item_id: getattr(result, way) for result in self.results}
        return {item: sum(done) / len(done) for item, done in attempts.items() if done}

    def by_numbering(self) -> dict[str, Evaluation]:
        """The evaluation of each scenario's items, by the name of their numbering."""
        found: dict[str, list[ItemResult]] = {}
        for result in self.results:
            found.setdefault(result.item_id.rpartition("_")[0], []).append(result)
        return {
            name: msgspec.structs.replace(self, results=tuple(results)) for name, results in found.items()
        }

    @property
    def env_errors(self) -> int:
        return sum(result.env_errors for result in self.results)


class Play(Protocol):
    """Whoever plays jobs: trajectories come in the order of the jobs."""

    def __call__(self, jobs: Sequence[Job], *, sampling: Sampling) -> list[Trajectory]: ...


def evaluate(
    play: Play,
    items: Sequence[int],
    *,
    attempts: int,
    max_new_tokens: int,
    seed: int,
) -> tuple[list[ItemResult], dict[Way, list[Trajectory]]]:
    """Plays each item once greedily and `attempts` times at temperature 1; gives the results and the episodes."""
    ways: tuple[tuple[Way, float, int], ...] = (("greedy", 0.0, 1), ("sampled", 1.0, attempts))
    episodes: dict[Way, list[Trajectory]] = {}
    for way, temperature, times in ways:
        jobs = [
            Job(item=item, seed=seed, group=group, member=member, split="eval")
            for group, item in enumerate(items)
            for member in range(times)
        ]
        sampling = Sampling(temperature=temperature, max_new_tokens=max_new_tokens)
        episodes[way] = play(jobs, sampling=sampling)
    return [_item_result(group, episodes) for group in range(len(items))], episodes


def _item_result(group: int, episodes: Mapping[Way, Sequence[Trajectory]]) -> ItemResult:
    own = {way: [episode for episode in played if episode.group == group] for way, played in episodes.items()}
    done = {
        way: tuple(e.success for e in mine if e.outcome is not Outcome.ENV_ERROR) for way, mine in own.items()
    }
    errors = sum(map(len, own.values())) - sum(map(len, done.values()))
    first = own["greedy"][0]
    return ItemResult(first.item_id, first.task, done["greedy"], done["sampled"], errors)


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
