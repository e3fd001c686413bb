"""Drawing tokens: one uniform number per token, fixed by the request's seed, through the inverse of the CDF."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from trainers.acting.engines.base import Sampling
from trainers.errors import PolicyError

_SHARE = 256
"""The cumulative distribution is built over shares of so many tokens first, then inside the one that is hit."""


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

    Raises:
        PolicyError: a logit is not a number, or infinite.
    """
    probabilities = torch.softmax(_tempered(logits.float(), samplings), dim=-1)
    ids = _inverse_cdf(_nucleus(probabilities, samplings), numbers)
    greedy = [sampling.temperature == 0 for sampling in samplings]
    if any(greedy):
        ids = torch.where(torch.tensor(greedy, device=ids.device), logits.argmax(-1), ids)
    chosen = probabilities.gather(-1, ids[:, None])[:, 0]
    return ids.tolist(), chosen.log().tolist()


def _tempered(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    temperatures = [sampling.temperature or 1.0 for sampling in samplings]
    if all(temperature == 1 for temperature in temperatures):
        return logits
    return logits / logits.new_tensor(temperatures)[:, None]


def _nucleus(probabilities: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Zero outside the fewest likeliest tokens that hold `top_p` of the mass."""
    if all(sampling.top_p >= 1 for sampling in samplings):
        return probabilities
    top_p = probabilities.new_tensor([sampling.top_p for sampling in samplings])
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * (before < top_p[:, None]))


def _inverse_cdf(weights: Tensor, numbers: Sequence[float]) -> Tensor:
    """For each row of `weights` `[rows, vocabulary]`, the token on which its number of the total weight falls."""
    shares = F.pad(weights, (0, -weights.shape[1] % _SHARE)).unflatten(1, (-1, _SHARE))
    sums = shares.sum(-1).double()
    total = sums.sum(-1)
    if not total.isfinite().all():
        raise PolicyError("The policy's logits are not finite, so that nothing can be sampled.")
    target = total * sums.new_tensor(numbers)
    share, before = _hit(sums, target)
    inside = shares[torch.arange(len(shares), device=shares.device), share].double()
    return share * _SHARE + _hit(inside, target - before)[0]


def _hit(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The first position whose cumulative weight exceeds the target (the last one that weighs anything, if
    rounding put the target at the end), and the cumulative weight before it."""
    cumulative = weights.cumsum(-1)
    last = torch.nextafter(cumulative[:, -1], torch.zeros_like(target))
    at = torch.searchsorted(cumulative, torch.minimum(target, last)[:, None], right=True)
    return at[:, 0], (cumulative.gather(-1, at) - weights.gather(-1, at))[:, 0]
