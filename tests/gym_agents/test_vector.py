"""Many episodes at once, over real local servers of small worlds."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest

from gym_agents.errors import (
    DeadlineExceeded,
    ItemError,
    LimitError,
    OptionError,
    ReplyTooLong,
    ResetNeeded,
    UsageError,
    VectorFailure,
    WorldFailure,
)
from gym_agents.horizon import HorizonLimit, make_vector_env
from gym_agents.protocol import MAX_REPLY_BYTES
from gym_agents.vector import Event

ADD = "Action: add 1"
STOP = "Action: stop"


def vector(n: int, world: str = "CountingWorld", **how: object) -> HorizonLimit:
    return make_vector_env(n, f"tests.fakes:{world}", **{"max_episode_steps": -1, **how})


@pytest.fixture
def envs() -> Iterator[HorizonLimit]:
    made = vector(4)
    yield made
    made.close()


@pytest.mark.parametrize("count", [0, -2, 2.0, "3", True])
def test_a_vector_of_no_whole_number_is_refused(count: object) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        vector(count)  # type: ignore[arg-type]


def items(infos: dict[str, np.ndarray]) -> list[str]:
    return list(infos["item_id"])


def test_step_is_gymnasiums(envs: HorizonLimit) -> None:
    observations, infos = envs.reset(seed=0, options={"item": [0, 1, 2, 3]})
    assert observations[2] == "The count is 2. Reach 7. Seed 2."
    assert items(infos) == ["counting_0", "counting_1", "counting_2", "counting_3"]
    for _ in range(4):
        observations, rewards, *_ = envs.step([ADD] * 4)
        np.testing.assert_allclose(rewards, 0.2)
    observations, rewards, terminations, truncations, infos = envs.step([ADD, STOP, "nothing", ADD])
    np.testing.assert_allclose(rewards, [0.2, 0.0, 0.0, 0.2], atol=1e-12)
    assert terminations.tolist() == [False, True, False, False]
    assert not truncations.any()
    assert infos["valid"].tolist() == [True, True, False, True]
    assert infos["success"].tolist() == [False] * 4
    assert observations[0] == "The count is 5."


def test_a_finished_index_must_be_reset_and_the_mask_resets_it_alone(envs: HorizonLimit) -> None:
    """Farama-Foundation/Gymnasium #1132 and PR 1680: the last values must survive the next reset."""
    envs.reset(seed=0, options={"item": 0})
    last = envs.step([STOP, ADD, ADD, ADD])
    kept = copy.deepcopy(last)
    with pytest.raises(ResetNeeded, match="index 0"):
        envs.step([ADD] * 4)
    observations, infos = envs.reset(options={"reset_mask": np.array([True, False, False, False]), "item": 3})
    assert observations[0].startswith("The count is 3.")
    assert observations[1] == "The count is 1."
    assert infos["_item_id"].tolist() == [True, False, False, False]
    envs.step([ADD] * 4)
    envs.step([ADD] * 4)
    for now, then in zip(last[:4], kept[:4], strict=True):
        np.testing.assert_array_equal(now, then)
    assert last[4]["item_id"].tolist() == kept[4]["item_id"].tolist() == ["counting_0"] * 4
    assert last[4]["command"].tolist() == kept[4]["command"].tolist()


def test_a_world_that_reuses_its_info_dict_changes_no_kept_info() -> None:
    """Farama-Foundation/Gymnasium #1132: terminal infos replaced because an object was reused."""
    envs = vector(1, "SameDictWorld")
    envs.send_reset([0], seeds=[0], items=[0])
    (start,) = envs.recv()
    envs.send([0], [ADD])
    (first,) = envs.recv()
    kept = copy.deepcopy((start.info, first.info))
    envs.send([0], [ADD])
    envs.recv()
    assert (start.info, first.info) == kept
    assert first.info["seen"] == [0, 1]
    envs.close()


def test_seeds_are_per_index_and_do_not_depend_on_who_finishes_first() -> None:
    """Farama-Foundation/Gymnasium #1321 and #427, openai/gym #3121."""
    envs, others = vector(4), vector(4)
    first, _ = envs.reset(seed=7)
    assert first == others.reset(seed=[7, 8, 9, 10])[0]
    assert [int(text.rsplit(maxsplit=1)[1].rstrip(".")) for text in first] == [7, 8, 9, 10]
    together = [envs.reset()[0], envs.reset()[0]]
    for index in (3, 1, 0, 2):
        others.send_reset([index])
        assert others.recv()[0].observation == together[0][index]
    others.send_reset([2, 0])
    later = {event.index: event.observation for event in drain(others, 2)}
    assert later == {2: together[1][2], 0: together[1][0]}
    envs.close()
    others.close()


def drain(envs: HorizonLimit, count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        events += envs.recv(timeout=30)
    return events


def test_unseeded_runs_differ() -> None:
    seeds = set()
    for _ in range(2):
        envs = vector(2)
        seeds |= set(envs.reset()[0])
        envs.close()
    assert len(seeds) == 4


def test_one_sleeping_world_delays_none_of_its_neighbours() -> None:
    envs = vector(64, "SleepingWorld")
    envs.reset(seed=0, options={"item": 0})
    started = time.monotonic()
    envs.send(range(64), ["Action: add 50", *["Action: add 0"] * 63])
    quick = drain(envs, 63)
    assert time.monotonic() - started < 4.0
    assert sorted(event.index for event in quick) == list(range(1, 64))
    (slow,) = drain(envs, 1)
    assert slow.index == 0
    assert time.monotonic() - started >= 5.0
    envs.close()


def test_recv_times_out_and_refuses_to_wait_for_nothing(envs: HorizonLimit) -> None:
    with pytest.raises(ResetNeeded, match="send first"):
        envs.recv()
    slow = vector(1, "SleepingWorld")
    slow.reset(options={"item": 0})
    slow.send([0], ["Action: add 10"])
    assert slow.recv(timeout=0.05) == []
    with pytest.raises(ResetNeeded, match="recv it first"):
        slow.send([0], [ADD])
    assert len(drain(slow, 1)) == 1
    slow.close()


def test_a_failing_and_a_silent_session_take_nobody_with_them() -> None:
    """openai/gym PR 1556, #1542, #1544: results of the others were lost, or held stray `None`s."""
    failing = vector(8, "RaisingWorld")
    failing.reset(seed=0, options={"item": 0})
    with pytest.raises(VectorFailure, match="index 3: .*the helper went away") as caught:
        failing.step(["Action: add 3" if index == 3 else ADD for index in range(8)])
    assert list(caught.value.failures) == [3]
    assert isinstance(caught.value.failures[3], WorldFailure)
    observations, rewards, *_ = caught.value.results
    assert [observations[index] for index in (0, 7)] == ["The count is 1."] * 2
    assert all(isinstance(text, str) for text in observations)
    assert rewards.tolist() == [0.2, 0.2, 0.2, 0.0, 0.2, 0.2, 0.2, 0.2]
    others = [index for index in range(8) if index != 3]
    failing.send(others, [ADD] * 7)
    assert {event.observation for event in drain(failing, 7)} == {"The count is 2."}
    failing.reset(options={"reset_mask": np.arange(8) == 3, "item": 0})
    assert (
        failing.step([ADD] * 8)[0]
        == ("The count is 3.",) * 3 + ("The count is 1.",) + ("The count is 3.",) * 4
    )
    failing.close()


def test_a_session_that_never_answers_fails_at_its_deadline() -> None:
    envs = vector(3, "SleepingWorld", deadline=1.0)
    envs.reset(seed=0, options={"item": 0})
    with pytest.raises(VectorFailure) as caught:
        envs.step(["Action: add 0", "Action: add 30", "Action: add 0"])
    assert list(caught.value.failures) == [1]
    assert isinstance(caught.value.failures[1], DeadlineExceeded)
    envs.reset(options={"reset_mask": np.array([False, True, False]), "item": 0})
    assert envs.step(["Action: add 0"] * 3)[0] == ("The count is 0.",) * 3
    envs.close()


def test_the_limit_cuts_and_a_win_on_the_last_turn_is_a_win() -> None:
    """Farama-Foundation/Gymnasium #291, #615, #470."""
    envs = vector(2, max_episode_steps=6)
    envs.reset(options={"item": 0})
    for _ in range(5):
        *_, terminations, truncations, _ = envs.step([ADD, ADD])
        assert not terminations.any()
        assert not truncations.any()
    *_, terminations, truncations, infos = envs.step([STOP, ADD])
    assert (terminations.tolist(), truncations.tolist()) == ([True, False], [False, True])
    assert infos["success"].tolist() == [True, False]
    with pytest.raises(ResetNeeded):
        envs.step([ADD, ADD])
    envs.close()


def test_a_raised_limit_acts_from_the_next_episode() -> None:
    envs = vector(1, max_episode_steps=2)
    envs.reset(options={"item": 0})
    envs.step([ADD])
    envs.set_horizon(4)
    assert envs.horizon == 4
    assert envs.step([ADD])[3].tolist() == [True]
    envs.reset(options={"item": 0})
    assert [bool(envs.step([ADD])[3][0]) for _ in range(4)] == [False, False, False, True]
    envs.close()


def test_a_worlds_own_limit_is_a_truncation_with_its_reason() -> None:
    envs = vector(1, "LimitedWorld")
    envs.reset(options={"item": 0})
    _, rewards, *_ = envs.step([ADD])
    np.testing.assert_allclose(rewards, [0.25 + 0.75 * 0.2])
    _, _, terminations, truncations, infos = envs.step([ADD])
    assert (terminations.tolist(), truncations.tolist()) == ([False], [True])
    assert infos["truncation"].tolist() == ["the world allows two steps"]
    assert infos["success"].tolist() == [False]
    envs.close()


@pytest.mark.parametrize("limit", [0, -2, 2.5, True, "3"])
def test_bad_limits_are_typed_errors(limit: object) -> None:
    with pytest.raises(LimitError):
        vector(1, max_episode_steps=limit)


def test_minus_one_is_no_limit() -> None:
    envs = vector(1, max_episode_steps=-1)
    assert envs.horizon is None
    envs.close()


def test_a_reply_over_the_limit_is_refused_before_it_is_sent(envs: HorizonLimit) -> None:
    envs.reset(options={"item": 0})
    for reply in ("x" * (MAX_REPLY_BYTES + 1), "\u00e9" * (MAX_REPLY_BYTES // 2 + 1)):
        with pytest.raises(ReplyTooLong, match=str(MAX_REPLY_BYTES)):
            envs.step([ADD, ADD, ADD, reply])
    _, _, _, _, infos = envs.step([ADD, ADD, ADD, "x" * MAX_REPLY_BYTES])
    assert infos["valid"].tolist() == [True, True, True, False]


def test_bad_reset_arguments(envs: HorizonLimit) -> None:
    for options in (
        {"reset_mask": [True]},
        {"reset_mask": np.zeros(4, dtype=bool)},
        {"item": [1]},
        {"itm": 1},
        {3: 4},
    ):
        with pytest.raises(OptionError):
            envs.reset(options=options)
    with pytest.raises(ValueError, match="seeds"):
        envs.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="replies"):
        envs.step([ADD])
    given = {"item": 0}
    envs.reset(options=given)
    assert given == {"item": 0}


def test_a_closed_vector_forgets_the_answers_on_their_way() -> None:
    envs = vector(1, "SleepingWorld")
    envs.reset(seed=0, options={"item": 0})
    envs.send([0], ["Action: add 3"])
    envs.close()
    observations, _ = envs.reset(seed=1, options={"item": 0})
    assert observations == ("The count is 0. Reach 5. Seed 1.",)
    time.sleep(0.4)
    assert envs.step(["Action: add 0"])[0] == ("The count is 0.",)
    envs.close_extras()


@pytest.mark.parametrize("indices", [[0, 0], [-1], [4]])
def test_an_index_that_is_not_there_or_named_twice_sends_nothing(
    envs: HorizonLimit, indices: list[int]
) -> None:
    envs.reset(options={"item": 0})
    with pytest.raises(UsageError):
        envs.send(indices, [ADD] * len(indices))
    with pytest.raises(UsageError):
        envs.send_reset(indices)
    assert envs.step([ADD] * 4)[0] == ("The count is 1.",) * 4


@pytest.mark.parametrize(
    "refused",
    [{"items": [0, "bad_1"]}, {"seeds": [1, -1]}, {"seeds": [1]}],
    ids=["item", "seed", "too few"],
)
def test_a_refused_reset_leaves_every_index_as_it_was(refused: dict[str, list[object]]) -> None:
    envs, others = vector(2), vector(2)
    for each in (envs, others):
        each.reset(seed=5, options={"item": 0})
    with pytest.raises((gymnasium.error.Error, ItemError, ValueError)):
        envs.send_reset([0, 1], **refused)
    assert envs.step([ADD] * 2)[0] == ("The count is 1.",) * 2
    assert envs.reset()[0] == others.reset()[0]
    envs.close()
    others.close()
