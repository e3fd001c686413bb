"""Group-relative advantages and leave-one-out, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from tests.trainers.learning.episodes import generation, trajectory
from trainers.config import RLConfig
from trainers.learning.advantages import grpo, rloo
from trainers.learning.algorithms import make_lessons
from trainers.learning.batch import Lesson, Sample, collect_samples
from trainers.learning.scoring import Scored


def learn(samples: list[Sample], config: RLConfig) -> list[Lesson]:
    """Lessons of episodes of which nothing was said."""
    nothing = [torch.zeros(sample.sampled) for sample in samples]
    scored = [Scored(none, none, none, torch.zeros(())) for none in nothing]
    return make_lessons(samples, scored, config, kl_coef=0.0)


def advantages(lessons: list[Lesson]) -> list[float]:
    """Of all tokens, in order."""
    return [advantage for lesson in lessons for advantage in lesson.advantages.tolist()]


DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def one_group(
    scores: list[float], dtype: torch.dtype = torch.float64, *, scale_by_std: bool = True
) -> list[float]:
    groups = torch.zeros(len(scores), dtype=torch.long)
    return grpo(torch.tensor(scores, dtype=dtype), groups, scale_by_std=scale_by_std).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scores", [[0.0] * 4, [1.0] * 4, [0.1 + 0.2, 0.3, 0.3, 0.3], [0.7]])
def test_equal_scores_and_single_episodes_have_no_advantage(scores: list[float], dtype: torch.dtype) -> None:
    """huggingface/trl PR 5640: scores that differ by rounding alone were blown up by the division."""
    assert one_group(scores, dtype) == [0.0] * len(scores)
    assert one_group(scores, dtype, scale_by_std=False) == [0.0] * len(scores)
    assert others_left_out(scores, dtype) == [0.0] * len(scores)


def others_left_out(scores: list[float], dtype: torch.dtype = torch.float64) -> list[float]:
    return rloo(torch.tensor(scores, dtype=dtype), torch.zeros(len(scores), dtype=torch.long)).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_baseline_is_the_mean_of_the_others(dtype: torch.dtype) -> None:
    """redai-studio/Relax #174: 1 - 0 and 0 - 1/3; 1 - 2/7 and 0 - 3/7."""
    assert others_left_out([1, 0, 0, 0], dtype) == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3], abs=1e-6)
    wins_and_losses = [5 / 7] * 3 + [-3 / 7] * 5
    assert others_left_out([1, 1, 1, 0, 0, 0, 0, 0], dtype) == pytest.approx(wins_and_losses, abs=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_deviation_is_the_unbiased_one(dtype: torch.dtype) -> None:
    """redai-studio/Relax #174, huggingface/trl PR 7068: tables for one win in four and three in eight."""
    # mean 1/4, squared deviations 9/16 + 3/16 = 3/4, divided by 3: std 1/2
    assert one_group([1, 0, 0, 0], dtype) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    # mean 3/8, squared deviations 15/8, divided by 7: std 0.51755
    wins_and_losses = [1.2076] * 3 + [-0.7246] * 5
    assert one_group([1, 1, 1, 0, 0, 0, 0, 0], dtype) == pytest.approx(wins_and_losses, abs=1e-4)


def test_without_scaling_only_the_mean_is_taken_off() -> None:
    assert one_group([1, 0, 0, 0], scale_by_std=False) == [0.75, -0.25, -0.25, -0.25]


def test_groups_are_told_apart_by_number_in_any_order() -> None:
    scores = torch.tensor([1.0, 0.0, 0.2, 0.0, 0.4, 0.9])
    groups = torch.tensor([70, 3, 3, 70, 3, 5])
    # group 70: 1 and 0, std 0.70711; group 3: 0, 0.2 and 0.4, std 0.2; group 5 is alone
    expected = [0.70711, -1.0, 0.0, -0.70711, 1.0, 0.0]
    assert grpo(scores, groups).tolist() == pytest.approx(expected, abs=1e-5)


def test_every_sample_has_its_episodes_advantage_and_an_episode_counts_once() -> None:
    """A windowed history gives several samples per episode; the group's mean is over episodes."""
    windows = [generation([5], [6]), generation([7], [8], fresh=True), generation([9], [10], fresh=True)]
    episodes = [
        trajectory(windows, score=1.0, group=4, member=0),
        trajectory([generation([5], [6])], score=0.0, group=4, member=1),
    ]
    samples, _ = collect_samples(episodes)
    learned = learn(samples, RLConfig())
    assert advantages(learned) == pytest.approx([0.70711] * 3 + [-0.70711], abs=1e-5)


def test_samples_without_an_advantage_can_be_left_out() -> None:
    """huggingface/trl PR 6365: groups with equal scores diluted the mean over tokens."""
    episodes = [
        trajectory([generation([5], [6])], score=score, group=group, member=member)
        for group, scores in enumerate([[1.0, 1.0], [0.0, 1.0]])
        for member, score in enumerate(scores)
    ]
    samples, _ = collect_samples(episodes)
    kept = learn(samples, RLConfig())
    assert [lesson.sample.episode for lesson in kept] == [(1, 0), (1, 1)]
    assert advantages(kept) == pytest.approx([-0.70711, 0.70711], abs=1e-5)
