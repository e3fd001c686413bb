"""The turn limit of vector environments: the one authority on it, and it can grow between episodes."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorWrapper

from gym_agents.errors import LimitError
from gym_agents.lockstep import Lockstep
from gym_agents.tasks import registered_limit
from gym_agents.vector import Event, TextVectorEnv


def checked_limit(limit: Any) -> int | None:
    """A turn limit: a positive whole number, or `None` and `-1` for none.

    Raises:
        LimitError: for anything else.
    """
    if limit is None or (type(limit) is int and limit == -1):
        return None
    if isinstance(limit, (int, np.integer)) and not isinstance(limit, bool) and limit > 0:
        return int(limit)
    raise LimitError(f"max_episode_steps is {limit!r}; it must be a positive whole number, -1 or None.")


def make_vector_env(
    num_envs: int,
    scenario: str,
    task: str | None = None,
    *,
    max_episode_steps: int | None = None,
    render_mode: None = None,
    **how: Any,
) -> HorizonLimit:
    """What `gymnasium.make_vec` calls: a `TextVectorEnv` under its turn limit.

    Args:
        num_envs: how many episodes.
        scenario: as for `gym_agents.env.TextEnv`.
        task: the same.
        max_episode_steps: turn limit; `None` is the registry's and `-1` none, as in `gymnasium.make`.
        render_mode: a vector draws nothing.
        how: the further arguments of `TextVectorEnv`.

    Raises:
        LimitError: if the limit is not a positive whole number, `-1` or `None`.
    """
    if max_episode_steps is None:
        max_episode_steps = registered_limit(scenario, task)
    checked_limit(max_episode_steps)
    return HorizonLimit(TextVectorEnv(num_envs, scenario, task, **how), max_episode_steps)


class HorizonLimit(Lockstep, VectorWrapper):
    """Cuts each episode after `horizon` turns, as `truncated`; a win on the last turn is a win.

    A new limit acts from each index's next reset, never inside an episode.
    """

    env: TextVectorEnv

    def __init__(self, env: TextVectorEnv, max_episode_steps: int | None) -> None:
        super().__init__(env)
        self._horizon = checked_limit(max_episode_steps)
        self._limits: list[int | None] = [None] * env.num_envs
        self._turns = [0] * env.num_envs

    @property
    def horizon(self) -> int | None:
        """The limit in force for episodes that start now; `None` is no limit."""
        return self._horizon

    def set_horizon(self, max_episode_steps: int | None) -> None:
        """Sets the limit of the episodes that start from now on.

        Raises:
            LimitError: if it is not a positive whole number, `-1` or `None`.
        """
        self._horizon = checked_limit(max_episode_steps)

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec, with the limit now in force."""
        spec = copy.deepcopy(self.env.spec)
        if spec is not None:
            spec.max_episode_steps = self._horizon
            spec.kwargs["max_episode_steps"] = self._horizon
        return spec

    def recv(self, timeout: float | None = None) -> list[Event]:
        """As `TextVectorEnv.recv`; an event at the limit is `truncated`, unless the world ended it."""
        return [self._counted(event) for event in self.env.recv(timeout)]

    def __getattr__(self, name: str) -> Any:
        """The rest of the surface, `send` and `send_reset` among it, is the vector's own."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def _counted(self, event: Event) -> Event:
        index = event.index
        if event.kind == "reset":
            self._turns[index], self._limits[index] = 0, self._horizon
            return event
        self._turns[index] += 1
        limit = self._limits[index]
        if event.error or event.terminated or limit is None or self._turns[index] < limit:
            return event
        self.env.end(index)
        return msgspec.structs.replace(event, truncated=True)
