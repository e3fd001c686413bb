"""Trains a policy on a vectorised text environment, or evaluates one.

    python -m trainers [train] @trainers/recipes/textcraft.toml [--section.key value ...] [--dry-run]
    python -m trainers evaluate @trainers/recipes/textcraft.toml [--checkpoint folder] [--section.key value ...]

A recipe holds the keys below as TOML tables; later flags win over it. --dry-run checks everything and prints
what would be run. --env.options.<name> sets an option of the scenario.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from gym_agents.errors import AgentGymError
from trainers.config import Config
from trainers.folder import RunFolder, new_folder_name
from trainers.settings import ConfigError, load, to_toml


def main(arguments: Sequence[str]) -> int:
    """Runs the command; the exit status is 0, 1 for a failure, 2 for mistakes in the call, 130 for Ctrl-C."""
    words = list(arguments)
    command = words.pop(0) if words[:1] in (["train"], ["evaluate"]) else "train"
    if "--help" in words or "-h" in words:
        tyro.cli(
            Config, args=["--help"], prog="python -m trainers", description=__doc__, use_underscores=True
        )
    try:
        checkpoint = _take(words, "--checkpoint") if command == "evaluate" else None
        config = load([word for word in words if word != "--dry-run"])
        if "--dry-run" in words:
            print(to_toml(config), end="")
            return 0
        return _run(command, config, checkpoint)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except AgentGymError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _run(command: str, config: Config, checkpoint: str | None) -> int:
    from trainers import runner  # PyTorch takes seconds to load: mistakes are told before

    folder = Path(config.run.folder or new_folder_name(config.env.id, command))
    try:
        runner.train(config, folder) if command == "train" else runner.evaluate(config, folder, checkpoint)
    except KeyboardInterrupt:
        print(f"\nInterrupted. {_how_to_resume(RunFolder(folder).config)}", file=sys.stderr)
        return 130
    return 0


def _take(words: list[str], flag: str) -> str | None:
    """Takes a flag and its value out of the words."""
    if flag not in words:
        return None
    at = words.index(flag)
    if at + 1 == len(words):
        raise ConfigError([f"{flag}: needs a value"])
    value = words[at + 1]
    del words[at : at + 2]
    return value


def _how_to_resume(config: Path) -> str:
    if not config.exists():
        return "Nothing was written yet."
    python = os.path.relpath(sys.executable)
    return f"Go on with: {python} -m trainers @{config} --run.folder {config.parent}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
