"""The table of algorithms: how a name turns episodes into advantages, and what it needs for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gym_agents.trajectory import Outcome
from trainers.config import RLConfig
from trainers.learning.advantages import discounted_returns, gae, grpo, rloo, token_rewards, whiten
from trainers.learning.batch import Lesson, Sample, with_logprobs
from trainers.learning.scoring import Scored


class Algorithm(NamedTuple):
    """One row of the table."""

    advantages: Callable[[Sequence[Sample], Sequence[Scored], float, RLConfig], list[Tensor]]
    """From samples, what was said of them and the KL's weight: an advantage for each sampled token [A] of each."""
    needs_critic: bool = False
    """It needs a value for every sampled token."""
    whitens: bool = False
    """Its advantages are whitened, unless `rl.whiten` says otherwise."""


def _grpo(
    samples: Sequence[Sample], scored: Sequence[Scored], kl_coef: float, config: RLConfig
) -> list[Tensor]:
    def compare(scores: Tensor, groups: Tensor) -> Tensor:
        return grpo(scores, groups, scale_by_std=config.scale_by_std)

    return _by_episode(samples, scored, kl_coef, compare)


def _rloo(
    samples: Sequence[Sample], scored: Sequence[Scored], kl_coef: float, config: RLConfig
) -> list[Tensor]:
    return _by_episode(samples, scored, kl_coef, rloo)


def _reinforce(
    samples: Sequence[Sample], scored: Sequence[Scored], kl_coef: float, config: RLConfig
) -> list[Tensor]:
    """REINFORCE++ (arXiv:2501.03262): the return of each token; the mean over the whole update is the baseline."""

    def still_to_come(rewards: Tensor, values: Tensor, last_value: Tensor) -> Tensor:
        return discounted_returns(rewards, gamma=config.gamma)

    return _by_token(samples, scored, kl_coef, still_to_come)


def _ppo(
    samples: Sequence[Sample], scored: Sequence[Scored], kl_coef: float, config: RLConfig
) -> list[Tensor]:
    def estimate(rewards: Tensor, values: Tensor, last_value: Tensor) -> Tensor:
        return gae(rewards, values, last_value, gamma=config.gamma, gae_lambda=config.gae_lambda)

    return _by_token(samples, scored, kl_coef, estimate)


ALGORITHMS = {
    "grpo": Algorithm(_grpo),
    "rloo": Algorithm(_rloo),
    "reinforce++": Algorithm(_reinforce, whitens=True),
    "ppo": Algorithm(_ppo, needs_critic=True, whitens=True),
}


def _by_episode(
    samples: Sequence[Sample],
    scored: Sequence[Scored],
    kl_coef: float,
    compare: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """Every token of an episode has the episode's advantage; each episode counts once in its group."""
    episodes = {sample.episode: sample.score for sample in samples}
    for sample, said in zip(samples, scored, strict=True):
        episodes[sample.episode] -= kl_coef * float(said.kl.sum())
    scores = torch.tensor(list(episodes.values()), dtype=torch.float64)
    groups = torch.tensor([group for group, _ in episodes])
    advantages = dict(zip(episodes, compare(scores, groups), strict=True))
    return [advantages[sample.episode].expand(sample.sampled) for sample in samples]


def _by_token(
    samples: Sequence[Sample],
    scored: Sequence[Scored],
    kl_coef: float,
    estimate: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """From the rewards [T], the values [T] and the last value of each episode, over all its samples in order."""
    advantages: dict[int, Tensor] = {}
    for places in _episodes(samples):
        turns = [turn for at in places for turn in _sampled_turns(samples[at])]
        earned = token_rewards(torch.tensor(samples[places[0]].rewards), torch.tensor(turns))
        rewards = earned - kl_coef * torch.cat([scored[at].kl for at in places])
        values = torch.cat([scored[at].values for at in places])
        parts = estimate(rewards, values, scored[places[-1]].last_value).split(
            [samples[at].sampled for at in places]
        )
        advantages |= zip(places, parts, strict=True)
    return [advantages[at] for at in range(len(samples))]


def _episodes(samples: Sequence[Sample]) -> list[list[int]]:
    """Places of each episode's samples."""
    places: dict[tuple[int, int], list[int]] = {}
    for at, sample in enumerate(samples):
        places.setdefault(sample.episode, []).append(at)
    return list(places.values())


def _sampled_turns(sample: Sample) -> list[int]:
    """Turn of each sampled token."""
    return [turn for turn, acted in zip(sample.turns, sample.action_mask, strict=True) if acted]


def make_lessons(
    samples: Sequence[Sample], scored: Sequence[Scored], config: RLConfig, *, kl_coef: float
) -> list[Lesson]:
    """What an update learns from its samples.

    Args:
        samples: all of the update, in every process, so that groups, means and deviations are over all of them.
        scored: what was said of each.
        config: names the algorithm, and how it is done.
        kl_coef: weight of the KL in the reward.
    """
    algorithm = ALGORITHMS[config.algorithm]
    estimates = algorithm.advantages(samples, scored, kl_coef, config)
    # the critic should have said what came of it
    returns = [estimate + said.values for estimate, said in zip(estimates, scored, strict=True)]
    if algorithm.whitens if config.whiten is None else config.whiten:
        estimates = _whitened(estimates, samples)
    lessons = [Lesson(*parts) for parts in zip(samples, estimates, returns, strict=True)]
    if config.ratio_cap:
        lessons = [_capped(*pair, config.ratio_cap) for pair in zip(lessons, scored, strict=True)]
    return _weighted(_kept(lessons, config, algorithm), config)


def _whitened(estimates: Sequence[Tensor], samples: Sequence[Sample]) -> list[Tensor]:
    """Whitened over all tokens of each scenario, whose scores are not those of another."""
    whitened = list(estimates)
    for scenario in {sample.scenario for sample in samples}:
        places = [at for at, sample in enumerate(samples) if sample.scenario == scenario]
        parts = whiten(torch.cat([estimates[at] for at in places])).split(
            [len(estimates[at]) for at in places]
        )
        for at, part in zip(places, parts, strict=True):
            whitened[at] = part
    return whitened


def _capped(lesson: Lesson, said: Scored, cap: float) -> Lesson:
    """Corrects for a sample of an older policy (decoupled PPO, arXiv:2110.00641, with truncated weights).

    `min(cap, before / sampled) * clipped objective of now / before`; the weight, being positive, goes into the
    advantage.
    """
    sampled = torch.tensor(lesson.sample.logprobs)[torch.tensor(lesson.sample.action_mask)]
    weight = (said.logprobs - sampled).exp().clamp(max=cap)
    sample = with_logprobs(lesson.sample, said.logprobs)
    return replace(lesson, sample=sample, advantages=weight * lesson.advantages)


def _kept(lessons: Sequence[Lesson], config: RLConfig, algorithm: Algorithm) -> list[Lesson]:
    """The lessons that pull on something, or all where the loss has a KL, an entropy term or a critic.

    Without those that pull on nothing an update costs less, and its mean is over the tokens that do pull.
    """
    if config.skip_length_cut:
        lessons = [one for one in lessons if one.sample.outcome is not Outcome.LENGTH_CUT]
    pulls_always = (
        algorithm.needs_critic or config.entropy_coef or (config.kl_coef and config.kl_in == "loss")
    )
    return [one for one in lessons if pulls_always or one.advantages.any()]


def _weighted(lessons: Sequence[Lesson], config: RLConfig) -> list[Lesson]:
    """With the weights that make the loss the mean that `rl.loss_mean` names."""
    if config.loss_mean == "token":
        return list(lessons)
    tokens: Counter[tuple[int, int]] = Counter()
    for one in lessons:
        tokens[one.sample.episode] += one.sample.sampled
    return [replace(one, weight=1 / tokens[one.sample.episode]) for one in lessons]
