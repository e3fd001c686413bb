"""Trains a policy on a vectorised text environment, evaluates one, and handles what a run leaves.

    python -m trainers [train] @trainers/recipes/textcraft.toml [--section.key value ...] [--dry-run]
    python -m trainers evaluate @trainers/recipes/textcraft.toml [--checkpoint folder] [--section.key value ...]
    python -m trainers demos @trainers/recipes/textcraft.toml --output demos.jsonl [--section.key value ...]
    python -m trainers audit runs/mine
    python -m trainers export runs/mine --output folder [--checkpoint runs/mine/checkpoints/best]

A recipe holds the keys below as TOML tables; later flags win over it. --dry-run checks everything and prints
what would be run. --env.options.<name> sets an option of the scenario.

demos writes `warm_start.episodes` expert episodes of training items into a file. audit looks at every episode of a
run for an id that is trained on and was not sampled. export writes a run's policy, any adapter merged into it, into
a folder that plain transformers can load.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tyro

from gym_agents.errors import AgentGymError
from trainers.config import Config
from trainers.folder import RunFolder, new_folder_name
from trainers.settings import ConfigError, load, to_toml


def main(arguments: Sequence[str]) -> int:
    """Runs the command; the exit status is 0, 1 for a failure, 2 for mistakes in the call, 130 for Ctrl-C."""
    words = list(arguments)
    command = words.pop(0) if words and words[0] in COMMANDS else "train"
    if "--help" in words or "-h" in words:
        tyro.cli(
            Config, args=["--help"], prog="python -m trainers", description=__doc__, use_underscores=True
        )
    try:
        COMMANDS[command](words)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except AgentGymError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"\nInterrupted. {interrupt}", file=sys.stderr)
        return 130
    return 0


# PyTorch takes seconds to load: each command looks for mistakes before it does.


def _train(words: list[str]) -> None:
    if config := _configured(words):
        from trainers import runner

        folder = RunFolder(Path(config.run.folder or new_folder_name(config, "train")))
        with _resumable(folder, folder.command()):
            runner.train(config, folder.path)


def _evaluate(words: list[str]) -> None:
    checkpoint = _take(words, "--checkpoint")
    if checkpoint and not Path(checkpoint).is_dir():
        raise ConfigError([f"--checkpoint: {checkpoint} is no folder"])
    if config := _configured(words):
        from trainers import runner

        folder = RunFolder(Path(config.run.folder or new_folder_name(config, "evaluate")))
        flags = ("--checkpoint", checkpoint) if checkpoint else ()
        with _resumable(folder, folder.command(*flags, name="evaluate")):
            runner.evaluate(config, folder.path, checkpoint)


def _demos(words: list[str]) -> None:
    output = _output(words)
    if config := _configured(words, fills_folder=False):
        from trainers import runner

        runner.write_demonstrations(config, output)


def _audit(words: list[str]) -> None:
    folder = _run_folder("audit", words)
    from trainers import audit

    audit.demand_no_drift(folder)


def _export(words: list[str]) -> None:
    checkpoint, output = _take(words, "--checkpoint"), _output(words)
    folder = _run_folder("export", words)
    from trainers import runner

    runner.export(folder, checkpoint or str(folder), output)


COMMANDS = {"train": _train, "evaluate": _evaluate, "demos": _demos, "audit": _audit, "export": _export}


def _configured(words: list[str], *, fills_folder: bool = True) -> Config | None:
    """The configuration that the words ask for; with --dry-run it is printed, and nothing is to be done."""
    config = load([word for word in words if word != "--dry-run"])
    if fills_folder and config.run.folder:
        RunFolder(Path(config.run.folder)).demand_fit(config)
    if "--dry-run" in words:
        print(to_toml(config), end="")
        return None
    return config


def _run_folder(command: str, words: list[str]) -> Path:
    """The one word that is left, which must name a run."""
    if len(words) != 1 or not RunFolder(Path(words[0])).config.is_file():
        raise ConfigError([f"{command}: needs the folder of a run, not {' '.join(words) or 'nothing'}"])
    return Path(words[0])


def _output(words: list[str]) -> Path:
    """Where to write; what is there already is never overwritten."""
    output = _take(words, "--output")
    if output is None:
        raise ConfigError(["--output: is missing; it names what is to be written"])
    if Path(output).exists():
        raise ConfigError([f"--output: {output} is there already"])
    return Path(output)


@contextmanager
def _resumable(folder: RunFolder, command: str) -> Iterator[None]:
    """Where it is interrupted, says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        started = folder.config.exists()
        raise KeyboardInterrupt(f"Go on with: {command}" if started else "Nothing was written yet.") from None


def _take(words: list[str], flag: str) -> str | None:
    """Takes a flag and its value out of the words."""
    at = next((at for at, word in enumerate(words) if word.partition("=")[0] == flag), None)
    if at is None:
        return None
    _, equals, value = words.pop(at).partition("=")
    if not equals and at == len(words):
        raise ConfigError([f"{flag}: needs a value"])
    return value if equals else words.pop(at)
