"""The groups of an update: replaced where they tell nothing, dropped where the environment failed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gym_agents.trajectory import Outcome, Trajectory, Turn
from trainers.acting.groups import harvest
from trainers.acting.health import ErrorBudget
from trainers.acting.rollout import Job
from trainers.acting.sampler import ItemSampler
from trainers.config import EnvConfig, RLConfig
from trainers.errors import TooManyEnvErrors


def episode(job: Job, score: float, outcome: Outcome = Outcome.FAILURE) -> Trajectory:
    return Trajectory(
        *("counting", None, f"counting_{job.item}", job.seed, {}, "", (), ""),
        outcome=outcome,
        score=score,
        group=job.group,
        member=job.member,
        error="lost" if outcome is Outcome.ENV_ERROR else None,
    )


def player(played: list[Job], score: Callable[[Job], float]) -> Callable[[list[Job]], list[Trajectory]]:
    def play(jobs: list[Job]) -> list[Trajectory]:
        played.extend(jobs)
        return [episode(job, score(job)) for job in jobs]

    return play


def test_members_share_item_and_seed_and_groups_do_not() -> None:
    played: list[Job] = []
    harvest(
        player(played, lambda job: job.member), ItemSampler(range(9), 0), RLConfig(groups=3, group_size=2), 5
    )
    assert [(job.group, job.member) for job in played] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert len({(job.item, job.seed) for job in played}) == 3


def test_groups_that_tell_nothing_are_replaced_by_the_next_items_up_to_the_bound() -> None:
    """Only even groups have scores that differ: 0..3 hold two, 4 and 5 one more, and the budget ends at 6."""
    played: list[Job] = []
    sampler = ItemSampler(range(100), 0)
    play = player(played, lambda job: job.member if job.group % 2 == 0 else 0.3 + 1e-9 * job.member)
    result = harvest(play, sampler, RLConfig(groups=4, group_size=2, refill_groups=3), 5)
    assert sampler.drawn == 7
    assert [group[0].group for group in result.groups] == [0, 1, 2, 3, 4, 5, 6]
    assert [group[0].group for group in result.telling] == [0, 2, 4, 6]
    assert len(result.usable) == 7


def test_enough_telling_groups_need_no_more() -> None:
    sampler = ItemSampler(range(100), 0)
    play = player([], lambda job: job.member)
    assert len(harvest(play, sampler, RLConfig(groups=4, group_size=2, refill_groups=9), 5).groups) == 4
    assert sampler.drawn == 4


def test_a_group_with_an_environment_error_is_not_usable() -> None:
    def play(jobs: list[Job]) -> list[Trajectory]:
        failing = (1, 1)
        return [
            episode(job, 0.0, Outcome.ENV_ERROR)
            if (job.group, job.member) == failing
            else episode(job, float(job.member))
            for job in jobs
        ]

    result = harvest(play, ItemSampler(range(9), 0), RLConfig(groups=3, group_size=2), 5)
    assert [group[0].group for group in result.usable] == [0, 2]
    assert len(result.episodes) == 6


def test_success_can_be_all_that_an_episode_is_worth() -> None:
    """Three episodes that earn 0.5 and 0.33 in two turns; the last of them is a success with 0.5 + 0.5."""
    turns = {
        member: (Turn("", "", 0.5, 0.5, True, "a"), Turn("", "", last, 0.5 + last, True, "b"))
        for member, last in enumerate((0.33, 0.33, 0.5))
    }

    def play(jobs: list[Job]) -> list[Trajectory]:
        outcomes = (Outcome.HORIZON_CUT, Outcome.FAILURE, Outcome.SUCCESS)
        return [
            msgspec.structs.replace(
                episode(job, 0.83, outcomes[job.member % 3]),
                turns=turns[job.member % 3],
                item_id=f"x_{job.item}",
            )
            for job in jobs
        ]

    config = RLConfig(groups=1, group_size=3, reward="success")
    result = harvest(play, ItemSampler(range(9), 0), config, 5)
    [group] = result.telling
    assert [one.score for one in group] == [0.0, 0.0, 1.0]
    assert [[turn.reward for turn in one.turns] for one in group] == [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    assert [one.score for one in result.episodes] == [0.83] * 3  # what is kept and told is the world's
    two_equal = RLConfig(groups=1, group_size=2, reward="success")
    assert not harvest(play, ItemSampler(range(9), 0), two_equal, 5).telling


def test_the_budget_ends_above_its_share_with_the_first_cause() -> None:
    budget = ErrorBudget(EnvConfig(id="AgentGym/TextCraft-v0", server="http://there", max_error_rate=0.25), 8)
    job = Job(item=0, seed=0, group=0, member=0)
    budget.spend(episode(job, 0.0))
    for _ in range(2):
        budget.spend(episode(job, 0.0, Outcome.ENV_ERROR))
    with pytest.raises(TooManyEnvErrors) as caught:
        budget.spend(episode(job, 0.0, Outcome.ENV_ERROR))
    assert str(caught.value) == (
        "3 of 8 episodes of AgentGym/TextCraft-v0 at http://there failed by the environment, more than "
        "env.max_error_rate = 0.25 allows. First cause: lost"
    )
