"""DPO: the loss by hand and by numpy, the gradient by the formula, and what it must not depend on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from tests.trainers.learning.episodes import generation, gpt2_policy, plain_logprobs, tiny_policy, trajectory
from trainers.config import RLConfig
from trainers.errors import PolicyError
from trainers.learning.batch import Row, Sample, pack_pair, samples
from trainers.learning.losses import dpo_loss, preference
from trainers.learning.update import dpo_update
from trainers.models import Policy

PROMPT = [5, 6, 7]
BETA = 0.5


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def side(*turns: tuple[Sequence[int], Sequence[int]]) -> list[Sample]:
    return samples(trajectory(*([generation(context, said)] for context, said in turns)))


BETTER = side((PROMPT, [20, 21, 2]), ([30], [22, 2]))
WORSE = side((PROMPT, [40, 2]))
OTHER = side((PROMPT, [50, 51, 2])), side((PROMPT, [60, 2]), ([31, 32], [61, 62, 2]))


def moved(policy: Policy, pairs: Sequence[Row], accelerator: Accelerator) -> torch.Tensor:
    """What one step of size 1 down the gradient adds to the weights."""
    before = torch.cat([weights.detach().flatten() for weights in policy.trainable.values()])
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=1.0)
    dpo_update(policy, optimizer, pairs, accelerator=accelerator, config=RLConfig(grad_clip=1e9), beta=BETA)
    after = torch.cat([weights.detach().flatten() for weights in policy.trainable.values()])
    return after - before


def away_from_the_reference(policy: Policy) -> Policy:
    policy.freeze_reference()
    with torch.no_grad():
        for number, weights in enumerate(policy.trainable.values()):
            weights.add_(
                0.02 * torch.sin(torch.arange(weights.numel(), dtype=weights.dtype) + number).view_as(weights)
            )
    return policy


def test_the_loss_of_two_turns_against_one_by_hand() -> None:
    """Tokens of the better side -1, -2 | -3 (reference -2, -2 | -4); of the worse -1, -1 (reference -0.5, -0.5).

    Log-ratios: better (-6) - (-8) = 2, worse (-2) - (-1) = -1; their difference 3; beta 0.5 makes a margin of 1.5;
    loss ln(1 + e^-1.5) = 0.2014133. Its derivative by the margin is -sigmoid(-1.5) = -0.1824255, so that each token
    of the better side has the gradient -0.0912128, and each of the worse one +0.0912128.
    """
    logprobs = torch.tensor([-1.0, -2.0, -3.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-2.0, -2.0, -4.0, -0.5, -0.5], dtype=torch.float64)
    sides = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    margin = 0.5 * preference(logprobs, reference, sides)
    loss = dpo_loss(margin)
    loss.backward()
    assert margin.item() == pytest.approx(1.5)
    assert loss.item() == pytest.approx(0.2014133, abs=1e-7)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.0912128] * 3 + [0.0912128] * 2, abs=1e-7)


def test_the_loss_agrees_with_the_formula_in_numpy() -> None:
    """Equation 7 of arXiv:2305.18290, written with exponentials: -log(1 / (1 + exp(-beta (log-ratios' difference))))."""
    draw = np.random.default_rng(0)
    for _ in range(20):
        logprobs, reference = draw.normal(-2, 1, (2, 9))
        sides = np.where(np.arange(9) < draw.integers(1, 9), 1.0, -1.0)
        better, worse = (sides == 1, sides == -1)
        ratios = [(logprobs[of].sum() - reference[of].sum()) for of in (better, worse)]
        expected = -np.log(1 / (1 + np.exp(-0.3 * (ratios[0] - ratios[1]))))
        ours = dpo_loss(0.3 * preference(*map(torch.tensor, (logprobs, reference, sides))))
        assert ours.item() == pytest.approx(expected, abs=1e-6)


def test_a_hopeless_pair_gives_a_finite_loss() -> None:
    assert dpo_loss(torch.tensor(-1e4)).item() == pytest.approx(1e4)
    assert dpo_loss(torch.tensor(1e4)).item() == 0.0


def test_both_sides_share_a_row_and_only_what_the_agent_said_counts() -> None:
    row = pack_pair(BETTER, WORSE)
    assert row.target_ids.tolist() == [20, 21, 2, 22, 2, 40, 2]
    assert row.advantages.tolist() == [1.0] * 5 + [-1.0] * 2
    assert row.weights.sum().item() == pytest.approx(1.0)
    assert row.ids.tolist()[:3] == PROMPT
    assert row.tokens_saved == 3


def test_the_gradient_is_that_of_the_formula_and_each_pair_weighs_the_same(accelerator: Accelerator) -> None:
    policy = away_from_the_reference(gpt2_policy())
    losses = []
    for better, worse in ((BETTER, WORSE), OTHER):
        with policy.reference() as model:
            start = [plain_logprobs(model, sample).sum() for sample in (*better, *worse)]
        now = [plain_logprobs(policy.model, sample).sum() for sample in (*better, *worse)]
        losses.append(-torch.sigmoid(BETA * ((now[0] - start[0]) - (now[1] - start[1]))).log())
    gradients = torch.autograd.grad((losses[0] + losses[1]) / 2, [*policy.trainable.values()])
    expected = -torch.cat([gradient.flatten() for gradient in gradients])
    found = moved(policy, [pack_pair(BETTER, WORSE), pack_pair(*OTHER)], accelerator)
    assert expected.norm() > 0.01
    assert float((found - expected).norm() / expected.norm()) < 1e-6


def test_at_the_reference_the_loss_is_ln_2_and_a_step_prefers_the_better_side(
    accelerator: Accelerator,
) -> None:
    policy = tiny_policy(lora_rank=4)
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.01)
    rows = [pack_pair(BETTER, WORSE)]
    settings = {"accelerator": accelerator, "config": RLConfig(), "beta": 0.1}
    with pytest.raises(PolicyError, match="no reference policy"):
        dpo_update(policy, optimizer, rows, **settings)
    policy.freeze_reference()
    first = dpo_update(policy, optimizer, rows, **settings)
    assert (first["loss"], first["margin"]) == pytest.approx((math.log(2), 0.0), abs=1e-6)
    later = [dpo_update(policy, optimizer, rows, **settings) for _ in range(5)][-1]
    assert later["loss"] < first["loss"]
    assert (later["accuracy"], later["tokens"]) == (1.0, 7)
