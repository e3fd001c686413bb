"""Losses: free functions of flat tensors over sampled tokens.

Notation: A is the number of sampled tokens. Every loss is a weighted *sum*; the weights of an update sum to
1 over all its rows and all processes, so that adding up the rows' losses gives the mean over the update's
tokens, whatever the rows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Tensor:
    """PPO's clipped objective, negated (eq. 7 of arXiv:1707.06347).

    Args:
        logprobs: of the sampled tokens under the policy now [A].
        old_logprobs: the same under the policy that the ratio is taken to [A].
        advantages: [A].
        weights: [A], summing to 1 over the update.
        clip_low: the ratio is clipped to at least 1 - clip_low.
        clip_high: and to at most 1 + clip_high; a wider upper side is the clip-higher of DAPO (arXiv:2503.14476).
        dual_clip: above 0, the largest ratio that counts for a negative advantage (dual-clip PPO, arXiv:1912.09729).

    Returns:
        Scalar.
    """
    ratio = (logprobs - old_logprobs).exp()  # [A]
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    # min(ratio * advantage, clip(ratio) * advantage)
    objective = torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip:
        # max(objective, dual_clip * advantage) where the advantage is negative
        objective = objective.where(advantages >= 0, torch.maximum(objective, dual_clip * advantages))
    return -(weights * objective).sum()


def clip_fraction(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Tensor:
    """Share of tokens whose gradient the clip removes; arguments as for `policy_loss`."""
    ratio = (logprobs - old_logprobs).exp()
    above = (ratio > 1 + clip_high) & (advantages > 0)
    below = (ratio < 1 - clip_low) & (advantages < 0)
    far = (ratio > dual_clip) & (advantages < 0) if dual_clip else torch.zeros_like(above)
    return (weights * (above | below | far)).sum()


def value_loss(values: Tensor, returns: Tensor, weights: Tensor) -> Tensor:
    """Half the weighted squared error of the critic: all [A], scalar out."""
    return 0.5 * (weights * (values - returns) ** 2).sum()


def kl_k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Each token's log-ratio `policy - reference`; as a loss its gradient is 0 on average. Shapes as for `kl_k3`."""
    return logprobs - reference_logprobs


def kl_k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio: never negative, biased as a value, and its gradient is that of the KL on average."""
    return 0.5 * (logprobs - reference_logprobs) ** 2


def kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Each token's estimate of KL(policy || reference): `exp(d) - d - 1` with `d = reference - policy`.

    Never negative; its mean over the policy's own samples is the KL (k1, k2 and k3 are those of
    http://joschu.net/blog/kl-approx.html). None has an importance weight for tokens of an older policy.

    Args:
        logprobs: [A].
        reference_logprobs: [A].

    Returns:
        [A].
    """
    difference = reference_logprobs - logprobs
    return difference.expm1() - difference


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""By the names that `rl.kl_estimator` may take."""


def adapted_kl_scale(scale: float, kl: float, target: float) -> float:
    """What the KL's weight is multiplied by next, so that the KL comes to its target (eq. 2 f. of arXiv:1909.08593).

    >>> [round(adapted_kl_scale(1.0, kl, target=0.1), 6) for kl in (0.0, 0.1, 0.11, 5.0)]
    [0.98, 1.0, 1.01, 1.02]

    Args:
        scale: what it was multiplied by in the update that measured `kl`.
        kl: mean per token.
        target: above 0.
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return scale * (1 + 0.1 * error)


def sft_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Weighted negative log-likelihood of tokens to imitate: both [A], scalar out."""
    return -(weights * logprobs).sum()


def preference(logprobs: Tensor, reference_logprobs: Tensor, sides: Tensor) -> Tensor:
    """How much likelier than under the reference a pair's better side has become, less the same of its worse side.

    Args:
        logprobs: of all tokens that the agent sampled in both episodes [A].
        reference_logprobs: the same under the reference [A].
        sides: 1 on the better side's tokens and -1 on the worse one's [A].

    Returns:
        The difference of the two log-ratios, each summed over its tokens: scalar.
    """
    return (sides * (logprobs - reference_logprobs)).sum()


def dpo_loss(margin: Tensor) -> Tensor:
    """`-log sigmoid(margin)` of one pair, its margin being beta times `preference` (eq. 7 of arXiv:2305.18290)."""
    return -functional.logsigmoid(margin)
