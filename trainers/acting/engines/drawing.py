"""Drawing tokens: one uniform number per token, fixed by the request's seed, and the inverse of the CDF."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainers.acting.engines.base import Sampling


def uniforms(seed: tuple[int, ...], count: int) -> list[float]:
    """The `count` uniform numbers in [0, 1) of a generation; a function of its seed alone."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))
    numbers: list[float] = generator.random(count).tolist()
    return numbers


def draw(
    logits: Tensor, samplings: Sequence[Sampling], numbers: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token per row of `logits` `[rows, vocabulary]`, and its log-probability.

    The log-probability is that of the whole distribution at the row's temperature (at 1 for a greedy row), before
    top-p. A row's token depends on its own logits, sampling and number alone.
    """
    temperature = logits.new_tensor(
        [sampling.temperature or 1.0 for sampling in samplings], dtype=torch.float32
    )
    logprobs = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    greedy = [sampling.temperature == 0 for sampling in samplings]
    ids = logprobs.argmax(-1) if all(greedy) else _inverse_cdf(_nucleus(logprobs.exp(), samplings), numbers)
    if any(greedy) and not all(greedy):
        ids = torch.where(torch.tensor(greedy, device=ids.device), logprobs.argmax(-1), ids)
    return ids.tolist(), logprobs.gather(-1, ids[:, None])[:, 0].tolist()


def _nucleus(probabilities: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Zero outside the fewest likeliest tokens that hold `top_p` of the mass."""
    if all(sampling.top_p >= 1 for sampling in samplings):
        return probabilities
    top_p = probabilities.new_tensor([sampling.top_p for sampling in samplings])
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * (before < top_p[:, None]))


def _inverse_cdf(weights: Tensor, numbers: Sequence[float]) -> Tensor:
    """The first token whose cumulative weight exceeds its row's number times the total."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1]
    threshold = torch.minimum(
        total * total.new_tensor(numbers), torch.nextafter(total, torch.zeros_like(total))
    )
    return torch.searchsorted(cumulative, threshold[:, None], right=True)[:, 0]
