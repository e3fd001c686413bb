"""Sessions without HTTP: exactly once, scores, leases, caps, and whose fault a failure is."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gym_agents import protocol as wire
from gym_agents.errors import (
    AgentGymError,
    EmptySplit,
    ItemError,
    NotOffered,
    OptionError,
    ReplyTooLong,
    ResetNeeded,
    ServerBusy,
    SessionClosed,
    SessionUnknown,
    TurnConflict,
    UnknownTask,
    UsageError,
    WorldFailure,
)
from servers.sessions import Sessions
from servers.world import Result, World
from tests import fakes


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(world: World, *, max_sessions: int = 8, clock: Clock | None = None) -> Sessions:
    return Sessions(world, lease=10.0, max_sessions=max_sessions, clock=clock or Clock())


def create(name: str = "s", task: str | None = None, run: str = "r", **options: Any) -> wire.Create:
    return wire.Create(name, run, task, options)


def act(turn: int, command: str, episode: int = 1, name: str = "s") -> wire.Step:
    return wire.Step(name, episode, turn, f"Thought: so be it.\nAction: {command}")


def begin(world: World, item: int = 0, **kwargs: Any) -> Sessions:
    sessions = make(world, **kwargs)
    sessions.answer_now(create())
    sessions.answer_now(wire.Reset("s", 1, seed=0, item=item))
    return sessions


def play(sessions: Sessions, turn: int, command: str) -> wire.Stepped:
    answer = sessions.answer_now(act(turn, command))
    assert isinstance(answer, wire.Stepped)
    return answer


class TestCreate:
    def test_a_repeated_create_makes_one_session(self) -> None:
        sessions = make(fakes.CountingWorld())
        first, second = sessions.answer_now(create()), sessions.answer_now(create())
        assert first == second == wire.Created("s")
        assert len(sessions) == 1

    @pytest.mark.parametrize("other", [create(task="Low"), create(run="q"), create(grammar="bare")])
    def test_the_same_name_for_something_else_is_refused(self, other: wire.Create) -> None:
        sessions = make(fakes.CountingWorld())
        sessions.answer_now(create())
        with pytest.raises(UsageError, match="open already"):
            sessions.answer_now(other)

    def test_an_unknown_task_is_told_the_nearest(self) -> None:
        with pytest.raises(UnknownTask, match="'High'"):
            make(fakes.CountingWorld()).answer_now(create(task="Hihg"))

    def test_a_bad_option_is_refused_and_opens_nothing(self) -> None:
        sessions = make(fakes.CountingWorld())
        with pytest.raises(OptionError, match="Did you mean 'grammar'"):
            sessions.answer_now(create(gramar="bare"))
        assert len(sessions) == 0

    def test_a_late_create_does_not_bring_a_closed_session_back(self) -> None:
        sessions = make(fakes.CountingWorld())
        sessions.answer_now(create())
        sessions.answer_now(wire.Close("s"))
        with pytest.raises(SessionClosed):
            sessions.answer_now(create())


class TestReset:
    def test_a_repeated_reset_gives_the_first_answer_and_starts_nothing(self) -> None:
        world = fakes.CountingWorld()
        sessions = make(world)
        sessions.answer_now(create())
        first = sessions.answer_now(wire.Reset("s", 1, seed=3))
        play(sessions, 1, "add 1")
        again = sessions.answer_now(wire.Reset("s", 1, seed=3))
        assert msgspec.json.encode(first) == msgspec.json.encode(again)
        assert len(world.started) == 1
        assert play(sessions, 2, "add 0").observation == f"The count is {world.started[0].start + 1}."

    def test_a_replay_may_name_the_item_that_the_seed_picked(self) -> None:
        world = fakes.CountingWorld()
        sessions = make(world)
        sessions.answer_now(create())
        first = sessions.answer_now(wire.Reset("s", 1, seed=3))
        assert isinstance(first, wire.Started)
        assert sessions.answer_now(wire.Reset("s", 1, seed=3, item=first.item)) == first
        assert len(world.started) == 1

    def test_the_first_answer_says_what_is_played(self) -> None:
        sessions = make(fakes.CountingWorld())
        sessions.answer_now(create())
        assert sessions.answer_now(wire.Reset("s", 1, seed=9, item=10)) == wire.Started(
            item=10,
            task="High",
            instruction="Say `add N` to count, `stop` to end.",
            observation="The count is 10. Reach 15. Seed 9.",
            info={},
        )

    def test_a_higher_number_closes_the_old_episode_once_and_counts_turns_anew(self) -> None:
        world = fakes.CountingWorld()
        sessions = begin(world)
        play(sessions, 1, "add 2")
        sessions.answer_now(wire.Reset("s", 4, seed=0, item=1))
        assert [episode.closed for episode in world.started] == [1, 0]
        answer = sessions.answer_now(act(1, "add 1", episode=4))
        assert isinstance(answer, wire.Stepped)
        assert answer.observation == "The count is 2."

    @pytest.mark.parametrize(
        "late",
        [
            wire.Reset("s", 0, seed=0, item=0),
            wire.Reset("s", 1, seed=0, item=0),
            wire.Reset("s", 2, seed=1, item=0),
            wire.Reset("s", 2, seed=0, item=1),
        ],
    )
    def test_an_old_number_or_another_reset_under_the_same_is_refused(self, late: wire.Reset) -> None:
        world = fakes.CountingWorld()
        sessions = begin(world)
        sessions.answer_now(wire.Reset("s", 2, seed=0, item=0))
        with pytest.raises(TurnConflict):
            sessions.answer_now(late)
        assert len(world.started) == 2

    def test_the_same_seed_picks_the_same_item_from_the_tasks_split(self) -> None:
        picked = []
        for seed in (*range(20), *range(20)):
            sessions = make(fakes.CountingWorld())
            sessions.answer_now(create(task="Low"))
            started = sessions.answer_now(wire.Reset("s", 1, seed=seed))
            assert isinstance(started, wire.Started)
            picked.append(started.item)
        assert picked[:20] == picked[20:]
        assert set(picked) == {0, 1, 2, 3}

    @pytest.mark.parametrize(
        ("task", "call", "error"),
        [
            ("High", wire.Reset("s", 2, seed=0, item=0), ItemError),
            ("High", wire.Reset("s", 2, seed=0, item=99), ItemError),
            (None, wire.Reset("s", 2, seed=0, item=1000), ItemError),
            (None, wire.Reset("s", 2, seed=0, item=-1), ItemError),
            ("High", wire.Reset("s", 2, seed=0, split="eval"), EmptySplit),
            (None, wire.Reset("s", 2, seed=0, split="test"), UsageError),
            (None, wire.Reset("s", 2, seed=-1), UsageError),
        ],
    )
    def test_what_cannot_be_reset_changes_nothing(
        self, task: str | None, call: wire.Reset, error: type[AgentGymError]
    ) -> None:
        world = fakes.CountingWorld()
        sessions = make(world)
        sessions.answer_now(create(task=task))
        sessions.answer_now(wire.Reset("s", 1, seed=0, item=10))
        with pytest.raises(error):
            sessions.answer_now(call)
        assert play(sessions, 1, "add 1").observation == "The count is 11."

    def test_an_item_of_no_task_can_be_named_in_the_whole_scenario(self) -> None:
        sessions = begin(fakes.CountingWorld(), item=99)
        assert play(sessions, 1, "add 1").observation == "The count is 100."


class TestStep:
    def test_rewards_are_the_changes_of_the_score_and_success_is_the_worlds_word(self) -> None:
        sessions = begin(fakes.CountingWorld())
        answers = [play(sessions, turn, c) for turn, c in enumerate(("add 2", "add 3", "stop"), start=1)]
        assert [answer.reward for answer in answers] == pytest.approx([0.4, 0.6, 0.0])
        assert [answer.score for answer in answers] == pytest.approx([0.4, 1.0, 1.0])
        assert [(answer.terminated, answer.success) for answer in answers] == [
            (False, False),
            (False, False),
            (True, True),
        ]
        assert answers[0].command == "add 2"

    def test_an_end_without_success(self) -> None:
        answer = play(begin(fakes.CountingWorld()), 1, "stop")
        assert (answer.terminated, answer.success, answer.score) == (True, False, 0.0)

    def test_a_repeated_turn_gives_the_first_answer_and_plays_once(self) -> None:
        world = fakes.CountingWorld()
        sessions = begin(world)
        for turn in range(1, 6):
            first = sessions.answer_now(act(turn, "add 1"))
            again = sessions.answer_now(act(turn, "add 1"))
            assert msgspec.json.encode(first) == msgspec.json.encode(again)
        assert world.started[0].count == 5

    def test_the_last_turn_can_be_repeated_after_the_end_and_no_other_played(self) -> None:
        sessions = begin(fakes.CountingWorld())
        last = play(sessions, 1, "stop")
        assert play(sessions, 1, "stop") == last
        with pytest.raises(ResetNeeded):
            sessions.answer_now(act(2, "add 1"))

    @pytest.mark.parametrize(
        "call",
        [act(1, "add 1"), act(4, "add 1"), act(0, "add 1"), act(2, "add 3"), act(3, "add 1", episode=2)],
    )
    def test_an_old_a_future_or_another_turn_is_refused_and_changes_nothing(self, call: wire.Step) -> None:
        sessions = begin(fakes.CountingWorld())
        play(sessions, 1, "add 1")
        play(sessions, 2, "add 1")
        with pytest.raises(TurnConflict):
            sessions.answer_now(call)
        assert play(sessions, 3, "add 1").observation == "The count is 3."

    def test_before_the_first_reset(self) -> None:
        sessions = make(fakes.CountingWorld())
        sessions.answer_now(create())
        with pytest.raises(ResetNeeded):
            sessions.answer_now(act(1, "add 1"))

    @pytest.mark.parametrize("reply", ["", "I think so.", "Action: jump", "Action: add 1\nAction: add 1"])
    def test_an_invalid_reply_spends_the_turn_and_leaves_the_world_alone(self, reply: str) -> None:
        world = fakes.CountingWorld()
        sessions = begin(world)
        answer = sessions.answer_now(wire.Step("s", 1, 1, reply))
        assert isinstance(answer, wire.Stepped)
        assert (answer.valid, answer.command, answer.reward, answer.terminated) == (False, None, 0.0, False)
        assert answer.observation
        assert world.started[0].count == 0
        assert play(sessions, 2, "add 1").valid

    def test_the_bare_grammar_takes_the_command_alone(self) -> None:
        sessions = make(fakes.CountingWorld())
        sessions.answer_now(create(grammar="bare"))
        sessions.answer_now(wire.Reset("s", 1, seed=0, item=0))
        answer = sessions.answer_now(wire.Step("s", 1, 1, " add 3 "))
        assert isinstance(answer, wire.Stepped)
        assert answer.command == "add 3"

    def test_a_reply_over_the_limit_spends_no_turn(self) -> None:
        sessions = begin(fakes.CountingWorld())
        padding = wire.MAX_REPLY_BYTES - len("\nAction: add 1")
        with pytest.raises(ReplyTooLong, match=str(wire.MAX_REPLY_BYTES)):
            sessions.answer_now(wire.Step("s", 1, 1, "\u00e9" * (padding // 2 + 1) + "\nAction: add 1"))
        exactly = sessions.answer_now(wire.Step("s", 1, 1, "\u00e9" * (padding // 2) + "\nAction: add 1"))
        assert isinstance(exactly, wire.Stepped)
        assert exactly.observation == "The count is 1."


class TestScores:
    def test_an_opening_score_is_paid_with_the_first_step_and_an_own_limit_truncates(self) -> None:
        sessions = begin(fakes.LimitedWorld())
        first, second = play(sessions, 1, "add 1"), play(sessions, 2, "add 1")
        assert [first.reward, second.reward] == pytest.approx([0.4, 0.15])
        assert first.reward + second.reward == pytest.approx(second.score)
        assert (second.terminated, second.truncated, second.success) == (False, True, False)
        assert second.info == {"truncation": "the world allows two steps"}
        with pytest.raises(ResetNeeded):
            sessions.answer_now(act(3, "add 1"))

    def test_an_invalid_first_reply_earns_nothing_and_the_score_is_what_was_paid(self) -> None:
        sessions = begin(fakes.LimitedWorld())
        invalid = play(sessions, 1, "jump")
        assert (invalid.reward, invalid.score) == (0.0, 0.0)
        assert play(sessions, 2, "add 1").reward == pytest.approx(0.4)


class TestWorldFailures:
    @pytest.mark.parametrize("command", list(fakes.WRONG))
    def test_what_no_world_may_answer_is_the_worlds_failure(self, command: str) -> None:
        sessions = begin(fakes.NaNWorld())
        with pytest.raises(WorldFailure):
            sessions.answer_now(act(1, command))

    def test_the_first_cause_is_named_and_the_episode_is_over(self) -> None:
        sessions = begin(fakes.RaisingWorld())
        play(sessions, 1, "add 1")
        for _ in range(2):  # the repeated turn fails as the first did
            with pytest.raises(WorldFailure, match="ConnectionError: the helper went away"):
                sessions.answer_now(act(2, "add 3"))
        with pytest.raises(ResetNeeded):
            sessions.answer_now(act(3, "add 1"))

    @pytest.mark.parametrize(("cause", "told"), [(True, "ValueError: one"), (None, "OSError: two")])
    def test_causes_that_go_in_a_circle_or_are_hidden(self, cause: bool | None, told: str) -> None:
        class Circular(fakes.Counting):
            def step(self, command: str) -> Result:
                first = ValueError("one")
                try:
                    raise first
                except ValueError:
                    if cause:
                        raise first from first
                    raise OSError("two") from None

        world = fakes.CountingWorld()
        world.episode = Circular
        with pytest.raises(WorldFailure, match=told):
            begin(world).answer_now(act(1, "add 1"))

    def test_the_next_reset_heals_it_although_closing_fails(self, caplog: pytest.LogCaptureFixture) -> None:
        world = fakes.RaisingWorld()
        sessions = begin(world)
        with pytest.raises(WorldFailure):
            sessions.answer_now(act(1, "add 3"))
        sessions.answer_now(wire.Reset("s", 2, seed=0, item=0))
        answer = sessions.answer_now(act(1, "add 1", episode=2))
        assert isinstance(answer, wire.Stepped)
        assert world.started[0].closed == 1
        assert "already gone" in caplog.text

    def test_a_start_that_fails_may_be_asked_for_again(self) -> None:
        sessions = begin(fakes.RaisingWorld())
        for _ in range(2):
            with pytest.raises(WorldFailure, match="OSError: no such simulator"):
                sessions.answer_now(wire.Reset("s", 2, seed=0, item=3))
        with pytest.raises(ResetNeeded):
            sessions.answer_now(act(1, "add 1", episode=2))
        assert isinstance(sessions.answer_now(wire.Reset("s", 2, seed=0, item=1)), wire.Started)

    def test_a_look_that_fails_leaves_the_episode_alone(self) -> None:
        sessions = begin(fakes.RaisingWorld())
        with pytest.raises(WorldFailure, match="KeyError"):
            sessions.answer_now(wire.Look("s", "view"))
        assert play(sessions, 1, "add 1").valid


class TestText:
    def test_strange_text_is_cleaned_by_one_rule(self) -> None:
        sessions = make(fakes.StrangeTextWorld())
        sessions.answer_now(create())
        started = sessions.answer_now(wire.Reset("s", 1, seed=0, item=0))
        stepped = sessions.answer_now(act(1, "add 1"))
        looked = sessions.answer_now(wire.Look("s", "text"))
        assert isinstance(started, wire.Started)
        assert isinstance(stepped, wire.Stepped)
        shown = fakes.STRANGE_SHOWN
        assert started.observation == stepped.observation == shown
        assert (started.info, stepped.info) == ({shown: shown}, {"text": [shown]})
        assert looked == wire.Looked(shown)
        assert msgspec.json.decode(msgspec.json.encode(stepped), type=wire.Stepped) == stepped

    def test_a_long_observation_is_cut_with_a_mark(self) -> None:
        answer = play(begin(fakes.StrangeTextWorld()), 1, "add 9")
        assert answer.observation == "x" * 8000 + "\n[... 2000 more characters]"


class TestInfo:
    def test_a_world_that_reuses_its_dict_does_not_reach_into_what_was_answered(self) -> None:
        """Farama-Foundation/Gymnasium issue 1132: values of the end overwritten by the next reset."""
        sessions = make(fakes.SameDictWorld())
        sessions.answer_now(create())
        started = sessions.answer_now(wire.Reset("s", 1, seed=0, item=0))
        first, second = play(sessions, 1, "add 1"), play(sessions, 2, "add 1")
        assert isinstance(started, wire.Started)
        assert started.info == {"count": 0, "seen": [0]}
        assert first.info == {"count": 1, "seen": [0, 1]}
        assert second.info == {"count": 2, "seen": [0, 1, 2]}
        assert sessions.answer_now(wire.Reset("s", 1, seed=0, item=0)) == started


class TestLook:
    def test_questions_are_answered_without_a_turn(self) -> None:
        sessions = begin(fakes.CountingWorld())
        play(sessions, 1, "add 1")
        looks = [
            sessions.answer_now(wire.Look("s", "actions")),
            sessions.answer_now(wire.Look("s", "view")),
            sessions.answer_now(wire.Look("s", "picture")),
            sessions.answer_now(wire.Look("s", "text")),
        ]
        assert looks == [
            wire.Looked(["add 1", "stop"]),
            wire.Looked({"count": 1}),
            wire.Looked("iVBORw=="),
            wire.Looked("The count is 1."),
        ]
        assert play(sessions, 2, "add 1").observation == "The count is 2."

    def test_what_a_world_does_not_offer_is_a_typed_error(self) -> None:
        class Silent(fakes.Counting):
            def picture(self) -> bytes:
                raise NotOffered("This world draws no picture.")

        world = fakes.CountingWorld()
        world.episode = Silent
        with pytest.raises(NotOffered):
            begin(world).answer_now(wire.Look("s", "picture"))


class TestClose:
    def test_closing_is_idempotent_and_told_apart_from_what_was_never_open(self) -> None:
        """Huggingface/OpenEnv PR 1000: slots held by sessions that nobody closes, or closes twice."""
        world = fakes.CountingWorld()
        sessions = begin(world)
        assert sessions.answer_now(wire.Close("s")) == wire.Closed("s")
        assert sessions.answer_now(wire.Close("s")) == wire.Closed("s")
        for call in (act(1, "add 1"), wire.Reset("s", 2, seed=0), wire.Look("s", "text")):
            with pytest.raises(SessionClosed):
                sessions.answer_now(call)
        for unknown in (act(1, "add 1", name="t"), wire.Close("t")):
            with pytest.raises(SessionUnknown, match="lease of 10 s"):
                sessions.answer_now(unknown)
        assert world.started[0].closed == 1

    def test_a_closed_name_is_remembered_for_a_lease(self) -> None:
        clock = Clock()
        sessions = begin(fakes.CountingWorld(), clock=clock)
        sessions.answer_now(wire.Close("s"))
        clock.now += 9.0
        sessions.sweep()
        with pytest.raises(SessionClosed):
            sessions.answer_now(act(1, "add 1"))
        clock.now += 2.0
        sessions.sweep()
        with pytest.raises(SessionUnknown):
            sessions.answer_now(act(1, "add 1"))


class TestLeases:
    def test_a_full_server_says_when_to_come_back_and_has_room_once_leases_end(self) -> None:
        clock, world = Clock(), fakes.CountingWorld()
        sessions = begin(world, max_sessions=2, clock=clock)
        clock.now += 4.0
        sessions.answer_now(create("t"))
        with pytest.raises(ServerBusy) as busy:
            sessions.answer_now(create("u"))
        assert busy.value.retry_after == pytest.approx(6.0)
        clock.now += 6.0
        sessions.answer_now(create("u"))
        assert world.started[0].closed == 1
        with pytest.raises(SessionUnknown, match="lease"):
            sessions.answer_now(act(1, "add 1"))

    def test_calls_and_renewals_keep_a_session(self) -> None:
        clock = Clock()
        sessions = begin(fakes.CountingWorld(), clock=clock)
        sessions.answer_now(create("other", run="q"))
        clock.now += 8.0
        play(sessions, 1, "add 1")
        clock.now += 8.0
        assert sessions.renew("r") == 1
        assert sessions.renew("nobody") == 0
        clock.now += 8.0
        sessions.sweep()
        assert len(sessions) == 1
        assert play(sessions, 2, "add 1").observation == "The count is 2."

    def test_a_run_closes_together(self) -> None:
        world = fakes.CountingWorld()
        sessions = begin(world)
        sessions.answer_now(create("t"))
        sessions.answer_now(create("other", run="q"))
        assert asyncio.run(sessions.close_run("r")) == 2
        assert asyncio.run(sessions.close_run("r")) == 0
        assert len(sessions) == 1
        assert world.started[0].closed == 1


class TestLosing:
    def test_a_session_whose_episode_the_world_has_lost_is_dropped(self) -> None:
        world = fakes.LosingWorld()
        sessions = begin(world)
        with pytest.raises(SessionUnknown, match="has died"):
            play(sessions, 1, "add 4")
        assert len(sessions) == 0
        assert world.started[0].closed == 1
        with pytest.raises(SessionUnknown, match="never opened"):
            play(sessions, 1, "add 4")
        assert sessions.answer_now(create()) == wire.Created("s")

    def test_a_session_played_in_a_thread_is_dropped_too(self) -> None:
        world = fakes.LosingWorld()
        world.inline = False
        sessions = make(world)

        async def lose() -> None:
            await sessions.answer(create())
            await sessions.answer(wire.Reset("s", 1, seed=0, item=0))
            with pytest.raises(SessionUnknown, match="has died"):
                await sessions.answer(act(1, "add 4"))
            assert len(sessions) == 0
            await sessions.shut_down()

        asyncio.run(lose())
        assert world.started[0].closed == 1

    def test_a_world_may_have_room_for_fewer(self) -> None:
        assert make(fakes.LosingWorld(), max_sessions=8).max_sessions == 2
        assert make(fakes.LosingWorld(), max_sessions=1).max_sessions == 1
