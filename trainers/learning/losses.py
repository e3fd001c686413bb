"""Losses: free functions of flat tensors over sampled tokens.

Notation: A is the number of sampled tokens. Every loss is a weighted *sum*; the weights of an update sum to
1 over all its rows and all processes, so that adding up the rows' losses gives the mean over the update's
tokens, whatever the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, *, clip_range: float
) -> Tensor:
    """PPO's clipped objective, negated (eq. 7 of arXiv:1707.06347).

    Args:
        logprobs: of the sampled tokens under the policy now [A].
        old_logprobs: the same under the policy that sampled them [A].
        advantages: [A].
        weights: [A], summing to 1 over the update.
        clip_range: epsilon; the ratio is clipped to [1 - epsilon, 1 + epsilon].

    Returns:
        Scalar.
    """
    ratio = (logprobs - old_logprobs).exp()  # [A]
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    # -min(ratio * advantage, clip(ratio) * advantage)
    return -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()


def clip_fraction(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor, *, clip_range: float
) -> Tensor:
    """Share of tokens whose gradient the clip removes; shapes as in `policy_loss`."""
    ratio = (logprobs - old_logprobs).exp()
    above = (ratio > 1 + clip_range) & (advantages > 0)
    below = (ratio < 1 - clip_range) & (advantages < 0)
    return (weights * (above | below)).sum()


def kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Each token's estimate of KL(policy || reference): `exp(d) - d - 1` with `d = reference - policy`.

    Never negative; its mean over the policy's own samples is the KL (k3 of
    http://joschu.net/blog/kl-approx.html). It has no importance weight for tokens of an older policy.

    Args:
        logprobs: [A].
        reference_logprobs: [A].

    Returns:
        [A].
    """
    difference = reference_logprobs - logprobs
    return difference.expm1() - difference


def sft_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Weighted negative log-likelihood of tokens to imitate: both [A], scalar out."""
    return -(weights * logprobs).sum()
