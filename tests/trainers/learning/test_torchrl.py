"""TorchRL, written by others for other tasks, computes the same numbers.

It raises gamma * lambda to powers in float32, so that advantages agree to a millionth.
"""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torch.distributions import Categorical
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value.functional import generalized_advantage_estimate, reward2go

from trainers.learning.advantages import discounted_returns, gae
from trainers.learning.losses import clip_fraction, policy_loss

CLIP = {"clip_low": 0.2, "clip_high": 0.2}


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.99, 0.95), (0.5, 0.0)])
def test_advantages_and_returns(gamma: float, gae_lambda: float) -> None:
    draw = torch.Generator().manual_seed(0)
    rewards, values = torch.rand((2, 40), generator=draw, dtype=torch.float64)
    ended, last = torch.zeros(40, 1, dtype=torch.bool), torch.tensor(0.3, dtype=torch.float64)
    ended[-1] = True
    following = torch.cat([values[1:], last.reshape(1)])
    theirs, _ = generalized_advantage_estimate(
        gamma,
        gae_lambda,
        values[:, None],
        following[:, None],
        rewards[:, None],
        ended,
        torch.zeros_like(ended),
    )
    ours = gae(rewards, values, last, gamma=gamma, gae_lambda=gae_lambda)
    torch.testing.assert_close(ours, theirs[:, 0], atol=1e-6, rtol=1e-6)
    returns = reward2go(rewards[:, None], ended, gamma, time_dim=0)
    torch.testing.assert_close(discounted_returns(rewards, gamma=gamma), returns[:, 0], atol=1e-6, rtol=1e-6)


def test_the_clipped_loss() -> None:
    """On random numbers in which every case occurs; the share of clipped tokens is counted otherwise."""
    torch.manual_seed(0)
    scores = nn.Linear(3, 5, bias=False, dtype=torch.float64)
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(scores, ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=Categorical, return_log_prob=True
        ),
    )
    theirs = ClipPPOLoss(
        actor, None, clip_epsilon=0.2, entropy_bonus=False, critic_coeff=None, reduction="mean"
    )
    states, actions = torch.randn(50, 3, dtype=torch.float64), torch.randint(5, (50,))
    logprobs = scores(states).log_softmax(-1)[torch.arange(50), actions]
    old, advantages = (torch.randn(2, 50, dtype=torch.float64) * 0.3).unbind()
    old = logprobs.detach() + old
    batch = {
        "observation": states,
        "action": actions,
        "action_log_prob": old,
        "advantage": advantages[:, None],
    }
    expected = theirs(TensorDict(batch, [50]))
    weights = torch.full((50,), 1 / 50, dtype=torch.float64)
    loss = policy_loss(logprobs, old, advantages, weights, **CLIP)
    fraction = clip_fraction(logprobs, old, advantages, weights, **CLIP)
    assert loss.item() == pytest.approx(expected["loss_objective"].item(), abs=1e-9)
    # torchrl counts every ratio outside the bounds
    outside = ((logprobs - old).exp() - 1).abs() > 0.2
    assert expected["clip_fraction"].item() == pytest.approx(outside.double().mean().item())
    assert 0 < fraction.item() < expected["clip_fraction"].item()
