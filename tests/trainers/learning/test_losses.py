"""Losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from trainers.learning.losses import clip_fraction, kl_k3, policy_loss, sft_loss

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


def test_the_mean_is_over_tokens_not_over_episodes() -> None:
    """huggingface/trl PR 3138, verl-project/verl #742: two tokens of advantage 1, eight of advantage -1."""
    advantages = torch.tensor([1.0] * 2 + [-1.0] * 8)
    same = torch.zeros(10)
    # -(2 - 8) / 10; a mean of the episodes' means would be 0
    assert policy_loss(same, same, advantages, torch.full((10,), 0.1), **CLIP).item() == pytest.approx(0.6)


def test_k3_of_one_token() -> None:
    """OpenRLHF/OpenRLHF PR 1309: log-probability -1, reference -1.5."""
    logprob = torch.tensor(-1.0, requires_grad=True)
    kl = kl_k3(logprob, torch.tensor(-1.5))
    kl.backward()
    assert kl.item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)
    assert kl.item() == pytest.approx(0.1065, abs=1e-4)
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(0.3935, abs=1e-4)


def test_the_mean_of_k3_is_the_kl_and_its_loss_leads_to_the_reference() -> None:
    """huggingface/trl #4967, allenai/open-instruct #534: a larger weight on the wrong estimator drives away."""
    reference = torch.tensor([0.2, 0.3, 0.5])
    logits = torch.tensor([0.5, 0.3, 0.2]).log().requires_grad_()

    def expected_k3() -> torch.Tensor:
        logprobs = logits.log_softmax(-1)
        return (logprobs.exp().detach() * kl_k3(logprobs, reference.log())).sum()

    # 0.5 ln 2.5 + 0.3 ln 1 + 0.2 ln 0.4
    assert expected_k3().item() == pytest.approx(0.2749, abs=1e-4)
    optimizer = torch.optim.SGD([logits], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        expected_k3().backward()
        optimizer.step()
    assert logits.softmax(-1).tolist() == pytest.approx(reference.tolist(), abs=1e-3)


def test_micro_batches_add_up_to_the_mean_over_all_tokens() -> None:
    """ml-explore/mlx-lm PR 1413, huggingface/transformers #35203: a mean of the parts' means would be 2."""
    first = sft_loss(torch.tensor([-4.0]), torch.full((1,), 0.25))
    second = sft_loss(torch.zeros(3), torch.full((3,), 0.25))
    assert (first + second).item() == 1.0
