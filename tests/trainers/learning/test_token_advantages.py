"""Returns and generalized advantages over the sampled tokens of episodes, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from gym_agents.trajectory import Outcome
from tests.trainers.learning.episodes import by_sample, generation, random_episodes, trajectory
from trainers.config import RLConfig
from trainers.learning.advantages import grpo, rloo, token_rewards, whiten
from trainers.learning.algorithms import ALGORITHMS, make_lessons
from trainers.learning.batch import Lesson, Sample, collect_samples, pack
from trainers.learning.scoring import Scored

RETURNS = RLConfig(algorithm="reinforce++", whiten=False)
GAE = RLConfig(algorithm="ppo", whiten=False, gae_lambda=0.5)


def sample_of(mask: str, rewards: Sequence[float], **rest: Any) -> Sample:
    """One sample whose sampled tokens are the 1s of the mask, behind a prompt of one token; one turn a run of 1s."""
    turns = [run for run in mask.replace("0", " ").split(" ") if run]
    spaces = [len(run) for run in mask.replace("1", " ").split(" ") if run]
    gaps = [1, *spaces][: len(turns)]
    played = [[generation(range(gap), range(len(run)))] for gap, run in zip(gaps, turns, strict=True)]
    (sample,), _ = collect_samples([trajectory(*played, rewards=rewards, **rest)])
    return sample


def said(values: Sequence[float], kl: Sequence[float] | None = None, last_value: float = 0.0) -> Scored:
    nothing = torch.zeros(len(values))
    return Scored(
        nothing, nothing if kl is None else torch.tensor(kl), torch.tensor(values), torch.tensor(last_value)
    )


def learn(sample: Sample, scored: Scored, config: RLConfig, kl_coef: float = 0.0) -> Lesson:
    (lesson,) = make_lessons([sample], [scored], config, kl_coef=kl_coef)
    return lesson


def test_a_reward_reaches_every_token_before_it_across_observations() -> None:
    """verl-project/verl #7278, PR 7300: returns began anew at every observation, and the reward was lost."""
    sample = sample_of("110011", [0.0, 1.0])
    assert learn(sample, said([0.0] * 4), RETURNS).advantages.tolist() == [1.0, 1.0, 1.0, 1.0]


def test_an_observation_takes_no_discount() -> None:
    """verl-project/verl PR 7300: gamma 0.5, one token a turn, the reward with the last: 0.5 * 1, 1."""
    sample = sample_of("101", [0.0, 1.0])
    config = RLConfig(algorithm="reinforce++", whiten=False, gamma=0.5)
    assert learn(sample, said([0.0] * 2), config).advantages.tolist() == [0.5, 1.0]


def test_a_reward_of_each_turn_lies_on_its_last_token() -> None:
    """Three turns of 2, 1 and 3 tokens earning 0.25, 0 and 0.75, gamma 0.5, from the end:

    0.75; 0.375; 0.1875; then 0 + 0.09375; then 0.25 + 0.046875 = 0.296875; 0.1484375.
    """
    sample = sample_of("110100111", [0.25, 0.0, 0.75])
    config = RLConfig(algorithm="reinforce++", whiten=False, gamma=0.5)
    expected = [0.1484375, 0.296875, 0.09375, 0.1875, 0.375, 0.75]
    assert learn(sample, said([0.0] * 6), config).advantages.tolist() == expected


def test_a_turn_without_a_token_leaves_its_reward_to_the_token_before() -> None:
    rewards = torch.tensor([0.5, 1.0, 2.0])
    assert token_rewards(rewards, torch.tensor([1, 1])).tolist() == [0.5, 3.0]


def test_values_are_carried_across_observations() -> None:
    """radixark/miles PR 1827: the reward came with an observation after the last reply, and was lost there.

    gamma 1, lambda 0.5, values .2 .4 | .5 .6, reward 1 on the last sampled token:
    deltas .2 .1 .1 .4, so from the end .4, .1 + .2 = .3, .1 + .15 = .25, .2 + .125 = .325.
    What stands at the observations has no place in the computation at all.
    """
    lesson = learn(sample_of("110011", [0.0, 1.0]), said([0.2, 0.4, 0.5, 0.6]), GAE)
    assert lesson.advantages.tolist() == pytest.approx([0.325, 0.25, 0.3, 0.4])
    assert lesson.returns.tolist() == pytest.approx([0.525, 0.65, 0.8, 1.0])


def test_a_cut_episode_goes_on_with_its_last_value() -> None:
    """huggingface/trl PR 1536. As above, with .8 to come and no reward: deltas .2 .1 .1 .2, from the end .2,

    .1 + .1 = .2, .1 + .1 = .2 and .2 + .1 = .3.
    """
    sample = sample_of("110011", [0.0, 0.0])
    lesson = learn(sample, said([0.2, 0.4, 0.5, 0.6], last_value=0.8), GAE)
    assert lesson.advantages.tolist() == pytest.approx([0.3, 0.2, 0.2, 0.2])


def test_the_kl_of_a_token_is_taken_off_its_reward() -> None:
    """THUDM/slime PR 1372: the KL of masked tokens leaked into returns; here only sampled tokens have one."""
    sample = sample_of("110011", [0.0, 1.0])
    lesson = learn(sample, said([0.0] * 4, kl=[1.0, 0.0, 2.0, 0.5]), RETURNS, kl_coef=0.1)
    # 1 - .05; .95 - .2; .75 - 0; .75 - .1
    assert lesson.advantages.tolist() == pytest.approx([0.65, 0.75, 0.75, 0.95])


@pytest.mark.parametrize(("algorithm", "expected"), [("rloo", [0.4, -0.4]), ("grpo", [0.70711, -0.70711])])
def test_groups_compare_scores_less_their_kl(algorithm: Any, expected: list[float]) -> None:
    """Scores 1 and .5, of which 0.1 * (1 + 1) and 0.1 * 1 are taken: .8 and .4."""
    played = [[generation([5], [6, 7])]]
    samples, _ = collect_samples(
        [trajectory(*played, score=score, member=member) for member, score in enumerate([1.0, 0.5])]
    )
    scored = [said([0.0] * 2, kl=[1.0, 1.0]), said([0.0] * 2, kl=[1.0, 0.0])]
    lessons = make_lessons(samples, scored, RLConfig(algorithm=algorithm), kl_coef=0.1)
    assert [float(lesson.advantages[0]) for lesson in lessons] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trained_are_the_sampled_ids_with_their_logprobs(algorithm: Any) -> None:
    """huggingface/trl #5224, mll-lab-nu/RAGEN #71: whatever the algorithm, nothing else and nothing changed."""
    samples, _ = collect_samples(random_episodes(7))
    config = RLConfig(algorithm=algorithm, entropy_coef=0.1)
    lessons = make_lessons(samples, [said([0.0] * sample.sampled) for sample in samples], config, kl_coef=0.0)
    rows = pack(lessons, 40)
    targets = by_sample(rows, [row.target_ids for row in rows], len(samples))
    logprobs = by_sample(rows, [row.logprobs for row in rows], len(samples))
    for sample, ids, known in zip(samples, targets, logprobs, strict=True):
        acted = torch.tensor(sample.action_mask)
        assert ids.tolist() == torch.tensor(sample.ids)[acted].tolist()
        assert known.tolist() == pytest.approx([-6.2] * sample.sampled)


def test_an_episode_of_several_samples_is_one_sequence() -> None:
    """A windowed history: the reward of the second context reaches the tokens of the first."""
    episode = trajectory([generation([5], [6, 7])], [generation([8], [9], fresh=True)], rewards=[0.0, 1.0])
    samples, _ = collect_samples([episode])
    scored = [said([0.2, 0.4]), said([0.5])]
    first, second = make_lessons(samples, scored, GAE, kl_coef=0.0)
    # deltas .2 .1 .5
    assert first.advantages.tolist() == pytest.approx([0.2 + 0.175, 0.1 + 0.25])
    assert second.advantages.tolist() == pytest.approx([0.5])


def test_whitened_advantages_have_mean_0_and_deviation_1_over_all_tokens() -> None:
    """Two episodes: 3 tokens that return 1, one that returns 0: mean .75, deviations .25 and -.75, std .5."""
    episodes = [
        trajectory([generation([5], [6, 7, 8])], rewards=[1.0]),
        trajectory([generation([5], [6])], rewards=[0.0], member=1),
    ]
    samples, _ = collect_samples(episodes)
    scored = [said([0.0] * 3), said([0.0])]
    lessons = make_lessons(samples, scored, RLConfig(algorithm="reinforce++"), kl_coef=0.0)
    assert [lesson.advantages.tolist() for lesson in lessons] == [
        pytest.approx([0.5] * 3, abs=1e-5),
        pytest.approx([-1.5], abs=1e-5),
    ]


@pytest.mark.parametrize("equal", [[0.0] * 4, [1.0] * 4, [0.1 + 0.2, 0.3, 0.3], [0.7]])
def test_equal_advantages_are_whitened_to_nothing(equal: list[float]) -> None:
    """huggingface/trl PR 5640: equal but for rounding is equal, and one alone has no deviation."""
    assert whiten(torch.tensor(equal, dtype=torch.float64)).tolist() == [0.0] * len(equal)


def test_what_is_not_a_number_is_not_hidden() -> None:
    """It has to stop the update, not to pass for equal scores."""
    broken, alone = torch.tensor([1.0, float("nan")]), torch.zeros(2, dtype=torch.long)
    for advantages in (grpo(broken, alone), rloo(broken, alone), whiten(broken)):
        assert advantages.isnan().all()


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "reinforce++"])
def test_without_a_critic_an_update_of_equal_scores_teaches_nothing(algorithm: Any) -> None:
    samples = [sample_of("1011", [0.0, 1.0], member=member) for member in range(3)]
    scored = [said([0.0] * 3)] * 3
    assert make_lessons(samples, scored, RLConfig(algorithm=algorithm), kl_coef=0.0) == []


@pytest.mark.parametrize("outcome", [Outcome.LENGTH_CUT, Outcome.FAILURE])
def test_episodes_cut_by_length_can_be_left_out(outcome: Outcome) -> None:
    """huggingface/trl PR 6439, PR 3248: they left the sum, but not the count that it is divided by."""
    samples = [
        sample_of("11", [1.0], member=0, score=1.0),
        sample_of("11", [0.0], member=1, score=0.0, outcome=outcome),
    ]
    config = RLConfig(skip_length_cut=True)
    lessons = make_lessons(samples, [said([0.0] * 2)] * 2, config, kl_coef=0.0)
    kept = [0] if outcome is Outcome.LENGTH_CUT else [0, 1]
    assert [lesson.sample.member for lesson in lessons] == kept
    # and the group's mean still counts it
    assert lessons[0].advantages.tolist() == pytest.approx([0.70711] * 2, abs=1e-5)


def test_every_episode_can_weigh_the_same() -> None:
    """huggingface/trl PR 3138, verl-project/verl #742: 2 tokens and 8, in one context and in two."""
    long = trajectory(
        [generation([5], range(3))], [generation([5], range(5), fresh=True)], score=0.0, member=1
    )
    samples, _ = collect_samples([trajectory([generation([5], [6, 7])], score=1.0), long])
    scored = [said([0.0] * sample.sampled) for sample in samples]
    for mean, expected in (("token", [1.0, 1.0, 1.0]), ("episode", [1 / 2, 1 / 8, 1 / 8])):
        lessons = make_lessons(samples, scored, RLConfig(loss_mean=mean), kl_coef=0.0)
        assert [lesson.weight for lesson in lessons] == expected


def test_a_token_of_an_older_policy_counts_by_its_ratio_up_to_the_cap() -> None:
    """Sampled at log-probability -1; before the update 0, -1 and -3: ratios e, 1 and e^-2, capped at 2."""
    samples = [
        sample_of("111", [score], member=member, score=score) for member, score in enumerate([1.0, 0.0])
    ]
    before = torch.tensor([0.0, -1.0, -3.0])
    scored = [said([0.0] * 3)._replace(logprobs=before)] * 2
    config = RLConfig(ratio_cap=2.0, scale_by_std=False)
    first, second = make_lessons(samples, scored, config, kl_coef=0.0)
    assert first.advantages.tolist() == pytest.approx([1.0, 0.5, 0.5 * 0.135335], abs=1e-6)
    assert second.advantages.tolist() == pytest.approx([-1.0, -0.5, -0.5 * 0.135335], abs=1e-6)
    # from there on the ratio is to the policy before the update
    assert first.sample.logprobs[1:] == (0.0, -1.0, -3.0)
