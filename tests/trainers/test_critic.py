"""The critic: where it reads, and how it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainers.learning.episodes import tiny_policy
from trainers.critic import Critic, last_states
from trainers.errors import PolicyError


def test_it_promises_nothing_before_it_has_learned_anything() -> None:
    assert Critic(8)(torch.randn(5, 8)).tolist() == [0.0] * 5


def test_its_first_weights_are_a_function_of_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first, again, other = (Critic(8, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_gradient_goes_back_into_the_states() -> None:
    critic = Critic(8)
    torch.nn.init.ones_(critic.last.weight)
    states = torch.randn(5, 8, requires_grad=True)
    critic(states).sum().backward()
    assert states.grad is None
    assert all(parameter.grad is not None for parameter in critic.parameters())


def test_reading_ends_with_its_context() -> None:
    policy = tiny_policy()
    with torch.no_grad(), last_states(policy.model) as states:
        policy.model(torch.tensor([[5, 6, 7]]))
        assert [tuple(seen.shape) for seen in states] == [(1, 3, 96)]
    with torch.no_grad():
        policy.model(torch.tensor([[5, 6, 7]]))
    assert len(states) == 1


def test_it_is_kept_with_the_weights(tmp_path: Path) -> None:
    policy, fresh, without = tiny_policy(), tiny_policy(), tiny_policy()
    policy.add_critic(seed=1)
    policy.save_weights(tmp_path / "with")
    without.load_weights(tmp_path / "with")
    assert without.critic is None
    without.save_weights(tmp_path / "without")
    fresh.add_critic(seed=2)
    with pytest.raises(PolicyError, match="does not hold the critic"):
        fresh.load_weights(tmp_path / "without")
    fresh.load_weights(tmp_path / "with")
    assert policy.critic is not None
    assert fresh.critic is not None
    wanted, got = policy.critic.state_dict(), fresh.critic.state_dict()
    assert all(torch.equal(got[name], wanted[name]) for name in wanted)
