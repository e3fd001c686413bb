"""Whether every online algorithm learns: success of a tiny random model before and after, over several seeds.

python -m benchmarks.learning --updates 20 --seeds 0 1 2
"""

from __future__ import annotations

import sys
import tempfile
import typing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import gymnasium
import tyro
from rich.console import Console
from rich.table import Table

from gym_agents import register_world
from trainers import runner
from trainers.acting.evaluate import success
from trainers.config import RLConfig
from trainers.folder import RunFolder
from trainers.settings import load

NAME = "Bench/Letters-v0"
WORLD = "tests.fakes:LettersWorld"
"""A world that a random model can learn in a minute; found from the root of the repository."""

ALGORITHMS: tuple[str, ...] = typing.get_args(typing.get_type_hints(RLConfig)["algorithm"])


@dataclass(frozen=True)
class Settings:
    """What to run."""

    algorithms: tuple[str, ...] = ALGORITHMS
    """Which rows of the table."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run each."""
    updates: int = 20
    """Of each run."""


def learn(algorithm: str, seed: int, updates: int, folder: Path) -> tuple[float, float]:
    """Held-out success, sampled, before and after one run."""
    if NAME not in gymnasium.registry:
        register_world(NAME, WORLD, max_episode_steps=3)
    flags = {
        "run.seed": seed,
        "run.checkpoint_every": updates,
        "env.id": NAME,
        "env.num_envs": 64,
        "policy.model": "tiny",
        "policy.lora_rank": 0,
        "policy.max_context": 256,
        "sampling.max_new_tokens": 1,
        "horizon.schedule": "stepwise",
        "horizon.stages": [2, 3],
        "horizon.every": updates // 2,
        "rl.algorithm": algorithm,
        "rl.updates": updates,
        "rl.learning_rate": 2e-3,
        "rl.minibatches": 2,
        "eval.attempts": 16,
    }
    words = [
        word
        for name, value in flags.items()
        for word in (f"--{name}", *map(str, value if isinstance(value, list) else [value]))
    ]
    runner.train(load(words), folder)
    before, after = RunFolder(folder).read_evaluations()
    return success(before, "sampled").mean, success(after, "sampled").mean


def main(settings: Settings) -> None:
    """Runs every algorithm with every seed, and prints one table."""
    table = Table("algorithm", "before", "after", "gain", "spread of seeds")
    with tempfile.TemporaryDirectory() as folder:
        for algorithm in settings.algorithms:
            runs = [
                learn(algorithm, seed, settings.updates, Path(folder, f"{algorithm}-{seed}"))
                for seed in settings.seeds
            ]
            table.add_row(algorithm, *_figures(runs))
    Console(file=sys.stdout).print(table)


def _figures(runs: list[tuple[float, float]]) -> tuple[str, str, str, str]:
    before, after = zip(*runs, strict=True)
    gains = [later - earlier for earlier, later in runs]
    spread = f"{stdev(gains):.1%}" if len(gains) > 1 else "-"
    return f"{fmean(before):.1%}", f"{fmean(after):.1%}", f"{fmean(gains):+.1%}", spread


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
