"""Sessions of SciWorld side by side and alone: `python -m tests.servers.sciworld_sessions 32` compares them.

With a number in front of a case, `... alone 3`, it prints that session's transcript and is the fresh process.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

from gym_agents.scenarios.sciworld import SciWorldOptions
from servers.sciworld.items import KEPT
from servers.sciworld.simulator import Variation
from servers.sciworld.world import SciWorldEpisode, SciWorldWorld

# These draw random numbers as time passes, connect parts, or mix substances.
STATEFUL = (
    Variation("grow-plant", 2),
    Variation("mendelian-genetics-known-plant", 1),
    Variation("boil", 0),
    Variation("chemistry-mix", 4),
    Variation("power-component", 1),
    Variation("test-conductivity", 7),
    Variation("find-animal", 3),
    Variation("lifespan-longest-lived", 0),
    Variation("mendelian-genetics-unknown-plant", 5),
)
CASES = STATEFUL + tuple(Variation(task, 5) for task in KEPT)
WALK = (
    "open door to hallway",
    "go to hallway",
    "open door to greenhouse",
    "go to greenhouse",
    "teleport to greenhouse",
    "objects",
    "wait",
    "look around",
    "pick up seed jar",
    "open door to outside",
    "go to outside",
    "wait",
    "objects",
    "look around",
    "inventory",
)
SIMPLIFIED = SciWorldOptions(simplifications=("teleportAction", "openDoors"))


def start(world: SciWorldWorld, number: int) -> SciWorldEpisode:
    """The case's episode; every second one is simplified."""
    options = SIMPLIFIED if number % 2 else SciWorldOptions()
    return SciWorldEpisode(world._pool, world._gold, CASES[number], options)


def side_by_side(numbers: range) -> list[list[Any]]:
    """The transcripts of sessions that take turns in one process."""
    world = SciWorldWorld()
    episodes = [start(world, number) for number in numbers]
    transcripts: list[list[Any]] = [[episode.observation] for episode in episodes]
    for command in WALK:
        for episode, transcript in zip(episodes, transcripts, strict=True):
            transcript.append(dataclasses.asdict(episode.step(command)))
    for episode in episodes:
        episode.close()
    world.close()
    return transcripts


def alone(number: int) -> list[Any]:
    """The transcript of a session alone in a fresh process."""
    command = [sys.executable, "-m", "tests.servers.sciworld_sessions", "alone", str(number)]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=110)
    transcript: list[Any] = json.loads(finished.stdout)
    return transcript


def main() -> None:
    """Compares as many as are asked for, or prints one."""
    if sys.argv[1] == "alone":
        number = int(sys.argv[2])
        print(json.dumps(side_by_side(range(number, number + 1))[0]))
        return
    numbers = range(int(sys.argv[1]))
    equal = [alone(number) == shared for number, shared in zip(numbers, side_by_side(numbers), strict=True)]
    print(f"{sum(equal)} of {len(equal)} transcripts are the same alone and side by side")


if __name__ == "__main__":
    main()
