"""What generates: requests of token ids in, sampled token ids out.

An engine holds *conversations*. A request appends tokens to one and samples from there; the engine may
keep what it has computed for a conversation until it is released, so nothing is encoded twice.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Finish = Literal["stop", "length"]
"""`length`: the token limit or the model's context ended it, not a stop id."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float = 1.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    max_new_tokens: int = 64
    """Most tokens of one generation."""


@dataclass(frozen=True)
class Request:
    """Append `context_ids` to the conversation, then sample."""

    conversation: Hashable
    """A new name opens a conversation; a known one is extended."""
    context_ids: Sequence[int]
    sampling: Sampling
    stop_ids: frozenset[int]
    """A sampled id of this set ends the generation, and is part of it."""
    seed: tuple[int, ...]
    """All the randomness of this generation is a function of it: (seed, update, item, member, turn)."""


@dataclass(frozen=True)
class Completion:
    """What was sampled for a request."""

    conversation: Hashable
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each sampled id, under the distribution at the sampling temperature (before top-p)."""
    finish: Finish
    weight_version: int


@dataclass
class Usage:
    """What the engine has done since it was made."""

    encoded_tokens: int = 0
    """Context tokens run through the model (the sampled ones not counted); shared prompts count once."""
    sampled_tokens: int = 0
    decode_steps: int = 0
    decode_rows: int = field(default=0)
    """Rows summed over decode steps: the mean batch is `decode_rows / decode_steps`."""


class Engine(Protocol):
    """What generates."""

    usage: Usage
    max_context: int
    """Most tokens that a conversation can hold."""
    missing: tuple[str, ...]
    """What training needs and this engine does not give; where there is any, it serves evaluation alone."""

    def submit(self, request: Request) -> None:
        """Queues a request; at most one per conversation at a time."""
        ...

    def collect(self) -> list[Completion]:
        """Runs until a queued request is complete; returns all that are, or `[]` if none is queued."""
        ...

    def release(self, conversation: Hashable) -> None:
        """Forgets a conversation and frees what it holds; unknown names are ignored."""
        ...

    def sync(self, weight_version: int) -> None:
        """The policy's weights changed: forget every conversation and whatever was computed from them."""
        ...

    def close(self) -> None:
        """Forgets every conversation and lets go of what it holds; nothing can be asked any more."""
        ...
