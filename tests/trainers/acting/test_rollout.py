"""Rollouts: outcomes, retries, order, and which ids stand in a trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gym_agents.errors import AgentGymError, ItemError, ReplyTooLong, WorldFailure
from gym_agents.trajectory import Outcome, Trajectory
from tests.trainers.acting.fakes import LAYOUT, TOO_LONG, FakeWorlds, ScriptedEngine, replies
from tests.trainers.acting.templates import TEMPLATES, tokenizer
from trainers.acting.agents import Agent, Play, Prompt, ReActAgent, Reply
from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Engine, Request, Sampling
from trainers.acting.engines.hf import HFEngine
from trainers.acting.rollout import Job, rollout
from trainers.embedded import tiny_model

FAILURE = WorldFailure("The world broke.")


def jobs(*items: int, members: int = 1) -> list[Job]:
    return [
        Job(item, seed=item + 100, group=item, member=member) for item in items for member in range(members)
    ]


def play(
    engine: Engine,
    worlds: FakeWorlds,
    todo: Sequence[Job],
    *,
    agent: Agent | None = None,
    horizon: int | None = 3,
    deterministic: bool = True,
    **how: Any,
) -> list[Trajectory]:
    return rollout(
        agent or ReActAgent(LAYOUT),
        engine,
        worlds,  # type: ignore[arg-type]
        todo,
        horizon=horizon,
        sampling=Sampling(max_new_tokens=6),
        update=5,
        deterministic=deterministic,
        **how,
    )


def outcome(*texts: str, fault: Sequence[AgentGymError | None] = (), **how: Any) -> Trajectory:
    """One episode of item 1."""
    engine = ScriptedEngine(replies(*texts), max_context=how.pop("max_context", 10_000))
    [episode] = play(engine, FakeWorlds(faults={1: list(fault)}), jobs(1), **how)
    return episode


def test_a_trajectory_tells_all_of_its_episode() -> None:
    episode = outcome("go", "?", "win")
    assert (episode.scenario, episode.task, episode.item_id, episode.seed) == ("fake", "Easy", "fake_1", 101)
    assert (episode.group, episode.member, episode.horizon, episode.update) == (1, 0, 3, 5)
    assert (episode.options, episode.instruction) == ({"grammar": "react"}, "Play.")
    assert [(turn.observation, turn.reply) for turn in episode.turns] == [
        ("1:0", "go"),
        ("1:1", "?"),
        ("1:2", "win"),
    ]
    assert [(turn.reward, turn.score, turn.valid) for turn in episode.turns] == [
        (0.0, 0.0, True),
        (0.0, 0.0, False),
        (1.0, 1.0, True),
    ]
    assert (episode.final_observation, episode.score, episode.error) == ("1:3", 1.0, None)
    [generation] = episode.turns[1].generations
    assert generation.context_ids == LAYOUT.following("1:1", ended=True)
    assert generation.sampled_ids == LAYOUT.supervised("?")
    assert (generation.logprobs, generation.weight_version, generation.part) == ((-0.0, -1.0), 7, "act")


def test_a_win_on_the_last_turn_is_a_success() -> None:
    assert outcome("go", "go", "win").outcome is Outcome.SUCCESS


def test_the_worlds_end_without_success_is_a_failure() -> None:
    assert outcome("go", "lose").outcome is Outcome.FAILURE


def test_the_turn_limit_is_a_horizon_cut() -> None:
    episode = outcome("go", "go", "go")
    assert (episode.outcome, len(episode.turns)) == (Outcome.HORIZON_CUT, 3)
    # what would have been seen next is kept, so that a critic can say what it was worth
    assert episode.final_context_ids == tuple(LAYOUT.following(episode.final_observation, ended=True))


def test_an_episode_that_ended_goes_on_nowhere() -> None:
    assert outcome("go", "go", "win").final_context_ids == ()
    assert outcome("go", "lose").final_context_ids == ()


def test_no_room_for_another_token_is_a_length_cut() -> None:
    """The second reply is cut inside by the context's end and still played; the third has no room at all."""
    room = len(LAYOUT.opening("Play.", "1:0")) + len(LAYOUT.supervised("go"))
    room += len(LAYOUT.following("1:1", ended=True)) + len(LAYOUT.supervised("gone")) - 2
    episode = outcome("go", "gone", "go", max_context=room)
    assert episode.outcome is Outcome.LENGTH_CUT
    assert episode.final_context_ids == tuple(LAYOUT.following(episode.final_observation, ended=False))
    assert [turn.reply for turn in episode.turns] == ["go", LAYOUT.decode(LAYOUT.supervised("gone")[:-2])]
    assert episode.final_observation == "1:2"


def test_a_reply_over_the_limit_ends_its_episode_alone_as_a_failure_that_says_why() -> None:
    long = "x" * TOO_LONG

    def script(request: Request, turn: int) -> Sequence[int]:
        return LAYOUT.supervised(long if request.seed[2] == 2 and turn == 1 else ("go", "win")[turn])

    ended = play(ScriptedEngine(script, at_once=3), FakeWorlds(), jobs(1, 2, 3))
    assert [episode.outcome for episode in ended] == [Outcome.SUCCESS, Outcome.FAILURE, Outcome.SUCCESS]
    assert ended[1].error == "reply_too_long: The reply is too long."
    assert [(turn.reply, turn.reward, turn.valid) for turn in ended[1].turns] == [
        ("go", 0, True),
        (long, 0, False),
    ]
    assert ended[1].turns[1].generations[0].sampled_ids == LAYOUT.supervised(long)


def test_a_reply_that_the_server_refuses_is_the_agents_failure_too() -> None:
    episode = outcome("go", "go", fault=[None, ReplyTooLong("The server says so.")])
    assert (episode.outcome, len(episode.turns)) == (Outcome.FAILURE, 1)


@pytest.mark.parametrize(
    "fault", [[FAILURE], [None, FAILURE], [None, None, FAILURE]], ids=["reset", "1", "2"]
)
def test_an_episode_that_the_world_failed_is_begun_anew_and_ends_as_if_nothing_had_happened(
    fault: list[AgentGymError | None],
) -> None:
    assert outcome("go", "go", "win", fault=fault) == outcome("go", "go", "win")


def test_an_environment_that_fails_again_is_an_env_error_and_never_a_failure() -> None:
    """NVIDIA-NeMo/Gym #1351 trained such episodes as zeros."""
    episode = outcome("go", "go", fault=[None, FAILURE, None, None, FAILURE])
    assert (episode.outcome, episode.error) == (Outcome.ENV_ERROR, "world_failure: The world broke.")
    assert [turn.reply for turn in episode.turns] == ["go"]
    assert outcome(fault=[FAILURE], retries=0).outcome is Outcome.ENV_ERROR


def test_the_callers_mistake_is_raised_and_leaves_nothing_under_way() -> None:
    worlds = FakeWorlds(faults={2: [ItemError("There is no item 2.")]})
    engine = ScriptedEngine(replies("win"))
    with pytest.raises(ItemError, match="no item 2"):
        play(engine, worlds, jobs(1, 2, 3), deterministic=False)
    assert not worlds.under_way
    assert not engine.open


def test_an_interrupt_leaves_worlds_and_engine_usable() -> None:
    worlds, engine = FakeWorlds(), ScriptedEngine(replies("go", "win"))

    def interrupt(_: Trajectory) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(engine, worlds, jobs(*range(8)), deterministic=False, on_episode=interrupt)
    assert not worlds.under_way
    assert not engine.queue
    assert all(
        episode.success for episode in play(ScriptedEngine(replies("go", "win")), worlds, jobs(*range(8)))
    )


@pytest.mark.parametrize("deterministic", [True, False])
def test_every_job_is_played_once_and_stands_in_its_place(deterministic: bool) -> None:
    todo, told = jobs(*range(11), members=2), []
    worlds, engine = FakeWorlds(), ScriptedEngine(replies("go", "win"))
    ended = play(engine, worlds, todo, deterministic=deterministic, on_episode=told.append)
    assert [(episode.item_id, episode.member) for episode in ended] == [
        (f"fake_{job.item}", job.member) for job in todo
    ]
    assert sorted(worlds.resets) == sorted((job.item, job.seed, "train") for job in todo)
    assert sorted(map(id, told)) == sorted(map(id, ended))
    assert not engine.open


def test_fewer_jobs_than_worlds_and_none_at_all() -> None:
    assert len(play(ScriptedEngine(replies("win")), FakeWorlds(), jobs(1))) == 1
    assert play(ScriptedEngine(replies("win")), FakeWorlds(), []) == []


def test_items_of_both_splits_can_be_played_together() -> None:
    worlds = FakeWorlds()
    play(ScriptedEngine(replies("win")), worlds, [Job(1, 1, 1, 0, "train"), Job(2, 2, 2, 0, "eval")])
    assert sorted(worlds.resets) == [(1, 1, "train"), (2, 2, "eval")]


def test_a_world_that_takes_long_delays_no_other_unless_the_order_is_fixed() -> None:
    ended: list[str] = []
    play(
        ScriptedEngine(replies("go", "win")),
        FakeWorlds(held={0}),
        jobs(*range(9)),
        deterministic=False,
        on_episode=lambda episode: ended.append(episode.item_id),
    )
    assert ended[-1] == "fake_0"
    assert len(ended) == 9


def test_the_order_of_arrival_changes_nothing_where_the_order_is_fixed() -> None:
    def requests(arrivals: int) -> list[Request]:
        engine = ScriptedEngine(replies("go", "go", "win"), at_once=2)
        play(engine, FakeWorlds(arrivals=arrivals), jobs(*range(9), members=2))
        return engine.requests

    assert requests(0) == requests(1) == requests(2)


def test_what_a_real_model_samples_is_the_same_whatever_the_order_of_arrival() -> None:
    def sampled(arrivals: int) -> list[Trajectory]:
        engine = HFEngine(tiny_model(), max_batch=3)
        return play(engine, FakeWorlds(arrivals=arrivals), jobs(1, 2, 3, members=3))

    assert sampled(0) == sampled(1)


def test_all_randomness_of_a_reply_is_named_by_its_seed() -> None:
    engine = ScriptedEngine(replies("go", "win"))
    play(engine, FakeWorlds(), jobs(4, members=2))
    assert sorted(request.seed for request in engine.requests) == [
        (104, 5, 4, member, turn, 0) for member in range(2) for turn in range(2)
    ]


# Which ids are fed, and which are kept.


def awkward(chat: ChatLayout, split: str = "hello") -> list[tuple[int, ...]]:
    """Three replies: spelt in other pieces than the tokenizer's, with a control token inside, and cut without end."""
    spelt = tuple(id for letter in split for id in chat.supervised(letter)[:-1])
    start = chat.opening("", "")[0]
    thought = chat.supervised("thinking")[:-1]
    return [
        (*spelt, *chat.supervised("")),
        (*thought, start, *chat.supervised(" go ")),
        chat.supervised("gone")[:-1],
    ]


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_ids_are_kept_as_sampled_and_every_context_extends_the_one_before(template: str) -> None:
    """Decoding and encoding again changes ids: huggingface/trl #5224, rllm-org/rllm PR 272, verl-project/verl #2165."""
    chat = ChatLayout(tokenizer(template))
    said = awkward(chat)
    engine = ScriptedEngine(lambda request, turn: said[turn])
    [episode] = play(engine, FakeWorlds(), jobs(1), agent=ReActAgent(chat))
    generations = [generation for turn in episode.turns for generation in turn.generations]
    assert [generation.sampled_ids for generation in generations] == said
    assert all(len(generation.logprobs) == len(generation.sampled_ids) for generation in generations)
    assert [generation.context_ids for generation in generations] == [
        chat.opening("Play.", "1:0"),
        chat.following("1:1", ended=True),
        chat.following("1:2", ended=True),
    ]
    assert [turn.reply for turn in episode.turns] == ["hello", "thinking<|im_start|> go ", "gone"]


def test_the_end_of_a_cut_reply_is_context_and_not_sampled() -> None:
    said = [LAYOUT.supervised("gone")[:-1], LAYOUT.supervised("win")]
    [episode] = play(ScriptedEngine(lambda request, turn: said[turn]), FakeWorlds(), jobs(1))
    [end] = LAYOUT.stop_ids
    assert episode.turns[1].generations[0].context_ids[0] == end
    assert end not in episode.turns[0].generations[0].sampled_ids


class PlanningAgent:
    """Plans afresh before each reply, in a context of its own."""

    stop_ids = LAYOUT.stop_ids

    def play(self, instruction: str, observation: str) -> Play:
        while True:
            plan = yield Prompt(LAYOUT.opening("Plan.", observation), fresh=True, part="plan")
            said = yield Prompt(LAYOUT.following(observation, ended=plan.finish == "stop"))
            observation = yield Reply(LAYOUT.decode(said.sampled_ids))


def test_an_agent_may_sample_several_times_a_turn_and_begin_new_contexts() -> None:
    engine = ScriptedEngine(lambda request, turn: LAYOUT.supervised(("my plan", "go")[turn]))
    [episode] = play(engine, FakeWorlds(), jobs(1), agent=PlanningAgent(), horizon=2)
    assert [[(part.part, part.fresh) for part in turn.generations] for turn in episode.turns] == [
        [("plan", True), ("act", False)]
    ] * 2
    assert [turn.reply for turn in episode.turns] == ["go", "go"]
    assert [request.seed[-2:] for request in engine.requests] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    names = [request.conversation for request in engine.requests]
    assert names[0] == names[1] != names[2] == names[3]
    assert not engine.open
