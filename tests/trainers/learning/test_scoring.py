"""What is said of samples before an update, against plain forward passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from gym_agents.trajectory import CUTS, Outcome
from tests.trainers.learning.episodes import (
    generation,
    gpt2_policy,
    plain_logprobs,
    random_episodes,
    trajectory,
)
from trainers.config import Config, PolicyConfig, RLConfig, SamplingConfig
from trainers.learning.batch import Sample, collect_samples
from trainers.learning.scoring import Scored, score
from trainers.models import Policy


def judged(policy: Policy, samples: list[Sample], max_context: int = 100, **config: Any) -> list[Scored]:
    settings = Config(
        rl=RLConfig(tokens_per_batch=40, **config),
        sampling=SamplingConfig(temperature=0.7),
        policy=PolicyConfig(max_context=max_context),
    )
    return score(policy, samples, settings, Accelerator(cpu=True))


def with_opinion(policy: Policy) -> Policy:
    """Its critic says something."""
    policy.add_critic()
    assert policy.critic is not None
    torch.manual_seed(1)
    torch.nn.init.normal_(policy.critic.last.weight)
    policy.critic.double()
    return policy


def plain_values(policy: Policy, ids: tuple[int, ...]) -> Tensor:
    """The value at each place of a conversation, from a forward pass over it alone."""
    assert policy.critic is not None
    with torch.no_grad():
        output = policy.model(torch.tensor([ids]), output_hidden_states=True)
        values: Tensor = policy.critic(output.hidden_states[-1][0])
    return values


def test_values_are_those_of_the_states_that_tokens_were_sampled_in() -> None:
    """A value head one place off sees the token that it is to judge the state before."""
    policy = with_opinion(gpt2_policy())
    samples, _ = collect_samples(random_episodes(4))
    for sample, said in zip(samples, judged(policy, samples, algorithm="ppo"), strict=True):
        before = [place - 1 for place, acted in enumerate(sample.action_mask) if acted]
        expected = plain_values(policy, sample.ids)[before]
        assert expected.std() > 0.01
        torch.testing.assert_close(said.values, expected, atol=1e-10, rtol=0)
        assert said.last_value == 0


@pytest.mark.parametrize("outcome", [*sorted(CUTS), Outcome.SUCCESS, Outcome.FAILURE], ids=str)
def test_only_a_cut_episode_goes_on_in_its_last_state(outcome: Outcome) -> None:
    """huggingface/trl PR 1536. A win on the last allowed turn is no cut."""
    policy = with_opinion(gpt2_policy())
    episode = trajectory(
        [generation([5, 6], [7, 8])], outcome=outcome, score=0.4, final_context_ids=(9, 10, 11)
    )
    samples, _ = collect_samples([episode])
    (said,) = judged(policy, samples, algorithm="ppo")
    (ended,) = judged(policy, samples, algorithm="ppo", bootstrap=False)
    cut = outcome in CUTS
    # no more can follow than the score still has room for
    last = plain_values(policy, (5, 6, 7, 8, 9, 10, 11))[-1].clamp(-0.4, 0.6).item()
    assert said.last_value.item() == pytest.approx(last if cut else 0.0)
    assert last != 0.0
    assert ended.last_value == 0.0
    assert len(said.values) == 2


def test_a_last_state_beyond_the_context_is_cut_to_it() -> None:
    policy = with_opinion(gpt2_policy())
    episode = trajectory(
        [generation([5, 6], [7, 8])], outcome=Outcome.LENGTH_CUT, score=0.0, final_context_ids=(9, 10, 11)
    )
    samples, _ = collect_samples([episode])
    (said,) = judged(policy, samples, max_context=5, algorithm="ppo")
    assert said.last_value.item() == pytest.approx(
        plain_values(policy, (5, 6, 7, 8, 9))[-1].clamp(0, 1).item()
    )


def test_the_reward_pays_for_the_log_ratio_to_the_reference() -> None:
    policy = gpt2_policy()
    policy.freeze_reference()
    samples, _ = collect_samples(random_episodes(5))
    reference = [plain_logprobs(policy.model, sample, 0.7).detach() for sample in samples]
    with torch.no_grad():
        for parameter in policy.trainable.values():
            parameter.mul_(1.5)
    scored = judged(policy, samples, kl_in="reward", kl_estimator="k1", kl_coef=0.1)
    for said, logprobs in zip(scored, reference, strict=True):
        # random episodes were sampled at -6.2 each
        torch.testing.assert_close(said.kl, -6.2 - logprobs, atol=1e-6, rtol=0)


def test_logprobs_are_those_of_the_policy_now() -> None:
    policy = gpt2_policy()
    samples, _ = collect_samples(random_episodes(6))
    for sample, said in zip(samples, judged(policy, samples, ratio_cap=2.0), strict=True):
        expected = plain_logprobs(policy.model, sample, 0.7)
        torch.testing.assert_close(said.logprobs, expected, atol=1e-10, rtol=0)


def test_where_nothing_is_asked_nothing_is_said() -> None:
    policy = gpt2_policy()
    samples, _ = collect_samples(random_episodes(6))
    calls = []
    policy.model.register_forward_pre_hook(lambda *_: calls.append(1))
    scored = judged(policy, samples)
    assert calls == []
    assert [said.logprobs.tolist() for said in scored] == [
        pytest.approx([-6.2] * sample.sampled) for sample in samples
    ]
