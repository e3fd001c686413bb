"""SciWorld's sessions against the bare simulator and against one stock `ScienceWorldEnv` per session.

    python -m benchmarks.sciworld_speed
    python -m benchmarks.sciworld_speed --soak-episodes 2000

Every row plays the same scripts on the same items: the beginnings of expert paths, taken in turn from the
evaluation items of the five tasks, without simplifications. Each row plays its scripts once before it is timed,
resets are not timed, and openings have columns of their own. Compare the rows, not the numbers of two machines.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium
import psutil
import tyro
from rich.console import Console
from rich.table import Table
from scienceworld import ScienceWorldEnv

from gym_agents.errors import NotOffered
from gym_agents.horizon import HorizonLimit
from gym_agents.tasks import scenario_row

ID = "AgentGym/SciWorld-v0"


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    sessions: tuple[int, ...] = (1, 8, 32)
    """Numbers of our sessions."""
    stock: tuple[int, ...] = (1, 8)
    """Numbers of stock environments, each with a Java process of its own."""
    seconds: float = 10.0
    """How long each row is measured."""
    turns: int = 8
    """Turns of each script."""
    soak_episodes: int = 0
    """Also play this many episodes on eight sessions, and report memory, zombies and the log."""
    out: Path | None = None
    """Write the figures to this JSON file, too."""


@dataclass(frozen=True)
class Script:
    """An item, what the simulator calls it, and commands none of which ends it."""

    item: int
    task: str
    variation: int
    commands: tuple[str, ...]


class Served:
    """A server process of its own, whose log can be read."""

    def __init__(self, *arguments: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-m", "servers", "sciworld", "--port", "0", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split()[-1]

    def _family(self) -> list[psutil.Process]:
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def memory(self) -> float:
        """Resident memory of the server and its Java process, in MB."""
        return sum(float(process.memory_info().rss) for process in self._family()) / 2**20

    def zombies(self) -> int:
        """Children that have ended and that nobody has waited for."""
        return sum(process.status() == psutil.STATUS_ZOMBIE for process in self._family())

    def log(self) -> str:
        """All that it wrote to its standard error."""
        self._log.seek(0)
        return self._log.read().decode()

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.communicate()
        self._log.close()


def open_vector(num_envs: int, server: str) -> HorizonLimit:
    """Sessions without a turn limit."""
    limits: dict[str, Any] = {"max_episode_steps": -1, "step_limit": 10_000, "deadline": 1000.0}
    return cast(HorizonLimit, gymnasium.make_vec(ID, num_envs=num_envs, server=server, **limits))


def record(count: int, turns: int) -> list[Script]:
    """Beginnings of expert paths, from the five tasks in turn."""
    envs = cast(HorizonLimit, gymnasium.make_vec(ID, num_envs=1, max_episode_steps=-1, expert=True))
    tasks = [envs.items("eval", task.name) for task in scenario_row("sciworld").tasks]
    in_turn = [item for row in itertools.zip_longest(*tasks) for item in row if item is not None]
    scripts: list[Script] = []
    for item in itertools.islice(itertools.cycle(in_turn), 10 * count):
        if len(scripts) < count and (script := _record(envs, item, turns)):
            scripts.append(script)
    envs.close()
    return scripts


def _record(envs: HorizonLimit, item: int, turns: int) -> Script | None:
    _, infos = envs.reset(seed=[0], options={"item": [item]})
    commands: list[str] = []
    try:
        while len(commands) < turns:
            commands.append(envs.expert(0))
            _, _, ended, _, _ = envs.step([f"Action: {commands[-1]}"])
            if ended[0]:
                return None
    except NotOffered:
        return None
    return Script(item, str(infos["simulator_task"][0]), int(infos["variation"][0]), tuple(commands))


def rate(begin: Callable[[], None], play: Callable[[], int], seconds: float) -> float:
    """Steps per second of `play`, after one round to warm up; `begin` is not timed."""
    begin()
    play()
    steps, spent = 0, 0.0
    while spent < seconds:
        begin()
        started = time.perf_counter()
        steps += play()
        spent += time.perf_counter() - started
    return steps / spent


def raw_calls(scripts: list[Script], seconds: float) -> float:
    """The simulator's own step, score, completion and count of moves, without its Python environment."""
    env = ScienceWorldEnv()
    current = iter(itertools.cycle(scripts))
    playing: list[Script] = []

    def begin() -> None:
        playing[:] = [next(current)]
        env.server.load(playing[0].task, playing[0].variation, "", False)
        env.server.step("look around")

    def play() -> int:
        for command in playing[0].commands:
            env.server.step(command)
            env.server.getScore(), env.server.getCompleted(), env.server.getNumMoves()
        return len(playing[0].commands)

    measured = rate(begin, play, seconds)
    env.close()
    return measured


def stock(scripts: list[Script], seconds: float) -> tuple[float, float]:
    """(seconds to open, steps/s) of stock environments, a thread and a Java process each."""
    with ThreadPoolExecutor(len(scripts)) as threads:
        started = time.perf_counter()
        envs = list(threads.map(lambda script: ScienceWorldEnv(script.task), scripts))
        opened = time.perf_counter() - started

        def begin_one(env: ScienceWorldEnv, script: Script) -> None:
            env.load(script.task, script.variation, "")
            env.reset()

        def play_one(env: ScienceWorldEnv, script: Script) -> int:
            return len([env.step(command) for command in script.commands])

        measured = rate(
            lambda: list(threads.map(begin_one, envs, scripts)).clear(),
            lambda: sum(threads.map(play_one, envs, scripts)),
            seconds,
        )
    for env in envs:
        env.close()
    return opened, measured


def opening(envs: HorizonLimit, scripts: list[Script]) -> tuple[float, float, int]:
    """(seconds to the first session, to the last, steps that were played before the last) of all at once."""
    waiting, steps, started = set(range(len(scripts))), 0, time.perf_counter()
    envs.send_reset(list(waiting), seeds=[0] * len(scripts), items=[script.item for script in scripts])
    first, last = 0.0, 0.0
    while waiting:
        for event in envs.recv():
            if event.error is not None:
                raise event.error
            last = time.perf_counter() - started
            first = first or last
            steps += event.index not in waiting
            waiting.discard(event.index)
            if waiting:
                envs.send([event.index], ["Action: look around"])
    envs.close()
    return first, last, steps


def ours(server: Served, scripts: list[Script], seconds: float) -> float:
    """Steps per second of `step()` on as many sessions as there are scripts."""
    envs = open_vector(len(scripts), server.address)
    items = [script.item for script in scripts]
    replies = [[f"Action: {command}" for command in turn] for turn in _turns(scripts)]

    def begin() -> None:
        envs.reset(seed=[0] * len(items), options={"item": items})

    def play() -> int:
        for turn in replies:
            envs.step(turn)
        return len(replies) * len(items)

    measured = rate(begin, play, seconds)
    envs.close()
    return measured


def _turns(scripts: list[Script]) -> Iterator[tuple[str, ...]]:
    return zip(*(script.commands for script in scripts), strict=True)


def soak(scripts: list[Script], episodes: int, console: Console) -> None:
    """Plays short episodes on new items all the time; prints memory, zombies and what the log holds."""
    server = Served()
    envs = open_vector(len(scripts), server.address)
    items = envs.items("train")
    rounds = episodes // len(scripts)
    for number in range(rounds):
        numbers = [items[(number * len(scripts) + at) * 37 % len(items)] for at in range(len(scripts))]
        envs.reset(seed=[0] * len(scripts), options={"item": numbers})
        for _ in range(3):
            envs.step(["Action: look around"] * len(scripts))
        if (number + 1) % max(1, rounds // 10) == 0:
            console.print(f"  after {(number + 1) * len(scripts):,} episodes: {server.memory():.0f} MB")
    envs.close()
    console.print(f"  zombies: {server.zombies()}, log: {server.log() or 'empty'}")
    server.close()


def main(settings: Settings) -> None:
    """Measures and prints."""
    console, figures = Console(), {}
    scripts = record(max(*settings.sessions, *settings.stock), settings.turns)
    console.print("task mix:", ", ".join(sorted({script.task for script in scripts})))
    table = Table("way", "sessions", "open: first s", "open: all s", "steps meanwhile", "steps/s", "MB")

    def row(way: str, sessions: int, *cells: float) -> None:
        figures[f"{way} {sessions}"] = cells
        console.print(way, sessions, *(f"{cell:,.1f}" for cell in cells))
        table.add_row(way, str(sessions), *(f"{cell:,.1f}" for cell in cells))

    row("raw calls", 1, 0, 0, 0, raw_calls(scripts, settings.seconds), 0)
    for count in settings.stock:
        opened, measured = stock(scripts[:count], settings.seconds)
        row("stock", count, opened, opened, 0, measured, 0)
    for count in settings.sessions:
        server = Served()
        times = opening(open_vector(count, server.address), scripts[:count])
        measured = ours(server, scripts[:count], settings.seconds)
        row("ours", count, *times, measured, server.memory())
        server.close()
    console.print(table)
    if settings.soak_episodes:
        soak(scripts[:8], settings.soak_episodes, console)
    if settings.out:
        settings.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
