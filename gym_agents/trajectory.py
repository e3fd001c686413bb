"""One attempt at one item, from its first observation to its outcome; JSON Lines in and out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec


class Outcome(StrEnum):
    """How an episode ended; exactly one."""

    SUCCESS = "success"
    FAILURE = "failure"
    """The world ended it without success."""
    HORIZON_CUT = "horizon_cut"
    """The turn limit, or a limit of the world's own, cut it."""
    LENGTH_CUT = "length_cut"
    """No room was left for another token."""
    ENV_ERROR = "env_error"
    """The environment failed; never scored, never trained."""


CUTS = frozenset({Outcome.HORIZON_CUT, Outcome.LENGTH_CUT})
"""Ends that a limit made, not the world."""


class Generation(msgspec.Struct, frozen=True):
    """One piece of text that the policy sampled, with what it was appended to.

    The tokens of an episode are the concatenation of `context_ids + sampled_ids` over its generations,
    up to the next one that is `fresh`.
    """

    context_ids: tuple[int, ...]
    """Ids appended before sampling: template and observation, never trained."""
    sampled_ids: tuple[int, ...]
    """Ids as sampled, the end token included where it was sampled."""
    logprobs: tuple[float, ...]
    """Log-probability of each sampled id under the policy that sampled it, at its temperature."""
    weight_version: int = 0
    fresh: bool = False
    """True where a new context begins instead of extending the one before."""
    part: str = "act"
    """What it was for: `act`, `plan`, `reflect`."""


class Turn(msgspec.Struct, frozen=True):
    """The agent's reply to one observation and what it earned."""

    observation: str
    """What the agent saw before it replied."""
    reply: str
    reward: float
    score: float
    valid: bool
    command: str | None
    generations: tuple[Generation, ...] = ()


class Trajectory(msgspec.Struct, frozen=True):
    """A whole episode."""

    scenario: str
    task: str | None
    item_id: str
    seed: int
    options: dict[str, Any]
    instruction: str
    turns: tuple[Turn, ...]
    final_observation: str
    outcome: Outcome
    score: float
    """The final score in [0, 1]: the sum of the turns' rewards."""
    group: int = 0
    """Episodes of one item that are compared with each other share it."""
    member: int = 0
    horizon: int | None = None
    """The turn limit in force."""
    final_context_ids: tuple[int, ...] = ()
    """Where it was cut: what the policy would have seen next, appended to the last context; empty where the agent
    would have begun a new one."""
    update: int = 0
    error: str | None = None
    """What failed, for an `env_error`; why the last reply was refused, for a `failure` by it."""

    @property
    def success(self) -> bool:
        """The world's own verdict."""
        return self.outcome is Outcome.SUCCESS


def write(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Appends trajectories to a JSON Lines file."""
    encode = msgspec.json.Encoder().encode
    with path.open("ab") as file:
        file.writelines(encode(trajectory) + b"\n" for trajectory in trajectories)


def read(path: Path) -> Iterator[Trajectory]:
    """The trajectories of a JSON Lines file.

    Raises:
        ValueError: naming the file and the line that does not fit.
    """
    decoder = msgspec.json.Decoder(Trajectory)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
