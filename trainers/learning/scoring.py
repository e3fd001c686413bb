"""What policy, reference and critic say of samples, before anything is learned from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from gym_agents.trajectory import CUTS
from trainers.config import Config, RLConfig
from trainers.critic import last_states
from trainers.learning.batch import Lesson, Row, Sample, pack, with_last_state
from trainers.learning.logprobs import reference_logprobs, token_logprobs
from trainers.learning.losses import KL_ESTIMATORS
from trainers.models import Policy


class Scored(NamedTuple):
    """What is known of one sample besides what happened; of its sampled tokens, A of them."""

    logprobs: Tensor
    """Under the policy before the update, where `rl.ratio_cap` asks for them; else as they were sampled [A]."""
    kl: Tensor
    """Estimate of the KL against the reference where the reward pays for it; else 0 [A]."""
    values: Tensor
    """Of the state that each was sampled in; 0 without a critic [A]."""
    last_value: Tensor
    """Of the state that the sample ends in, if it goes on there; else 0 []."""


def score(
    policy: Policy, samples: Sequence[Sample], config: Config, accelerator: Accelerator
) -> list[Scored]:
    """Scores samples, each process its share; every process gets all, in order.

    Without a critic, a cap of the ratio, or a KL in the reward, no pass is made.

    Args:
        policy: what acted, with its critic and its reference where the configuration needs them.
        samples: N of them.
        config: what is needed, how the tokens were sampled, and how many of them a context holds.
        accelerator: knows the processes.
    """
    if policy.critic is None and not config.rl.ratio_cap and not _is_paid(config.rl):
        return [_as_sampled(sample) for sample in samples]
    asked = [_with_what_follows(policy, sample, config) for sample in samples]
    rows = pack([Lesson(sample) for sample in asked], config.rl.tokens_per_batch)
    share = rows[accelerator.process_index :: accelerator.num_processes]
    temperature = config.sampling.temperature
    found = [pair for row in share for pair in _score_row(policy, row, config.rl, temperature)]
    said: dict[int, Tensor] = dict(gather_object(found))
    return [_scored(sample, said[index]) for index, sample in enumerate(samples)]


def describe_scores(scored: Sequence[Scored], config: RLConfig) -> dict[str, float]:
    """Mean KL per token against the reference, where the reward pays for it."""
    return {"kl": float(torch.cat([said.kl for said in scored]).mean())} if _is_paid(config) else {}


def _is_paid(config: RLConfig) -> bool:
    """Whether the reward pays for the distance to the reference."""
    return config.kl_in == "reward" and config.kl_coef > 0


def _as_sampled(sample: Sample) -> Scored:
    logprobs = torch.tensor(sample.logprobs)[torch.tensor(sample.action_mask)]
    nothing = torch.zeros_like(logprobs)
    return Scored(logprobs, nothing, nothing, torch.zeros(()))


def _with_what_follows(policy: Policy, sample: Sample, config: Config) -> Sample:
    """With its last state, where the critic is to say what that is worth."""
    goes_on = policy.critic is not None and config.rl.bootstrap and sample.outcome in CUTS
    return with_last_state(sample, config.policy.max_context) if goes_on else sample


@torch.no_grad()
def _score_row(
    policy: Policy, row: Row, config: RLConfig, temperature: float
) -> Iterator[tuple[int, Tensor]]:
    """Index of each packed sample, and of its tokens: log-probability, KL and value [3, A]."""
    row = row.to(policy.device)
    with last_states(policy.model) as states:
        logprobs, _ = token_logprobs(policy.model, row, temperature)
    kl = values = torch.zeros_like(logprobs)
    if policy.critic is not None:
        values = policy.critic(states[0].squeeze(0))
    if _is_paid(config):
        reference = reference_logprobs(policy, row, temperature)
        kl = KL_ESTIMATORS[config.kl_estimator](row.logprobs, reference)
    said = torch.stack([logprobs.double(), kl.double(), values.double()]).cpu()
    which = row.sample.cpu()
    yield from ((int(index), said[:, which == index]) for index in which.unique())


def _scored(sample: Sample, said: Tensor) -> Scored:
    """From [3, A], or from [3, A + 1] where the last state was asked for too."""
    logprobs, kl, values = said[:, : sample.sampled]
    last_value = said[2, sample.sampled :].sum()  # of one, or of none where nothing follows
    # a score ends within [0, 1], so no more than that can follow: where every episode is cut, the critic learns
    # from its own word alone, and would promise ever more
    return Scored(logprobs, kl, values, last_value.clamp(-sample.score, 1 - sample.score))
