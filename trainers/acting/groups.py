"""The groups of one update: drawn, played, replaced where they cannot teach, dropped where the environment failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec

from gym_agents.trajectory import Outcome, Trajectory
from trainers.acting.rollout import Job
from trainers.acting.sampler import Draw, ItemSampler
from trainers.config import SAME_SCORE, Reward, RLConfig

Group = list[Trajectory]
"""Episodes of one item, which are compared with each other."""


@dataclass(frozen=True)
class Harvest:
    """All groups of an update, of one scenario."""

    groups: list[Group]
    horizon: int
    """The turn limit that they were played under."""
    reward: Reward = "score"
    """What an episode is worth."""

    @property
    def episodes(self) -> list[Trajectory]:
        """Everything that was played."""
        return list(chain.from_iterable(self.groups))

    @property
    def usable(self) -> list[Group]:
        """Groups in which no environment failed, as they are to be learned from."""
        return [self._judged(group) for group in self.groups if not any(map(_failed, group))]

    @property
    def telling(self) -> list[Group]:
        """Usable groups whose scores differ: only these have a group-relative advantage."""
        return [group for group in self.usable if _spread(group) > SAME_SCORE]

    def _judged(self, group: Group) -> Group:
        return group if self.reward == "score" else [by_success(episode) for episode in group]


def harvest(
    play: Callable[[list[Job]], list[Trajectory]], sampler: ItemSampler, config: RLConfig, horizon: int
) -> Harvest:
    """Plays `groups` groups of `group_size`; then up to `refill_groups` more in place of those that tell nothing.

    All of it is a function of the sampler's state and of what `play` returns, which keeps the order of its jobs.
    """
    result = Harvest(
        play_groups(play, sampler.next(config.groups), config.group_size), horizon, config.reward
    )
    spare = config.refill_groups
    while missing := min(spare, config.groups - len(result.telling)):
        result.groups.extend(play_groups(play, sampler.next(missing), config.group_size))
        spare -= missing
    return result


def play_groups(
    play: Callable[[list[Job]], list[Trajectory]], draws: Sequence[Draw], size: int
) -> list[Group]:
    """Plays `size` episodes of each draw's item, as members of one group."""
    episodes = play(
        [
            Job(item=draw.item, seed=draw.seed, group=draw.number, member=member, split="train")
            for draw in draws
            for member in range(size)
        ]
    )
    return [episodes[start : start + size] for start in range(0, len(episodes), size)]


def by_success(episode: Trajectory) -> Trajectory:
    """The episode with 1 for success, and 0 for anything else, as its only reward and its score."""
    worth = float(episode.success)
    turns = [msgspec.structs.replace(turn, reward=0.0, score=0.0) for turn in episode.turns]
    turns[-1:] = [msgspec.structs.replace(turn, reward=worth, score=worth) for turn in turns[-1:]]
    return msgspec.structs.replace(episode, turns=tuple(turns), score=worth)


def _failed(episode: Trajectory) -> bool:
    return episode.outcome is Outcome.ENV_ERROR


def _spread(group: Group) -> float:
    scores = [episode.score for episode in group]
    return max(scores) - min(scores)
