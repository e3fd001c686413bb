"""The worlds that a run plays in: the vector environment, its servers and its items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import gymnasium

from gym_agents.errors import EmptySplit
from gym_agents.horizon import HorizonLimit
from gym_agents.items import load_items
from gym_agents.tasks import find_spec
from trainers.config import Config, EnvConfig


@dataclass(frozen=True)
class Part:
    """One scenario of a run: the only one, or one of a mix."""

    name: str
    """In the mix; empty where it is the only one."""
    place: int
    """Its number in the mix, from 0."""
    config: Config
    """Of the run, as far as this scenario goes."""
    envs: HorizonLimit

    @property
    def horizon(self) -> int | None:
        """The turn limit of its evaluation."""
        return self.config.eval.horizon or find_spec(self.config.env.id).max_episode_steps

    def evaluation_items(self) -> tuple[int, ...]:
        """The held-out items to play."""
        config = self.config.eval
        return split_items(self.envs, config.tasks, "eval")[: config.limit or None]


def make_worlds(config: EnvConfig, *, server: str = "", expert: bool = False) -> HorizonLimit:
    """The vector environment of a run, without a turn limit until one is set.

    Args:
        config: what to play.
        server: addresses in place of the configuration's.
        expert: start a server of its own that plays the expert.
    """
    envs = gymnasium.make_vec(
        config.id,
        config.num_envs,
        max_episode_steps=-1,
        server=None if expert else server or config.server or None,
        replicas=1 if expert else config.replicas,
        expert=expert,
        **config.options,
    )
    assert isinstance(envs, HorizonLimit)
    return envs


def training_items(envs: HorizonLimit, config: EnvConfig) -> tuple[int, ...]:
    """The items to train on: the user's own list, else those of the tasks."""
    if config.items:
        return load_items(config.items, envs.numbering)
    return split_items(envs, config.tasks, "train")


def split_items(envs: HorizonLimit, tasks: Sequence[str], split: str) -> tuple[int, ...]:
    """The items of a split: those of each task in turn, or all that the environment holds.

    Raises:
        EmptySplit: there are none.
    """
    found = tuple(chain.from_iterable(envs.items(split, task) for task in tasks or (None,)))
    if not found:
        raise EmptySplit(f"{envs.numbering} holds no items in its split {split!r}.")
    return found
