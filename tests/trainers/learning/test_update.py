"""One optimizer step: what it moves, what it must not move, and what it does not depend on."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from tests.trainers.learning.episodes import (
    generation,
    gpt2_policy,
    lessons,
    plain_logprobs,
    random_episodes,
    tiny_policy,
    trajectory,
)
from trainers.config import RLConfig
from trainers.errors import ExplodingGradient, NonFiniteUpdate, PolicyError
from trainers.learning.advantages import grpo
from trainers.learning.batch import Lesson, Row, Sample, collect_samples, pack
from trainers.learning.update import rl_update, sft_update
from trainers.models import Policy

SETTINGS: dict[str, Any] = {"temperature": 1.0, "config": RLConfig(grad_clip=1e9), "kl_coef": 0.0}


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def batch(seed: int = 0) -> tuple[list[Sample], list[torch.Tensor]]:
    collected, _ = collect_samples(random_episodes(seed))
    scores = torch.tensor([sample.score for sample in collected])
    return collected, [*grpo(scores, torch.tensor([sample.group for sample in collected]))]


FULL = {
    "temperature": 1.0,
    "config": RLConfig(
        grad_clip=1e9, kl_estimator="k2", entropy_coef=0.1, clip_range=0.2, clip_range_high=0.3, dual_clip=2.0
    ),
    "kl_coef": 0.5,
}
"""Every term that a loss can have."""


def full_policy() -> Policy:
    """With a critic that has an opinion, and a reference that it has moved away from."""
    policy = gpt2_policy()
    policy.freeze_reference()
    policy.add_critic()
    assert policy.critic is not None
    policy.critic.double()
    torch.manual_seed(3)
    torch.nn.init.normal_(policy.critic.last.weight)
    with torch.no_grad():
        for parameter in policy.trainable.values():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return policy


def full_batch() -> list[Lesson]:
    """Every token has an advantage, a return and its episode's weight of its own."""
    collected, _ = collect_samples(random_episodes(0))
    draw = torch.Generator().manual_seed(0)
    return [
        Lesson(
            sample,
            torch.randn(sample.sampled, generator=draw),
            torch.rand(sample.sampled, generator=draw),
            weight=1 / sample.sampled,
        )
        for sample in collected
    ]


def learning(policy: Policy) -> list[torch.nn.Parameter]:
    """The parameters of the policy, then those of its critic."""
    return [*policy.trainable.values(), *(policy.critic.parameters() if policy.critic else ())]


def weights(policy: Policy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in learning(policy)])


def change(
    policy: Policy, rows: list[Row], accelerator: Accelerator, settings: dict[str, Any] = SETTINGS
) -> torch.Tensor:
    """What one step of size 1 along the gradient adds to the weights: the gradient, negated."""
    before = weights(policy)
    groups = [{"params": [*policy.trainable.values()]}]
    groups += [{"params": [*policy.critic.parameters()]}] if policy.critic else []
    rl_update(policy, torch.optim.SGD(groups, lr=1.0), rows, accelerator=accelerator, **settings)
    return weights(policy) - before


def plain_change(policy: Policy, collected: list[Sample], advantages: list[torch.Tensor]) -> torch.Tensor:
    """The same from forward passes over each sample alone and the formula written out."""
    objectives = []
    for sample, advantage in zip(collected, advantages, strict=True):
        old = torch.tensor(sample.logprobs)[torch.tensor(sample.action_mask)]
        ratio = torch.exp(plain_logprobs(policy.model, sample) - old)
        objectives.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    gradients = torch.autograd.grad(-torch.cat(objectives).mean(), [*policy.trainable.values()])
    return -torch.cat([gradient.flatten() for gradient in gradients])


def plain_full_change(policy: Policy, given: list[Lesson]) -> torch.Tensor:
    """The same for every term of `FULL`, with the mean of the episodes' means."""
    assert policy.critic is not None
    parts = []
    for lesson in given:
        sample, advantages = lesson.sample, lesson.advantages.double()
        acted = torch.tensor(sample.action_mask)
        output = policy.model(torch.tensor([sample.ids]), output_hidden_states=True)
        everywhere = output.logits[0, :-1].log_softmax(-1)[acted[1:]]
        now = everywhere[torch.arange(sample.sampled), torch.tensor(sample.ids)[acted]]
        with policy.reference() as reference:
            away = plain_logprobs(reference, sample)
        ratio = torch.exp(now - torch.tensor(sample.logprobs)[acted])
        objective = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.3) * advantages)
        objective = torch.where(advantages < 0, torch.maximum(objective, 2 * advantages), objective)
        entropy = -(everywhere.exp() * everywhere).sum(-1)
        values = policy.critic(output.hidden_states[-1][0, :-1][acted[1:]].detach())
        missed = 0.5 * (values - lesson.returns.double()) ** 2
        parts.append((-objective + 0.5 * 0.5 * (now - away) ** 2 - 0.1 * entropy + missed).mean())
    gradients = torch.autograd.grad(torch.stack(parts).mean(), learning(policy))
    return -torch.cat([gradient.flatten() for gradient in gradients])


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Distance relative to the second's size."""
    return float((one - other).norm() / other.norm())


POLICIES = {"float64": (gpt2_policy, 1e-10), "float32": (tiny_policy, 1e-5)}


def test_the_gradient_is_that_of_the_formula(accelerator: Accelerator) -> None:
    collected, advantages = batch()
    expected = plain_change(gpt2_policy(), collected, advantages)
    assert expected.norm() > 0.01
    # a row's weights are float32, and 1/77 is rounded in it
    assert (
        apart(change(gpt2_policy(), pack(lessons(collected, advantages), 40), accelerator), expected) < 1e-7
    )


def test_the_gradient_with_every_term_is_that_of_the_formulas(accelerator: Accelerator) -> None:
    expected = plain_full_change(full_policy(), full_batch())
    got = change(full_policy(), pack(full_batch(), 40), accelerator, FULL)
    policy_part = sum(parameter.numel() for parameter in full_policy().trainable.values())
    for part in (slice(None, policy_part), slice(policy_part, None)):
        assert expected[part].norm() > 0.01
        # rows hold weights and advantages in float32
        assert apart(got[part], expected[part]) < 1e-6


@pytest.mark.parametrize("precision", POLICIES)
def test_the_gradient_does_not_depend_on_packing(precision: str, accelerator: Accelerator) -> None:
    """huggingface/trl #6369, PR 6439, meta-pytorch/torchtune PR 1875: a row each, ragged rows, one row."""
    make, tolerance = POLICIES[precision]
    collected, advantages = batch()
    alone, ragged, together = (
        change(make(), pack(lessons(collected, advantages), budget), accelerator)
        for budget in (1, 40, 10_000)
    )
    assert apart(ragged, alone) < tolerance
    assert apart(together, alone) < tolerance


def test_no_term_depends_on_packing(accelerator: Accelerator) -> None:
    alone, ragged, together = (
        change(full_policy(), pack(full_batch(), budget), accelerator, FULL) for budget in (1, 40, 10_000)
    )
    assert apart(ragged, alone) < 1e-10
    assert apart(together, alone) < 1e-10


def change_in_process(rank: int, port: int, folder: Path) -> None:
    """One of two processes, with every other row, then with all rows on one of them."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    rows = pack(lessons(*batch()), 40)
    shares = {"split": rows[rank::2], "lopsided": rows if rank else []}
    changes = {name: change(gpt2_policy(), share, accelerator) for name, share in shares.items()}
    full = pack(full_batch(), 40)[rank::2]
    changes["full"] = change(full_policy(), full, accelerator, FULL)
    torch.save(changes, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_gradient_does_not_depend_on_processes(accelerator: Accelerator, tmp_path: Path) -> None:
    """huggingface/trl #3476: each process divided by its own tokens, and the mean of that was taken."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=change_in_process, args=(rank, port, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=100)
    assert [process.exitcode for process in processes] == [0, 0]
    expected = change(gpt2_policy(), pack(lessons(*batch()), 40), accelerator)
    full = change(full_policy(), pack(full_batch(), 40), accelerator, FULL)
    for rank in range(2):
        changes = torch.load(tmp_path / f"{rank}.pt")
        assert apart(changes["split"], expected) < 1e-10
        assert apart(changes["lopsided"], expected) < 1e-10
        assert apart(changes["full"], full) < 1e-10


def test_the_loss_is_a_mean_over_tokens_whatever_the_rows(accelerator: Accelerator) -> None:
    """ml-explore/mlx-lm PR 1413: one row of 1 token and one of 3, whose means must not be averaged."""
    collected, _ = collect_samples(
        [trajectory([generation([5], [6])]), trajectory([generation([7], [8, 9, 10])])]
    )
    policy = tiny_policy(torch.float64)
    expected = -torch.cat([plain_logprobs(policy.model, sample) for sample in collected]).mean().item()
    optimizer = torch.optim.SGD(policy.trainable.values(), lr=0.0)
    rows = pack(lessons(collected, 1.0), 1)
    metrics = sft_update(policy, optimizer, rows, accelerator=accelerator, config=RLConfig())
    assert len(rows) == 2
    assert metrics["loss"] == pytest.approx(expected)
    assert metrics["tokens"] == 4


def test_without_any_advantage_nothing_moves(accelerator: Accelerator) -> None:
    """huggingface/trl PR 5640: weight decay and momentum drifted on batches that taught nothing."""
    policy = tiny_policy()
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.1, weight_decay=0.1)
    collected, advantages = batch()
    rl_update(
        policy, optimizer, pack(lessons(collected, advantages), 100), accelerator=accelerator, **SETTINGS
    )
    before = weights(policy)
    moments = [{key: value.clone() for key, value in state.items()} for state in optimizer.state.values()]
    for rows in (pack(lessons(collected), 100), []):
        metrics = rl_update(policy, optimizer, rows, accelerator=accelerator, **SETTINGS)
        assert metrics["skipped"] == 1.0
    assert torch.equal(weights(policy), before)
    for state, kept in zip(optimizer.state.values(), moments, strict=True):
        assert all(torch.equal(state[key], kept[key]) for key in kept)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_makes_no_step(bad: float, accelerator: Accelerator) -> None:
    """huggingface/trl PR 3248: a division of nothing by nothing poisoned the weights."""
    policy = tiny_policy()
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.1)
    before = weights(policy)
    collected, advantages = batch()
    rows = pack(lessons(collected, [torch.tensor(bad), *advantages[1:]]), 100)
    with pytest.raises(NonFiniteUpdate, match="No step was made"):
        rl_update(policy, optimizer, rows, accelerator=accelerator, **SETTINGS)
    assert torch.equal(weights(policy), before)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in policy.trainable.values())


def test_a_gradient_that_explodes_makes_no_step(accelerator: Accelerator) -> None:
    policy = tiny_policy()
    before = weights(policy)
    rows = pack(lessons(*batch()), 100)
    settings = SETTINGS | {"config": RLConfig(max_grad_norm=1e-3)}
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.1)
    with pytest.raises(ExplodingGradient, match=r"above rl.max_grad_norm = 0.001"):
        rl_update(policy, optimizer, rows, accelerator=accelerator, **settings)
    assert torch.equal(weights(policy), before)
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in policy.trainable.values())


def test_the_critic_learns_and_pulls_on_nothing_else(accelerator: Accelerator) -> None:
    """Two prompts, one of which promises a score of 1, the other none."""
    policy = gpt2_policy()
    policy.add_critic()
    assert policy.critic is not None
    before = torch.cat([parameter.detach().flatten().clone() for parameter in policy.trainable.values()])
    collected, _ = collect_samples([trajectory([generation([token], [6, 7])]) for token in (5, 300)])
    nothing = torch.zeros(())
    given = [Lesson(sample, nothing, nothing + promise) for promise, sample in enumerate(collected)]
    groups = [
        {"params": [*policy.trainable.values()]},
        {"params": [*policy.critic.parameters()], "lr": 0.01},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, weight_decay=0.0)
    losses = [
        rl_update(policy, optimizer, pack(given, 100), accelerator=accelerator, **SETTINGS)["value_loss"]
        for _ in range(60)
    ]
    assert losses[0] == pytest.approx(0.25)
    assert losses[-1] < 0.02
    after = torch.cat([parameter.detach().flatten() for parameter in policy.trainable.values()])
    assert torch.equal(after, before)


def test_episodes_of_unknown_logprobs_cannot_be_reinforced(accelerator: Accelerator) -> None:
    policy = tiny_policy()
    collected, _ = collect_samples([trajectory([generation([5], [6], logprobs=())])])
    optimizer = torch.optim.AdamW(policy.trainable.values())
    with pytest.raises(NonFiniteUpdate):
        rl_update(policy, optimizer, pack(lessons(collected, 1.0), 9), accelerator=accelerator, **SETTINGS)


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_kl_term_pulls_back_to_the_reference(lora_rank: int, accelerator: Accelerator) -> None:
    """huggingface/trl PR 7068: with a KL weight, groups without an advantage still pull."""
    policy = tiny_policy(lora_rank=lora_rank)
    collected, advantages = batch()
    rows = pack(lessons(collected, advantages), 10_000)
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.01)
    settings = SETTINGS | {"kl_coef": 1.0}
    with pytest.raises(PolicyError, match="no reference policy"):
        rl_update(policy, optimizer, rows, accelerator=accelerator, **settings)
    policy.freeze_reference()
    start = rl_update(policy, optimizer, rows, accelerator=accelerator, **settings)
    assert start["kl"] == pytest.approx(0.0, abs=1e-6)
    for _ in range(10):
        sft_update(policy, optimizer, rows, accelerator=accelerator, config=RLConfig())
    silent = pack(lessons(collected), 10_000)
    pulled = [rl_update(policy, optimizer, silent, accelerator=accelerator, **settings) for _ in range(10)]
    assert pulled[0]["skipped"] == 0.0
    assert pulled[-1]["kl"] < 0.7 * pulled[0]["kl"]


def test_the_entropy_bonus_raises_entropy(accelerator: Accelerator) -> None:
    policy = tiny_policy()
    collected, _ = batch()
    rows = pack(lessons(collected), 10_000)
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.01)
    for _ in range(10):
        sft_update(policy, optimizer, rows, accelerator=accelerator, config=RLConfig())
    settings = SETTINGS | {"config": RLConfig(grad_clip=1e9, entropy_coef=1.0)}
    entropies = [
        rl_update(policy, optimizer, rows, accelerator=accelerator, **settings)["entropy"] for _ in range(5)
    ]
    assert entropies[-1] > entropies[0]


def test_reinforced_replies_become_likelier_than_the_others(accelerator: Accelerator) -> None:
    policy = tiny_policy(lora_rank=4)
    replies = [[generation([5], [token], logprobs=(-6.2,))] for token in (6, 7)]
    collected, _ = collect_samples([trajectory(reply) for reply in replies])
    rows = pack(lessons(collected, torch.tensor([1.0, -1.0])), 100)
    optimizer = torch.optim.AdamW(policy.trainable.values(), lr=0.01)
    for _ in range(3):
        rl_update(policy, optimizer, rows, accelerator=accelerator, **SETTINGS)
    good, bad = (plain_logprobs(policy.model, sample).item() for sample in collected)
    assert good > bad
