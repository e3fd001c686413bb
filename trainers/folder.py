"""The files of one run, and what it takes to go on with it."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gym_agents import trajectory
from gym_agents.trajectory import Trajectory
from trainers.acting.evaluate import Evaluation, Way, success
from trainers.config import Config
from trainers.settings import ConfigError, load, sections, to_toml

if TYPE_CHECKING:  # its module loads PyTorch
    from trainers.learning.fingerprints import Fingerprints

MAY_CHANGE = frozenset(
    {
        "run.folder",
        "run.checkpoint_every",
        "run.keep_checkpoints",
        "run.note",
        "run.trackers",
        "env.server",
        "env.replicas",
        "env.max_error_rate",
        "engine.server",
        "engine.key",
        "engine.deadline",
        "engine.attempts",
        "rl.updates",
        "sft.updates",
        "dpo.updates",
        "evolve.updates",
    }
)
"""What a resumed run may be asked to do differently; everything else would make it another run."""

PACKAGES = ("gym-agents", "gymnasium", "numpy", "torch", "transformers", "accelerate", "peft")


class RunFolder:
    """Where a run keeps what it was asked, what it did and what became of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.metrics = path / "metrics.jsonl"
        self.curve = path / "curve.png"
        self.policy = path / "policy"
        self.served = path / "served"
        self.demonstrations = path / "demonstrations.jsonl"
        self.explored = path / "explored.jsonl"
        self.checkpoints = path / "checkpoints"
        self.trajectories = path / "trajectories"
        self.evaluations = path / "evaluations"

    def command(self, *flags: str, name: str = "train") -> str:
        """The command line that goes on with what is in the folder."""
        words = [os.path.relpath(sys.executable), "-m", "trainers", name, f"@{self.config}"]
        return shlex.join([*words, "--run.folder", str(self.path), *flags])

    def unsound(self, update: int, process: int) -> Path:
        """Where a process keeps the rows of a step that must not be made."""
        return self.path / f"unsound-{update_name(update)}-process-{process}.pt"

    def demand_fit(self, config: Config) -> None:
        """Refuses a configuration that the folder's content does not allow.

        Raises:
            ConfigError: if the folder holds a run that was configured otherwise, or files but no run, or is none.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError([f"run.folder: {self.path} is no folder"])
        if not str(self.path).isprintable():  # such a name could not be noted in the folder's files
            raise ConfigError([f"run.folder: {str(self.path)!a} holds characters that are no text"])
        if not self.config.exists():
            if self.path.exists() and any(self.path.iterdir()):
                raise ConfigError([f"run.folder: {self.path} holds files, but no run"])
            return
        before = load([f"@{self.config}"])
        changed = [name for name in _changed_fields(before, config) if name not in MAY_CHANGE]
        if changed:
            raise ConfigError(
                [
                    f"{name}: the run in {self.path} was started with {_fields(before).get(name)!r}, "
                    f"not {_fields(config).get(name)!r}"
                    for name in changed
                ]
            )

    def make(self, config: Config, **versions: str) -> None:
        """Makes what is not there yet, and notes the configuration and what the run runs on.

        Raises:
            ConfigError: there can be no such folder.
        """
        try:
            for path in (self.trajectories, self.evaluations, self.checkpoints):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError([f"run.folder: {self.path} cannot be made: {error.strerror}"]) from error
        write_whole(self.config, to_toml(config).encode())
        facts = {"python": platform.python_version(), "machine": platform.platform(), **versions}
        write_whole(self.path / "versions.json", _pretty({**facts, **dict(_installed(PACKAGES))}))

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Adds one update's line."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of all updates so far; one that broke off at the end was never noted."""
        if not self.metrics.exists():
            return []
        whole, _, _ = self.metrics.read_text(encoding="utf-8").rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def forget_after(self, update: int) -> None:
        """Drops what an interrupted run noted of updates that will be played again."""
        if self.metrics.exists():
            rows = [row for row in self.read_metrics() if row["update"] <= update]
            write_whole(self.metrics, "".join(json.dumps(row) + "\n" for row in rows).encode())
        for path in self.trajectories.glob("update-*"):
            if update_number(path) > update:
                path.unlink()

    def write_trajectories(self, update: int, episodes: Iterable[Trajectory]) -> None:
        """Keeps the episodes of an update."""
        replace_episodes(self.trajectories / f"{update_name(update)}.jsonl", episodes)

    def write_fingerprints(self, update: int, found: Fingerprints) -> None:
        """Keeps what an update was made from."""
        write_whole(self._fingerprints(update_name(update)), msgspec.json.encode(found))

    def read_fingerprints(self, name: str) -> Fingerprints:
        """What the update of that name was made from; nothing, where nothing was learned or noted."""
        path = self._fingerprints(name)
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[int]]) if path.exists() else {}

    def _fingerprints(self, name: str) -> Path:
        return self.trajectories / f"{name}.trained.json"

    def read_trajectories(self) -> list[Trajectory]:
        """The episodes of all updates so far, in their order."""
        paths = sorted(self.trajectories.glob("update-*.jsonl"), key=update_number)
        return [episode for path in paths for episode in trajectory.read(path)]

    def write_evaluation(self, evaluation: Evaluation, episodes: Mapping[Way, Sequence[Trajectory]]) -> None:
        """Keeps an evaluation: its episodes first, so that a result is never there without them."""
        name = update_name(evaluation.update)
        for way, played in episodes.items():
            replace_episodes(self.evaluations / f"{name}-{way}.jsonl", played)
        write_whole(self.evaluations / f"{name}.json", _pretty(msgspec.to_builtins(evaluation)))

    def read_evaluation(self, update: int) -> Evaluation | None:
        """The evaluation after so many updates, where it is finished."""
        path = self.evaluations / f"{update_name(update)}.json"
        return msgspec.json.decode(path.read_bytes(), type=Evaluation) if path.exists() else None

    def best_update(self) -> int | None:
        """The update with the highest sampled success on held-out items, the first of equals."""
        known = [evaluation for evaluation in self.read_evaluations() if evaluation.rates("sampled")]
        best = max(known, key=lambda evaluation: success(evaluation, "sampled").mean, default=None)
        return None if best is None else best.update

    def read_evaluations(self) -> list[Evaluation]:
        """All finished evaluations, in the order of their updates."""
        paths = sorted(self.evaluations.glob("update-*.json"), key=update_number)
        return [msgspec.json.decode(path.read_bytes(), type=Evaluation) for path in paths]


def new_folder_name(config: Config, command: str) -> str:
    """`runs/textcraft-train-20260131-120000-4711` for `AgentGym/TextCraft-v0`, with the process that names it."""
    ids = [part.env.id for part in config.parts.values()]
    short = "-".join(name.rpartition("/")[2].rpartition("-v")[0] or name for name in ids)
    return f"runs/{short.lower()}-{command}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def update_name(update: int) -> str:
    """Name of what belongs to an update."""
    return f"update-{update:04d}"


def update_number(path: Path) -> int:
    """The update that a file or folder named so belongs to."""
    return int(path.name.removeprefix("update-").partition(".")[0])


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that is never seen half written, however the process ends."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def replace_episodes(path: Path, episodes: Iterable[Trajectory]) -> None:
    """Writes a file of trajectories in place of the one that may be there."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    trajectory.write(partial, episodes)
    partial.replace(path)


def _changed_fields(before: Config, after: Config) -> list[str]:
    """`section.key` of every field in which two configurations differ."""
    earlier, later = _fields(before), _fields(after)
    return [name for name in earlier | later if earlier.get(name) != later.get(name)]


def _fields(config: Config) -> dict[str, Any]:
    """The value of each `section.key`."""
    return {
        f"{section}.{key}": value
        for section, fields in sections(config).items()
        for key, value in fields.items()
    }


def _pretty(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _installed(packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    for name in packages:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            yield name, "not installed"
