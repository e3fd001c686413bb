"""A Gymnasium suite of 27 long-horizon text tasks, each scenario behind a server of its own.

>>> import gymnasium, gym_agents
>>> gymnasium.spec("AgentGym/TextCraft-Depth2-v0").max_episode_steps
30
"""

from __future__ import annotations

import gymnasium

from gym_agents import tasks
from gym_agents.horizon import checked_limit
from gym_agents.scenario import Command, Invalid, Options, Scenario

__all__ = ["Command", "Invalid", "Options", "Scenario", "register_world"]


def register_world(id: str, world: str, *, max_episode_steps: int | None) -> None:
    """Registers a world of your own under an id of your own.

    Args:
        id: as Gymnasium wants it: `Mine/Countdown-v0`.
        world: `module:Class` of a `servers.world.World`, importable from here and from the server process.
        max_episode_steps: default turn limit.

    Raises:
        LimitError: if the limit is not a positive whole number, `-1` or `None`.
    """
    gymnasium.register(
        id=id,
        entry_point="gym_agents.env:TextEnv",
        vector_entry_point="gym_agents.horizon:make_vector_env",
        max_episode_steps=checked_limit(max_episode_steps),
        kwargs={"scenario": world},
    )


tasks.register_all()
