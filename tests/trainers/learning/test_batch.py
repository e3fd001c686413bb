"""From trajectories to samples to rows: which tokens are trained, where they lie, what they see."""

from __future__ import annotations

import math

import pytest
import torch

from gym_agents.trajectory import Outcome
from tests.trainers.learning.episodes import generation, lessons, random_episodes, trajectory
from trainers.errors import NothingToLearn
from trainers.learning.batch import collect_samples, minibatches, pack, samples

END = 2
"""The id that ends a reply, and that is also the padding of the tokenizers here."""


def test_trained_are_the_sampled_tokens_by_position_not_by_value() -> None:
    """huggingface/trl PR 6357, NVIDIA-NeMo/Megatron-Bridge PR 4660: ends were masked as padding.

    mll-lab-nu/RAGEN #71: the mask was upside down, and observations were trained. Here prompt, replies and
    observations all hold the end's id; the second reply was cut before its end.
    """
    episode = trajectory(
        [generation([1, END, 5], [6, END, END], logprobs=(-0.1, -0.2, -0.3))],
        [generation([END, 7], [END, 8], logprobs=(-0.4, -0.5))],
        [generation([9, END], [END], logprobs=(-0.6,))],
    )
    (sample,) = samples(episode)
    assert sample.ids == (1, 2, 5, 6, 2, 2, 2, 7, 2, 8, 9, 2, 2)
    assert [place for place, acted in enumerate(sample.action_mask) if acted] == [3, 4, 5, 8, 9, 12]
    assert sample.turns == (0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2)
    assert [sample.logprobs[place] for place in (3, 4, 5, 8, 9, 12)] == [-0.1, -0.2, -0.3, -0.4, -0.5, -0.6]
    assert sample.rewards == (1.0, 0.0, 0.0)


def test_a_fresh_context_starts_another_sample() -> None:
    plan_and_act = [generation([1], [3]), generation([4], [5])]
    first, second = samples(trajectory(plan_and_act, [generation([1, 6], [7], fresh=True)]))
    assert (first.ids, first.turns) == ((1, 3, 4, 5), (0, 0, 0, 0))
    assert (second.ids, second.turns) == ((1, 6, 7), (1, 1, 1))


def test_failed_and_silent_episodes_are_skipped_and_named() -> None:
    """marin-community/marin #7237: a sample without a trained token went into the loss."""
    sound = trajectory([generation([1], [3])])
    failed = trajectory([generation([1], [3])], outcome=Outcome.ENV_ERROR, member=1)
    silent = trajectory([generation([1], [])], outcome=Outcome.LENGTH_CUT, member=2)
    collected, skipped = collect_samples([failed, sound, silent])
    assert [sample.ids for sample in collected] == [(1, 3)]
    assert skipped == [
        "counting_3, member 1: it failed",
        "counting_3, member 2: no token of it was sampled",
    ]


def test_nothing_sampled_at_all_is_an_error() -> None:
    """huggingface/transformers #34172, huggingface/trl PR 4201: training ran on nothing."""
    with pytest.raises(NothingToLearn, match="counting_3, member 0"):
        collect_samples([trajectory([generation([1, 2], [])]), trajectory()])


def test_logprobs_are_one_per_token_or_unknown() -> None:
    with pytest.raises(ValueError, match="2 sampled ids, but 1 log-probabilities"):
        samples(trajectory([generation([1], [3, 4], logprobs=(-1.0,))]))
    (sample,) = samples(trajectory([generation([1], [3], logprobs=())]))
    assert math.isnan(sample.logprobs[1])


def test_a_sampled_token_needs_one_before_it() -> None:
    with pytest.raises(ValueError, match="nothing stands before it"):
        samples(trajectory([generation([], [3])]))


def test_a_row_holds_a_shared_prompt_once() -> None:
    """Worked by hand: two samples behind the prompt 10 11, whose last sampled tokens need no place."""
    episodes = [
        trajectory([generation([10, 11], [20, 21])], [generation([30], [22])]),
        trajectory([generation([10, 11], [40, 41])]),
    ]
    collected, _ = collect_samples(episodes)
    (row,) = pack(lessons(collected, torch.tensor([0.5, -0.5])), 100)
    # places:                0   1   2   3   4   5
    assert row.ids.tolist() == [10, 11, 20, 21, 30, 40]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 4, 2]
    assert row.target_ids.tolist() == [20, 21, 22, 40, 41]
    assert row.predict_at.tolist() == [1, 2, 4, 1, 5]
    assert row.advantages.tolist() == [0.5, 0.5, 0.5, -0.5, -0.5]
    assert row.sample.tolist() == [0, 0, 0, 1, 1]
    assert row.turn.tolist() == [0, 0, 1, 0, 0]
    assert row.weights.tolist() == [1.0] * 5
    assert row.tokens_saved == 2
    assert row.visible()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


def test_prompts_of_one_row_do_not_see_each_other() -> None:
    collected, _ = collect_samples([trajectory([generation([prompt], [20, 21])]) for prompt in (10, 11)])
    (row,) = pack(lessons(collected), 100)
    assert row.ids.tolist() == [10, 20, 11, 20]
    assert row.visible()[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    assert row.tokens_saved == 0


def test_prompts_that_begin_alike_share_their_beginning() -> None:
    """Worked by hand: prompts 9 10 and 9 11 behind one 9, which every token sees."""
    collected, _ = collect_samples([trajectory([generation([9, prompt], [20, 21])]) for prompt in (10, 11)])
    (row,) = pack(lessons(collected), 100)
    assert row.ids.tolist() == [9, 10, 20, 11, 20]
    assert row.position_ids.tolist() == [0, 1, 2, 1, 2]
    assert row.predict_at.tolist() == [1, 2, 3, 4]
    assert row.visible()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1],
    ]
    assert row.tokens_saved == 1


def test_a_prompt_may_be_the_beginning_of_another() -> None:
    collected, _ = collect_samples([trajectory([generation(prompt, [20, 21])]) for prompt in ([9], [9, 10])])
    (row,) = pack(lessons(collected), 100)
    assert row.ids.tolist() == [9, 20, 10, 20]
    assert row.predict_at.tolist() == [0, 1, 2, 3]


def test_advantages_may_differ_within_a_sample() -> None:
    collected, _ = collect_samples([trajectory([generation([1], [3, 4])], [generation([5], [6])])])
    (row,) = pack(lessons(collected, [torch.tensor([0.1, 0.2, 0.3])]), 100)
    assert row.advantages.tolist() == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("budget", [1, 20, 40, 10_000])
def test_rows_keep_to_the_budget_and_lose_no_token(budget: int) -> None:
    """Logged lengths are the real ones: what is fed and what is saved add up to all samples' tokens."""
    collected, _ = collect_samples(random_episodes(1))
    rows = pack(lessons(collected), budget)
    alone = [len(sample.prompt) + len(sample.rest) for sample in collected]
    assert all(len(row.ids) <= max(budget, *alone) for row in rows)
    assert sum(len(row.ids) + row.tokens_saved for row in rows) == sum(alone)
    trained = [
        (index, token)
        for row in rows
        for index, token in zip(row.sample.tolist(), row.target_ids.tolist(), strict=True)
    ]
    assert sorted(trained, key=lambda pair: pair[0]) == [
        (index, token)
        for index, sample in enumerate(collected)
        for token, acted in zip(sample.ids, sample.action_mask, strict=True)
        if acted
    ]


def test_one_row_repeats_neither_the_instruction_nor_a_prompt() -> None:
    collected, _ = collect_samples(random_episodes(1, groups=3, group_size=4))
    (row,) = pack(lessons(collected), 10_000)
    assert row.tokens_saved == (12 - 1) * 3 + 3 * (4 - 1) * 7


def test_minibatches_keep_groups_whole() -> None:
    collected, _ = collect_samples(random_episodes(1, groups=5, group_size=2))
    given = lessons(collected)
    assert minibatches(given, 2) == [given[:6], given[6:]]
    assert minibatches(given[:2], 3) == [given[:2], [], []]
