"""Resident memory of the trainer over many updates of the tiny model.

python -m benchmarks.trainer_memory --updates 200
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import tyro
from rich.console import Console


@dataclass(frozen=True)
class Settings:
    """What to run."""

    updates: int = 200
    """Updates of the run."""
    recipe: Path = Path("trainers/recipes/tiny_textcraft.toml")
    """Its recipe."""
    every: int = 20
    """Updates between two figures."""


def main(settings: Settings) -> None:
    """Runs the trainer as a child, and prints its memory as its metrics grow."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder, "run", "metrics.jsonl")
        command = [
            sys.executable,
            "-m",
            "trainers",
            f"@{settings.recipe}",
            "--run.folder",
            str(metrics.parent),
        ]
        command += ["--rl.updates", str(settings.updates), "--run.checkpoint_every", str(settings.every)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as trainer:
            told = 0
            while trainer.poll() is None:
                time.sleep(0.2)
                done = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
                if done >= told + settings.every:
                    told = done
                    megabytes = psutil.Process(trainer.pid).memory_info().rss / 2**20
                    console.print(f"update {done:>4}: {megabytes:,.0f} MB")
    sys.exit(trainer.returncode)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
