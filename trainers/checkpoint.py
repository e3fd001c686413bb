"""Checkpoints that are whole or not there, and how to go on from the newest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import msgspec
import torch
from safetensors import SafetensorError

from trainers.acting.curriculum import Progress
from trainers.errors import DamagedCheckpoint
from trainers.folder import update_name, update_number, write_whole
from trainers.models import Policy

WARM_START = "warm-start"
"""Name of the checkpoint that RL starts from, where the policy was warm-started."""

BEST = "best"
"""Name of the checkpoint that did best on the held-out items; it holds no optimizer."""


class Place(msgspec.Struct, frozen=True):
    """Where a scenario of the run stands."""

    drawn: int = 0
    """Items drawn from its sampler."""
    progress: Progress = Progress()
    """Of its horizon schedule."""


class State(msgspec.Struct, frozen=True):
    """What a run knows besides its weights; horizon, learning rate and weight of the KL follow from it."""

    update: int = 0
    """Updates done."""
    places: dict[str, Place] = {}
    """Of each scenario by its name in the mix; the only one has none."""
    kl_scale: float = 1.0
    """What `rl.kl_coef` is multiplied by to come to `rl.kl_target`."""

    def place(self, part: str = "") -> Place:
        """Where a scenario stands."""
        return self.places.get(part, Place())


class _Manifest(msgspec.Struct, frozen=True):
    state: State
    files: dict[str, int]
    """Size of every other file, in bytes."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: State, policy: Policy, optimizer: torch.optim.Optimizer, *, keep: int) -> None:
        """Writes the checkpoint of an update; then removes all but the newest `keep` and what was left half done."""
        with _whole_folder(self.folder / update_name(state.update), state) as folder:
            policy.save_weights(folder / "weights.safetensors")
            torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        for old in self._updates()[:-keep]:
            shutil.rmtree(old)
        for leftover in self.folder.glob(".*.partial"):
            shutil.rmtree(leftover)

    def save_warm_start(self, policy: Policy) -> None:
        """Writes the weights that RL starts from; they are kept."""
        with _whole_folder(self.folder / WARM_START, State()) as folder:
            policy.save_weights(folder / "weights.safetensors")

    def save_best(self, state: State, policy: Policy) -> None:
        """Writes the weights in place of those that were best before."""
        with _whole_folder(self.folder / BEST, state) as folder:
            policy.save_weights(folder / "weights.safetensors")

    def best(self) -> int | None:
        """The update whose weights are kept as the best, `None` if there are none yet."""
        path = self.folder / BEST
        return read_state(path).update if is_complete(path) else None

    def newest(self) -> Path | None:
        """The newest complete checkpoint: of an update, else of the warm start, else `None`."""
        found = [self.folder / WARM_START, *self._updates()]
        return next((path for path in reversed(found) if is_complete(path)), None)

    def _updates(self) -> list[Path]:
        return sorted(self.folder.glob("update-*"), key=update_number)


def restore(path: Path, policy: Policy, optimizer: torch.optim.Optimizer | None = None) -> State:
    """Loads a checkpoint into a policy, and into its optimizer where it holds one; gives the state it was saved in.

    Raises:
        DamagedCheckpoint: one of its files cannot be read.
        PolicyError: it is of another model.
    """
    weights, moments = path / "weights.safetensors", path / "optimizer.pt"
    with _demand_readable(weights):
        policy.load_weights(weights)
    if optimizer is not None and moments.exists():
        with _demand_readable(moments):
            optimizer.load_state_dict(torch.load(moments, weights_only=True))
    return read_state(path)


@contextmanager
def _demand_readable(file: Path) -> Iterator[None]:
    """An older checkpoint is not taken in silence: it would cost updates that are only said to be there."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (SafetensorError, UnpicklingError, EOFError, RuntimeError, ValueError) as error:
        raise DamagedCheckpoint(
            f"{file} is damaged ({error}). Without the folder {file.parent} "
            "a run goes on from the checkpoint before it."
        ) from error


def is_complete(path: Path) -> bool:
    """Whether a folder is a checkpoint, and each of its files has the size it was written with."""
    try:
        files = _manifest(path).files
    except (OSError, msgspec.DecodeError):
        return False
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    return all(sizes.get(name) == size for name, size in files.items())


def read_state(path: Path) -> State:
    """The state that a checkpoint was saved in."""
    return _manifest(path).state


def _manifest(path: Path) -> _Manifest:
    return msgspec.json.decode((path / "state.json").read_bytes(), type=_Manifest)


@contextmanager
def _whole_folder(path: Path, state: State) -> Iterator[Path]:
    """A folder to fill, which takes its name only once all that is in it has reached the disk."""
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    sizes = {}
    for file in partial.iterdir():
        sizes[file.name] = file.stat().st_size
        _flush(file)
    write_whole(partial / "state.json", msgspec.json.encode(_Manifest(state, sizes)))
    _flush(partial)
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
