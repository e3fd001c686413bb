"""What an update's episodes show, and where its time went."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from gym_agents.trajectory import Outcome, Trajectory
from trainers.acting.engines.base import Completion, Engine, Request
from trainers.acting.groups import Harvest


def describe_harvests(harvests: Mapping[str, Harvest]) -> dict[str, float]:
    """What an update's episodes show, with the turn limit that they were played under.

    Of a mix, the mean over all, with the largest limit; then that of each scenario, `success/textcraft` and the like.
    """
    groups = [group for harvest in harvests.values() for group in harvest.groups]
    longest = max(harvest.horizon for harvest in harvests.values())
    reward = next(harvest.reward for harvest in harvests.values())
    figures = _describe_harvest(Harvest(groups, longest, reward))
    for name, harvest in harvests.items():
        figures |= {f"{key}/{name}": value for key, value in _describe_harvest(harvest).items() if name}
    return figures


def _describe_harvest(harvest: Harvest) -> dict[str, float]:
    """What `describe_episodes` says of an update's episodes, and of its groups.

    `groups` were played, of which `dropped_groups` were lost to the environment; `zero_variance` is the share
    of the others whose scores are all equal.
    """
    usable = harvest.usable
    return {
        "horizon": harvest.horizon,
        **describe_episodes(harvest.episodes),
        "groups": len(harvest.groups),
        "dropped_groups": len(harvest.groups) - len(usable),
        "zero_variance": 1 - len(harvest.telling) / len(usable) if usable else 0.0,
    }


def describe_episodes(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Means over finished episodes; `env_error` is a count of its own and enters no mean.

    Keys: `episodes`, `env_errors`, `success`, `score`, `turns`, `horizon_cut` and `length_cut` (shares of
    episodes), `invalid` (share of turns without a usable action).
    """
    finished = [episode for episode in episodes if episode.outcome is not Outcome.ENV_ERROR]
    turns = [turn for episode in finished for turn in episode.turns]
    return {
        "episodes": len(finished),
        "env_errors": len(episodes) - len(finished),
        "success": _mean([episode.success for episode in finished]),
        "score": _mean([episode.score for episode in finished]),
        "turns": _mean([len(episode.turns) for episode in finished]),
        "horizon_cut": _mean([episode.outcome is Outcome.HORIZON_CUT for episode in finished]),
        "length_cut": _mean([episode.outcome is Outcome.LENGTH_CUT for episode in finished]),
        "invalid": _mean([not turn.valid for turn in turns]),
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


class Stopwatch:
    """Seconds spent on each part of an update."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Adds the block's time to a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start

    def lap(self) -> dict[str, float]:
        """The seconds of each part since the last lap."""
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return {part: round(value, 4) for part, value in seconds.items()}


class TimedEngine:
    """An engine whose time is taken, and whose tokens are counted by the lap."""

    def __init__(self, engine: Engine, watch: Stopwatch) -> None:
        self._engine = engine
        self._watch = watch
        self._counted = (0, 0)
        self.max_context = engine.max_context
        self.missing = engine.missing
        self.usage = engine.usage

    def submit(self, request: Request) -> None:
        self._engine.submit(request)

    def collect(self) -> list[Completion]:
        with self._watch("generation"):
            return self._engine.collect()

    def release(self, conversation: Hashable) -> None:
        self._engine.release(conversation)

    def sync(self, weight_version: int) -> None:
        self._engine.sync(weight_version)

    def close(self) -> None:
        self._engine.close()

    def lap(self) -> dict[str, int]:
        """Tokens encoded and sampled since the last lap."""
        now = (self.usage.encoded_tokens, self.usage.sampled_tokens)
        encoded, sampled = now[0] - self._counted[0], now[1] - self._counted[1]
        self._counted = now
        return {"encoded_tokens": encoded, "sampled_tokens": sampled}


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` without what differs between two equal runs."""
    return {key: value for key, value in row.items() if key != "seconds"}
