"""How much better each episode was than expected: free functions of tensors and scalars."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6
"""Added to the standard deviation; scores whose standard deviation is no larger are equal up to rounding."""


def grpo(scores: Tensor, groups: Tensor, *, scale_by_std: bool = True) -> Tensor:
    """Group-relative advantages, `(score - mean) / (std + 1e-6)` over each group.

    The standard deviation is the unbiased one (divided by n - 1), as in the code published with
    AgentGym-RL; the formula is eq. 3 of DeepSeekMath (arXiv:2402.03300). A group whose scores are equal
    up to rounding, and a group of one, have nothing to compare: exactly 0.

    >>> grpo(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.7]), torch.tensor([5, 5, 5, 5, 9]))
    tensor([ 1.5000, -0.5000, -0.5000, -0.5000,  0.0000])

    Args:
        scores: final score of each episode [N].
        groups: episodes with the same number are compared with each other [N].
        scale_by_std: divide by the standard deviation; without it only the mean is taken off.

    Returns:
        One advantage per episode [N], float32.
    """
    group: Tensor = groups.unique(return_inverse=True)[1]  # [N]
    count = group.bincount()  # [G]
    nothing = torch.zeros(len(count), dtype=torch.float64)
    centred = scores.double() - (nothing.index_add(0, group, scores.double()) / count)[group]  # [N]
    variance = nothing.index_add(0, group, centred**2) / (count - 1).clamp(min=1)  # [G]
    std = variance.sqrt()[group]  # [N]
    advantages = centred / (std + EPSILON) if scale_by_std else centred
    return advantages.where(std > EPSILON, 0.0).float()
