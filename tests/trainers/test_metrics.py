"""Figures of an update, worked by hand."""

from __future__ import annotations

import pytest

from gym_agents.trajectory import Outcome, Trajectory, Turn
from trainers.config import RLConfig
from trainers.metrics import Stopwatch, describe_episodes
from trainers.rl import learning_rate_at


def episode(outcome: Outcome, score: float, valid: tuple[bool, ...]) -> Trajectory:
    turns = tuple(Turn("", "", 0.0, score, good, None) for good in valid)
    return Trajectory("counting", None, "counting_0", 0, {}, "", turns, "", outcome, score)


def test_failed_environments_enter_no_mean() -> None:
    figures = describe_episodes(
        [
            episode(Outcome.SUCCESS, 1.0, (True, True)),
            episode(Outcome.HORIZON_CUT, 0.5, (True, False, False, True)),
            episode(Outcome.LENGTH_CUT, 0.0, (True,)),
            episode(Outcome.FAILURE, 0.0, (False,)),
            episode(Outcome.ENV_ERROR, 0.0, (False,) * 9),
        ]
    )
    assert figures == pytest.approx(
        {
            "episodes": 4,
            "env_errors": 1,
            "success": 0.25,
            "score": 0.375,
            "turns": 2.0,
            "horizon_cut": 0.25,
            "length_cut": 0.25,
            "invalid": 3 / 8,
        }
    )


def test_no_finished_episode_has_no_success() -> None:
    assert describe_episodes([episode(Outcome.ENV_ERROR, 0.0, ())])["success"] == 0.0


def test_a_lap_holds_what_was_timed_since_the_last() -> None:
    watch = Stopwatch()
    with watch("acting"), watch("generation"):
        pass
    assert set(watch.lap()) == {"acting", "generation"}
    assert watch.lap() == {}


def test_the_learning_rate_warms_up_and_is_never_zero() -> None:
    """An update's rate depends on its number alone: huggingface/accelerate #963, #2318."""
    config = RLConfig(learning_rate=6e-5, warmup_updates=6)
    assert [learning_rate_at(config, update) for update in (1, 3, 6, 7, 100)] == pytest.approx(
        [1e-5, 3e-5, 6e-5, 6e-5, 6e-5]
    )
    assert learning_rate_at(RLConfig(learning_rate=2.0), 1) == 2.0
