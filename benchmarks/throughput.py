"""Steps per second through `make_vec`, beside the same world stepped in-process and a blocking client.

    python -m benchmarks.throughput textcraft
    python -m benchmarks.throughput babyai --sessions 64 --soak-episodes 50000

Every row plays the same recorded scripts: valid moves drawn by a seeded random policy, none of which ends its
episode. Rates are of one run on one machine: compare the rows, not the numbers of two machines.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, cast

import gymnasium
import msgspec
import numpy as np
import psutil
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from gym_agents import protocol as wire
from gym_agents.connect import load_world_scenario
from gym_agents.horizon import HorizonLimit
from gym_agents.launcher import LocalServer
from gym_agents.scenario import Options
from gym_agents.tasks import env_id, scenario_row
from servers.serving import load_world
from servers.world import World


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    scenario: Annotated[str, tyro.conf.Positional] = "textcraft"
    """Scenario to step."""
    sessions: tuple[int, ...] = (1, 8, 64, 256)
    """Numbers of sessions to measure."""
    replicas: tuple[int, ...] = (1, 2, 4)
    """Numbers of server processes to measure, at 64 sessions."""
    seconds: float = 4.0
    """How long each row is measured."""
    turns: int = 24
    """Turns of each recorded script."""
    soak_episodes: int = 0
    """Also play this many whole episodes on 256 sessions and report the server's memory on the way."""
    out: Path | None = None
    """Write the figures to this JSON file, too."""


@dataclass
class Script:
    """A recorded episode: an item, and commands none of which ends it."""

    item: int
    commands: list[str] = field(default_factory=list)


def record(world: World, options: Options, count: int, turns: int) -> list[Script]:
    """Random valid moves on training items; an item whose episode ends is left out."""
    rng = np.random.default_rng(0)
    scripts: list[Script] = []
    for item in itertools.cycle(world.items(None, "train")):
        episode, script = world.start(item, 0, options), Script(item)
        while len(script.commands) < turns:
            moves = sorted(episode.actions())
            command = moves[int(rng.integers(len(moves)))]
            if episode.step(command).terminated:
                break
            script.commands.append(command)
        else:
            scripts.append(script)
        episode.close()
        if len(scripts) == count:
            return scripts
    raise AssertionError("the items are cycled")


def in_process(world: World, options: Options, scripts: list[Script], seconds: float) -> float:
    """Steps per second of the bare world, its grammar included, in one thread."""
    steps, spent = 0, 0.0
    parse = world.scenario.parse
    while spent < seconds:
        for script in scripts:
            episode = world.start(script.item, 0, options)
            started = time.perf_counter()
            for command in script.commands:
                read = parse(f"Action: {command}", options)
                episode.step(read.text)  # type: ignore[union-attr]  # recorded commands are valid
            spent += time.perf_counter() - started
            steps += len(script.commands)
            episode.close()
    return steps / spent


def open_vector(scenario: str, address: str, num_envs: int) -> HorizonLimit:
    """A vector of sessions without a turn limit."""
    id = env_id(scenario_row(scenario), None)
    return cast(HorizonLimit, gymnasium.make_vec(id, num_envs=num_envs, server=address, max_episode_steps=-1))


def through_make_vec(scenario: str, address: str, scripts: list[Script], seconds: float) -> float:
    """Steps per second of `step()` on as many sessions as there are scripts."""
    envs = open_vector(scenario, address, len(scripts))
    replies = [tuple(f"Action: {command}" for command in turn) for turn in _turns(scripts)]
    steps, spent = 0, 0.0
    while spent < seconds:
        envs.reset(seed=[0] * len(scripts), options={"item": [script.item for script in scripts]})
        started = time.perf_counter()
        for turn in replies:
            envs.step(turn)
        spent += time.perf_counter() - started
        steps += len(scripts) * len(replies)
    envs.close()
    return steps / spent


def _turns(scripts: list[Script]) -> Iterator[tuple[str, ...]]:
    return zip(*(script.commands for script in scripts), strict=True)


def blocking_threads(address: str, scripts: list[Script], seconds: float) -> float:
    """Steps per second of a thread and a blocking request per step and session, each on a new connection."""
    counts = [0] * len(scripts)
    ends = time.perf_counter() + seconds

    def post(call: wire.Call) -> None:
        body = msgspec.json.encode(call)
        request = urllib.request.Request(address + wire.CALL, data=body, method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            response.read()

    def play(index: int) -> None:
        name, script = f"blocking-{index}", scripts[index]
        post(wire.Create(name, "blocking", None, {}))
        for episode in itertools.count(1):
            post(wire.Reset(name, episode, 0, script.item))
            for turn, command in enumerate(script.commands, start=1):
                if time.perf_counter() > ends:
                    return
                post(wire.Step(name, episode, turn, f"Action: {command}"))
                counts[index] += 1

    threads = [threading.Thread(target=play, args=(index,)) for index in range(len(scripts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def soak(scenario: str, server: LocalServer, scripts: list[Script], episodes: int) -> list[tuple[int, float]]:
    """Plays whole episodes; (episodes so far, resident MB of the server) ten times on the way."""
    envs = open_vector(scenario, server.start(), len(scripts))
    replies = [tuple(f"Action: {command}" for command in turn) for turn in _turns(scripts)][:3]
    points = []
    rounds = -(-episodes // len(scripts))
    for played in track(range(rounds), description="soak"):
        envs.reset(seed=[0] * len(scripts), options={"item": [script.item for script in scripts]})
        for turn in replies:
            envs.step(turn)
        if played % max(1, rounds // 10) == 0 or played == rounds - 1:
            points.append(((played + 1) * len(scripts), memory(server)))
    envs.close()
    return points


def memory(server: LocalServer) -> float:
    """Resident memory of the server process, in MB."""
    return float(psutil.Process(server.pid).memory_info().rss) / 2**20


class Rows:
    """The rows of the table, and their figures by name."""

    def __init__(self, scenario: str, base: float) -> None:
        self.figures = {"in-process": base}
        self.table = Table("way", "sessions", "replicas", "steps/s", "of in-process", title=scenario)
        self._base = base
        self.add("in-process, one thread", 1, 0, base)

    def add(self, way: str, sessions: int, replicas: int, rate: float) -> None:
        """A row: how the world was stepped, by how many sessions on how many servers, and how fast."""
        self.figures[f"{way} sessions={sessions} replicas={replicas}"] = rate
        self.table.add_row(way, str(sessions), str(replicas), f"{rate:,.0f}", f"{rate / self._base:.0%}")


def measure(settings: Settings, addresses: list[str], rows: Rows, scripts: list[Script]) -> None:
    """Every way of stepping through servers."""
    scenario, seconds = settings.scenario, settings.seconds
    for sessions in settings.sessions:
        rate = through_make_vec(scenario, addresses[0], scripts[:sessions], seconds)
        rows.add("make_vec", sessions, 1, rate)
    for replicas in settings.replicas[1:]:
        rate = through_make_vec(scenario, ",".join(addresses[:replicas]), scripts[:64], seconds)
        rows.add("make_vec", 64, replicas, rate)
    rows.add("blocking threads", 64, 1, blocking_threads(addresses[0], scripts[:64], seconds))


def main(settings: Settings) -> None:
    """Measures and prints."""
    console = Console()
    world = load_world(settings.scenario)
    options = load_world_scenario(settings.scenario).options()
    scripts = record(world, options, max(*settings.sessions, 64), settings.turns)
    rows = Rows(settings.scenario, in_process(world, options, scripts[:64], settings.seconds))
    fleet = [LocalServer(settings.scenario) for _ in range(max(settings.replicas))]
    addresses = [server.start() for server in fleet]
    idle = memory(fleet[0])
    measure(settings, addresses, rows, scripts)
    console.print(rows.table)
    console.print(f"server memory: {idle:.0f} MB idle, {memory(fleet[0]):.0f} MB after the rows above")
    if settings.soak_episodes:
        for episodes, megabytes in soak(settings.scenario, fleet[0], scripts[:256], settings.soak_episodes):
            rows.figures[f"soak MB after {episodes}"] = megabytes
            console.print(f"  after {episodes:,} episodes: {megabytes:.1f} MB")
    for server in fleet:
        server.close()
    if settings.out:
        settings.out.write_text(json.dumps(rows.figures, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
