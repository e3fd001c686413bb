"""Which level an item number names, and how Minigrid builds it."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # Minigrid imports pygame, which greets on stdout
import minigrid

LEVELS = (
    "GoToRedBallGrey",
    "GoToRedBall",
    "GoToRedBallNoDists",
    "GoToObjS6",
    "GoToLocalS8N7",
    "GoToObjMazeS7",
    "GoToImpUnlock",
    "GoToSeqS5R2",
    "GoToRedBlueBall",
    "GoToDoor",
    "GoToObjDoor",
    "Open",
    "OpenRedDoor",
    "OpenDoorLoc",
    "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug",
    "Pickup",
    "UnblockPickup",
    "PickupLoc",
    "PickupDistDebug",
    "PickupAbove",
    "PutNextLocalS6N4",
    "PutNextS7N4Carrying",
    "Unlock",
    "UnlockLocalDist",
    "KeyInBox",
    "UnlockPickupDist",
    "BlockedUnlockPickup",
    "UnlockToUnlock",
    "ActionObjDoor",
    "FindObjS7",
    "KeyCorridorS6R3",
    "OneRoomS20",
    "MoveTwoAcrossS8N9",
    "SynthS5R2",
    "SynthLoc",
    "SynthSeq",
    "MiniBossLevel",
    "BossLevel",
    "BossLevelNoUnlock",
)
"""Level n is `LEVELS[n - 1]`."""
_VERSIONS = {"GoToObjS6": "v1"}
"""Levels whose id moved on from `v0`."""

BACKEND = f"minigrid {minigrid.__version__}"


def level_number(item: int) -> int:
    """The level of an item, counted from 1."""
    return item % len(LEVELS) + 1


def level_seed(item: int) -> int:
    """The seed with which the item's level is generated."""
    return item // len(LEVELS)


def build(item: int) -> Any:
    """The item's level, generated and ready to play: a Minigrid environment without wrappers."""
    name = LEVELS[level_number(item) - 1]
    spec = gymnasium.spec(f"BabyAI-{name}-{_VERSIONS.get(name, 'v0')}")
    level: Any = load_env_creator(str(spec.entry_point))(**spec.kwargs)
    # The text is made from the grid; Minigrid's encoded image would take most of a step's time.
    level.gen_obs = dict
    with contextlib.redirect_stdout(io.StringIO()):  # the generator prints each layout that it rejects
        level.reset(seed=level_seed(item))
    return level
