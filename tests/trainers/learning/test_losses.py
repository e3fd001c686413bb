"""Losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from trainers.learning.losses import (
    KL_ESTIMATORS,
    adapted_kl_scale,
    clip_fraction,
    policy_loss,
    sft_loss,
    value_loss,
)

RATIOS = torch.tensor([1.5, 0.5, 1.0, 0.5, 1.5], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.0, -1.0, 2.0, 1.0, -1.0], dtype=torch.float64)
CLIP = {"clip_low": 0.2, "clip_high": 0.2}
WEIGHTS = torch.full((5,), 0.2, dtype=torch.float64)


def test_policy_loss_takes_the_worse_of_ratio_and_clipped_ratio() -> None:
    logprobs = RATIOS.log().requires_grad_()
    loss = policy_loss(logprobs, torch.zeros(5), ADVANTAGES, WEIGHTS, **CLIP)
    loss.backward()
    # objectives 1.2 (clipped), -0.8 (clipped), 2, 0.5, -1.5, whose mean is 0.28
    assert loss.item() == pytest.approx(-0.28)
    # d ratio / d logprob is the ratio; clipped tokens have no gradient
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.0, -0.4, -0.1, 0.3])


def test_clip_fraction_counts_the_tokens_that_lost_their_gradient() -> None:
    assert clip_fraction(RATIOS.log(), torch.zeros(5), ADVANTAGES, WEIGHTS, **CLIP).item() == pytest.approx(
        0.4
    )


def test_the_upper_side_can_be_wider() -> None:
    """Ratio 1.5 of advantage 1 counts as 1.4; ratio 0.5 of advantage -1 stays clipped at 0.8."""
    bounds = {"clip_low": 0.2, "clip_high": 0.4}
    loss = policy_loss(RATIOS.log(), torch.zeros(5), ADVANTAGES, WEIGHTS, **bounds)
    # objectives 1.4, -0.8, 2, 0.5, -1.5
    assert loss.item() == pytest.approx(-0.32)
    fraction = clip_fraction(RATIOS.log(), torch.zeros(5), ADVANTAGES, WEIGHTS, **bounds)
    assert fraction.item() == pytest.approx(0.4)


def test_dual_clip_bounds_what_a_negative_advantage_can_cost() -> None:
    """Ratio 1.5 of advantage -1 counts as 1.25, without a gradient; a positive advantage is not touched."""
    logprobs = RATIOS.log().requires_grad_()
    loss = policy_loss(logprobs, torch.zeros(5), ADVANTAGES, WEIGHTS, **CLIP, dual_clip=1.25)
    loss.backward()
    # objectives 1.2, -0.8, 2, 0.5, -1.25
    assert loss.item() == pytest.approx(-0.33)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 0.0, -0.4, -0.1, 0.0])
    fraction = clip_fraction(RATIOS.log(), torch.zeros(5), ADVANTAGES, WEIGHTS, **CLIP, dual_clip=1.25)
    assert fraction.item() == pytest.approx(0.6)


def test_the_critics_loss_is_half_the_squared_error() -> None:
    values = torch.tensor([0.5, 0.0, 1.0], requires_grad=True)
    loss = value_loss(values, torch.tensor([1.0, 0.0, 0.5]), torch.tensor([0.5, 0.25, 0.25]))
    loss.backward()
    # 0.5 * (0.5 * 0.25 + 0.25 * 0.25)
    assert loss.item() == pytest.approx(0.09375)
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-0.25, 0.0, 0.125])


def test_the_mean_is_over_tokens_not_over_episodes() -> None:
    """huggingface/trl PR 3138, verl-project/verl #742: two tokens of advantage 1, eight of advantage -1."""
    advantages = torch.tensor([1.0] * 2 + [-1.0] * 8)
    same = torch.zeros(10)
    # -(2 - 8) / 10; a mean of the episodes' means would be 0
    assert policy_loss(same, same, advantages, torch.full((10,), 0.1), **CLIP).item() == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))],
)
def test_estimates_of_one_token(name: str, value: float, slope: float) -> None:
    """OpenRLHF/OpenRLHF PR 1309: log-probability -1, reference -1.5; k3 is .1065, its slope .3935."""
    logprob = torch.tensor(-1.0, requires_grad=True)
    kl = KL_ESTIMATORS[name](logprob, torch.tensor(-1.5))
    kl.backward()
    assert kl.item() == pytest.approx(value, abs=1e-6)
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(slope, abs=1e-6)


def test_means_and_gradients_of_the_estimates() -> None:
    """huggingface/trl #4637: p = (.5, .3, .2), q = (.2, .3, .5), KL(p || q) = .3 ln 2.5 = .2749.

    On average over p, k1 and k3 are the KL; the gradient of k2 is the KL's, and that of k1 is nothing.
    """
    reference = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
    p = logits.detach().exp()
    means, slopes = {}, {}
    for name, estimate in KL_ESTIMATORS.items():
        mean = (p * estimate(logits.log_softmax(-1), reference)).sum()
        means[name], slopes[name] = mean.item(), torch.autograd.grad(mean, logits)[0]
    exact = (logits.softmax(-1) * (logits.log_softmax(-1) - reference)).sum()
    slope = torch.autograd.grad(exact, logits)[0]
    assert means["k1"] == pytest.approx(0.3 * math.log(2.5))
    assert means["k3"] == pytest.approx(0.3 * math.log(2.5))
    torch.testing.assert_close(slopes["k2"], slope, atol=1e-12, rtol=0)
    torch.testing.assert_close(slopes["k1"], torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_weight_of_the_kl_follows_its_target_by_a_fiftieth_at_most() -> None:
    # 2 / 1.6 - 1 = .25, of which .2 count; 1.8 / 1.6 - 1 = .125; 0 / 1.6 - 1 = -1, of which -.2 count
    scales = [adapted_kl_scale(3.0, kl, target=1.6) for kl in (2.0, 1.8, 1.6, 0.0)]
    assert scales == pytest.approx([3.06, 3.0375, 3.0, 2.94])


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_the_kl_alone_leads_to_the_reference(name: str) -> None:
    """huggingface/trl #4967, allenai/open-instruct #534: a larger weight on the wrong estimator drives away."""
    reference = torch.tensor([0.2, 0.3, 0.5])
    logits = torch.tensor([0.5, 0.3, 0.2]).log().requires_grad_()

    def expected() -> torch.Tensor:
        logprobs = logits.log_softmax(-1)
        return (logprobs.exp().detach() * KL_ESTIMATORS[name](logprobs, reference.log())).sum()

    optimizer = torch.optim.SGD([logits], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        expected().backward()
        optimizer.step()
    assert logits.softmax(-1).tolist() == pytest.approx(reference.tolist(), abs=1e-3)


def test_micro_batches_add_up_to_the_mean_over_all_tokens() -> None:
    """ml-explore/mlx-lm PR 1413, huggingface/transformers #35203: a mean of the parts' means would be 2."""
    first = sft_loss(torch.tensor([-4.0]), torch.full((1,), 0.25))
    second = sft_loss(torch.zeros(3), torch.full((3,), 0.25))
    assert (first + second).item() == 1.0
