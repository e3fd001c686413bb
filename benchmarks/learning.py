"""Whether every algorithm and method learns: held-out success before and after, over several seeds.

    python -m benchmarks.learning --updates 20 --seeds 0 1 2
    python -m benchmarks.learning --model smollm2 --updates 12 --seeds 0 --algorithms grpo rloo reinforce++ ppo

The tiny random model learns a world of letters, from nothing. The embedded 135M model learns TextCraft's Depth1; all of
its runs go on from one warm start, so that they begin with the same policy.
"""

from __future__ import annotations

import sys
import tempfile
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

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

CRAFTING = ("@trainers/recipes/textcraft.toml", "--env.tasks", "Depth1", "--eval.attempts", "4")
"""What every run of the 135M model begins with."""

OFFLINE: dict[str, dict[str, float]] = {
    "sft": {"sft.updates": 15, "sft.learning_rate": 3e-3, "warm_start.episodes": 32},
    "dpo": {
        "dpo.items": 8,
        "dpo.attempts": 32,
        "dpo.min_score": 0.3,
        "dpo.pairs_per_item": 8,
        "dpo.updates": 30,
        "dpo.learning_rate": 5e-3,
    },
    "evolve": {
        "evolve.items": 8,
        "evolve.attempts": 16,
        "evolve.min_score": 0.6,
        "evolve.updates": 4,
        "evolve.steps": 10,
        "evolve.learning_rate": 3e-3,
    },
}
"""The settings of `run.method` where it is another than rl: a few correct replies among many are all it has."""


@dataclass(frozen=True)
class Settings:
    """What to run."""

    algorithms: tuple[str, ...] = (*ALGORITHMS, *OFFLINE)
    """Which rows of the table: algorithms of rl, and other methods."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run each."""
    updates: int = 20
    """Of each run of rl."""
    model: Literal["tiny", "smollm2"] = "tiny"
    """The policy; smollm2 takes about twelve minutes a run of rl on two cores."""
    folder: Path | None = None
    """Where the runs are kept; unset, they are not."""


def learn_letters(algorithm: str, seed: int, updates: int, folder: Path) -> None:
    """A run of the tiny model."""
    if NAME not in gymnasium.registry:
        register_world(NAME, WORLD, max_episode_steps=3)
    flags: dict[str, Any] = {
        "run.seed": seed,
        "run.checkpoint_every": updates,
        "env.id": NAME,
        "env.num_envs": 64,
        "policy.model": "tiny",
        "policy.lora_rank": 0,
        "policy.max_context": 256,
        "sampling.max_new_tokens": 1,
        "horizon.stages": [3],
        "eval.attempts": 16,
        **(_online(algorithm, updates) if algorithm in ALGORITHMS else _offline(algorithm)),
    }
    runner.train(load(_words(flags)), folder)


def learn_crafting(algorithm: str, seed: int, updates: int, folder: Path) -> None:
    """A run of the 135M model, from the warm start that its neighbours share."""
    start = folder.parent / f"warm-start-{seed}"
    if not start.exists():
        flags: dict[str, Any] = {
            "run.seed": seed,
            "run.method": "sft",
            "sft.updates": 4,
            "warm_start.steps": 0,
        }
        runner.train(load([*CRAFTING, *_words(flags)]), start)
    flags = {
        "run.seed": seed,
        "run.checkpoint_every": updates,
        "policy.model": start / "policy",
        "warm_start.steps": 0,
        "horizon.every": updates // 2,
        "rl.refill_groups": 0,
        "rl.updates": updates,
        **({"rl.algorithm": algorithm} if algorithm in ALGORITHMS else {"run.method": algorithm}),
    }
    runner.train(load([*CRAFTING, *_words(flags)]), folder)


def _words(flags: Mapping[str, Any]) -> list[str]:
    """Flags as they stand on the command line."""
    return [
        word
        for name, value in flags.items()
        for word in (f"--{name}", *map(str, value if isinstance(value, list) else [value]))
    ]


def _online(algorithm: str, updates: int) -> dict[str, Any]:
    return {
        "horizon.schedule": "stepwise",
        "horizon.stages": [2, 3],
        "horizon.every": updates // 2,
        "rl.algorithm": algorithm,
        "rl.updates": updates,
        "rl.learning_rate": 2e-3,
        "rl.minibatches": 2,
    }


def _offline(method: str) -> dict[str, Any]:
    return {"run.method": method, **OFFLINE[method]}


def main(settings: Settings) -> None:
    """Runs every algorithm with every seed, and prints one table."""
    table = Table("model", "algorithm", "before", "after", "gain", "spread of seeds")
    learn = learn_letters if settings.model == "tiny" else learn_crafting
    with tempfile.TemporaryDirectory() as passing:
        for algorithm in settings.algorithms:
            folders = [Path(settings.folder or passing, f"{algorithm}-{seed}") for seed in settings.seeds]
            for seed, folder in zip(settings.seeds, folders, strict=True):
                learn(algorithm, seed, settings.updates, folder)
            table.add_row(settings.model, algorithm, *_figures([*map(_before_and_after, folders)]))
    Console(file=sys.stdout).print(table)


def _before_and_after(folder: Path) -> tuple[float, float]:
    """Held-out success, sampled."""
    evaluations = RunFolder(folder).read_evaluations()
    return success(evaluations[0], "sampled").mean, success(evaluations[-1], "sampled").mean


def _figures(runs: list[tuple[float, float]]) -> tuple[str, str, str, str]:
    before, after = zip(*runs, strict=True)
    gains = [later - earlier for earlier, later in runs]
    spread = f"{stdev(gains):.1%}" if len(gains) > 1 else "-"
    return f"{fmean(before):.1%}", f"{fmean(after):.1%}", f"{fmean(gains):+.1%}", spread


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
