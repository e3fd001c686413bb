"""The log-probability of every sampled token of a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainers.learning.batch import Row
from trainers.models import Policy

CHUNK = 1024
"""Tokens whose log-softmax is taken at a time."""


def token_logprobs(
    model: Any, row: Row, temperature: float = 1.0, *, entropy_grad: bool = False
) -> tuple[Tensor, Tensor]:
    """One forward pass over a row; the logits are made only where a sampled token is predicted.

    Args:
        model: a causal language model of transformers, with or without a peft adapter, on the row's device.
        row: what to score.
        temperature: the logits are divided by it, as they were when the tokens were sampled.
        entropy_grad: whether the entropy can be differentiated too, which keeps all probabilities in memory.

    Returns:
        Log-probability and entropy at each sampled token, both [A], in float32 or better.
    """
    logits = model(
        input_ids=row.ids[None],
        position_ids=row.position_ids[None],
        attention_mask=_additive(row.visible(), model.dtype),
        logits_to_keep=row.predict_at,
        use_cache=False,
    ).logits.squeeze(0)  # [A, V]
    chunks = zip(logits.split(CHUNK), row.target_ids.split(CHUNK), strict=True)
    logprobs, entropies = zip(
        *(_score(part, target, temperature, entropy_grad) for part, target in chunks), strict=True
    )
    return torch.cat(logprobs), torch.cat(entropies)


@torch.no_grad()
def reference_logprobs(policy: Policy, row: Row, temperature: float) -> Tensor:
    """The same under the policy's reference [A]."""
    with policy.reference() as model:
        return token_logprobs(model, row, temperature)[0]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers to add to attention scores: each layer would convert booleans for itself."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, float("-inf"))


def _score(
    logits: Tensor, target_ids: Tensor, temperature: float, entropy_grad: bool
) -> tuple[Tensor, Tensor]:
    """Log-probability of the targets, and entropy, from logits [C, V]."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
    total = precise.logsumexp(-1)  # [C]
    logprobs = precise.gather(-1, target_ids[:, None]).squeeze(-1) - total
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        # -sum p log p = logsumexp - sum p * logit
        entropy = total - (precise.softmax(-1) * precise).sum(-1)
    return logprobs, entropy
