"""What an update's episodes show, and where its time went."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any

from gym_agents.trajectory import Outcome, Trajectory


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


def without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` without what differs between two equal runs."""
    return {key: value for key, value in row.items() if key != "seconds"}
