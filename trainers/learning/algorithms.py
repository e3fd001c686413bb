"""The table of algorithms: how a name turns episodes into advantages, and what it needs for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainers.config import RLConfig
from trainers.learning.advantages import grpo
from trainers.learning.batch import Sample


class Algorithm(NamedTuple):
    """One row of the table."""

    advantages: Callable[[Sequence[Sample], RLConfig], Sequence[Tensor]]
    """For each sample one advantage [], or one per sampled token [A]."""
    needs_group: bool
    """It compares several episodes of one item."""
    needs_critic: bool
    """It needs a value for every sampled token."""


def _grpo(samples: Sequence[Sample], config: RLConfig) -> Sequence[Tensor]:
    """Every sample of an episode has the episode's advantage; each episode counts once in its group."""
    episodes = {(sample.group, sample.member): sample.score for sample in samples}
    scores = torch.tensor(list(episodes.values()), dtype=torch.float64)
    groups = torch.tensor([group for group, _ in episodes])
    advantages = dict(zip(episodes, grpo(scores, groups, scale_by_std=config.scale_by_std), strict=True))
    return [advantages[sample.group, sample.member] for sample in samples]


ALGORITHMS = {"grpo": Algorithm(_grpo, needs_group=True, needs_critic=False)}


def with_signal(samples: Sequence[Sample], advantages: Sequence[Tensor]) -> tuple[list[Sample], list[Tensor]]:
    """The samples that have an advantage other than 0 somewhere, and their advantages.

    The others pull on nothing unless the loss has a KL or an entropy term; without them an update costs
    less, and its mean is over the tokens that do pull.
    """
    chosen = [index for index, advantage in enumerate(advantages) if advantage.any()]
    return [samples[index] for index in chosen], [advantages[index] for index in chosen]
