"""How much better than expected each episode, or each sampled token, was: free functions of tensors and scalars.

Notation: N episodes, or the T sampled tokens of one episode, one after the other over all its turns. What the world
said in between is not there, so that rewards and values are carried across it, and takes no discount.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.config import SAME_SCORE


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
    centred, std, _ = _compare(scores, groups)
    advantages = centred / (std + SAME_SCORE) if scale_by_std else centred
    return advantages.masked_fill(std <= SAME_SCORE, 0.0).float()


def rloo(scores: Tensor, groups: Tensor) -> Tensor:
    """Score less the mean score of the *other* episodes of the group, leave-one-out (arXiv:2402.14740, eq. 9).

    >>> rloo(torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([5, 5, 5, 5]))
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])

    Args:
        scores: final score of each episode [N].
        groups: as for `grpo`; equal scores and a group of one give exactly 0 here too.

    Returns:
        One advantage per episode [N], float32.
    """
    centred, std, count = _compare(scores, groups)
    # score - (total - score) / (n - 1) = (score - mean) * n / (n - 1)
    advantages = centred * count / (count - 1).clamp(min=1)
    return advantages.masked_fill(std <= SAME_SCORE, 0.0).float()


def _compare(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each score less its group's mean, its group's unbiased standard deviation and its group's size [N]."""
    group: Tensor = groups.unique(return_inverse=True)[1]  # [N]
    count = group.bincount()  # [G]
    nothing = torch.zeros(len(count), dtype=torch.float64)
    centred = scores.double() - (nothing.index_add(0, group, scores.double()) / count)[group]  # [N]
    variance = nothing.index_add(0, group, centred**2) / (count - 1).clamp(min=1)  # [G]
    return centred, variance.sqrt()[group], count[group]


def token_rewards(rewards: Tensor, turns: Tensor) -> Tensor:
    """Each turn's reward on the last token of the turn that was sampled.

    The reward of a turn without a token goes to the token before it, or to the first.

    >>> token_rewards(torch.tensor([0.2, 0.8]), torch.tensor([0, 0, 1]))
    tensor([0.0000, 0.2000, 0.8000])

    Args:
        rewards: of each turn [turns].
        turns: index of the turn of each sampled token, in order [T].

    Returns:
        [T].
    """
    last = torch.searchsorted(turns, torch.arange(len(rewards)), right=True) - 1
    return torch.zeros(len(turns)).index_add(0, last.clamp(min=0), rewards)


def discounted_returns(rewards: Tensor, *, gamma: float) -> Tensor:
    """What each token still earns, `R_t = r_t + gamma * R_{t+1}`: [T] to [T].

    >>> discounted_returns(torch.tensor([0.0, 1.0]), gamma=0.5)
    tensor([0.5000, 1.0000])
    """
    nothing = torch.zeros_like(rewards)
    return gae(rewards, nothing, torch.zeros(()), gamma=gamma, gae_lambda=1.0)


def gae(rewards: Tensor, values: Tensor, last_value: Tensor, *, gamma: float, gae_lambda: float) -> Tensor:
    """Generalized advantage estimation over the sampled tokens of one episode (eq. 16 of arXiv:1506.02438).

    Args:
        rewards: earned with each token [T].
        values: of the state that each token was sampled in [T].
        last_value: of the state after the last token: 0 where the episode ended [].
        gamma: discount, once per sampled token.
        gae_lambda: 0 trusts the values for all that comes after a token, 1 not at all.

    Returns:
        Advantages [T]; with the values added they are what the critic should have said.
    """
    following = torch.cat([values[1:], last_value.to(values).reshape(1)])
    # delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)
    deltas = (rewards + gamma * following - values).tolist()
    advantages = [0.0] * len(deltas)
    carried = 0.0
    for at in reversed(range(len(deltas))):
        # A_t = delta_t + gamma * lambda * A_{t+1}
        advantages[at] = carried = deltas[at] + gamma * gae_lambda * carried
    return torch.tensor(advantages, dtype=values.dtype)


def whiten(advantages: Tensor) -> Tensor:
    """Mean 0 and unbiased standard deviation 1 over all tokens of an update [T]; exactly 0 where all are equal."""
    centred = advantages.double() - advantages.double().mean()
    std = (centred.square().sum() / max(1, len(advantages) - 1)).sqrt()
    return (centred / (std + SAME_SCORE)).masked_fill(std <= SAME_SCORE, 0.0).to(advantages.dtype)
