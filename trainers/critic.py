"""The critic: what score a state still promises, read off the policy's own view of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Critic(nn.Module):
    """A value head on the policy's last hidden states, which pulls on nothing but itself.

    It costs no second model, no second pass and next to no memory beside a large policy, and no weight has to
    balance two losses in one backbone: the policy's gradient is that of the policy loss alone. The price is that
    it can only tell apart what the policy's states tell apart. Its values are 0 before it has learned anything.
    """

    def __init__(self, width: int, *, seed: int = 0) -> None:
        """A head for hidden states of so many features; `seed` fixes its first weights."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            first, self.last = nn.Linear(width, width), nn.Linear(width, 1)
            self.first = nn.Sequential(nn.LayerNorm(width), first, nn.Tanh())
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, states: Tensor) -> Tensor:
        """The value of each state, [..., width] to [...]; no gradient goes back into the states."""
        values: Tensor = self.last(self.first(states.detach().to(self.last.weight.dtype)))
        return values.squeeze(-1)


@contextmanager
def last_states(model: Any) -> Iterator[list[Tensor]]:
    """Notes the hidden states that a forward pass makes logits of, [1, A, width] for each pass."""
    seen: list[Tensor] = []
    head = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    try:
        yield seen
    finally:
        handle.remove()
