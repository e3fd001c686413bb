"""Agents that plan, reflect, or see a window: what they are shown, and what is trained of what they say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest

from gym_agents.trajectory import Generation, Outcome, Trajectory, Turn
from tests.trainers.acting.fakes import LAYOUT, FakeWorlds, Script, ScriptedEngine
from tests.trainers.acting.templates import TEMPLATES, tokenizer
from trainers.acting.agents import (
    ASK_FOR_ACT,
    ASK_FOR_PLAN,
    ASK_FOR_REFLECTION,
    Layout,
    make_agent,
)
from trainers.acting.characters import CharacterLayout
from trainers.acting.chat import ChatLayout
from trainers.acting.demos import as_sampled
from trainers.acting.engines.base import Request, Sampling
from trainers.acting.rollout import Job, rollout
from trainers.config import AgentConfig
from trainers.learning.batch import samples

START = "<|im_start|>"
HEAD = f"{START}user\nPlay.\n\n1:0"


def play(
    config: AgentConfig, script: Script, *, horizon: int = 3, layout: Layout = LAYOUT, **how: int
) -> Trajectory:
    """One episode of item 1, whose observation after n turns is `1:n`."""
    [episode] = rollout(
        make_agent(config, layout),
        ScriptedEngine(script, **how),
        FakeWorlds(),  # type: ignore[arg-type]
        [Job(1, seed=101, group=1, member=0)],
        horizon=horizon,
        sampling=Sampling(max_new_tokens=6),
        update=5,
        deterministic=True,
    )
    return episode


def saying(*texts: str) -> Script:
    """These, one after another, whatever the context."""
    left = list(texts)
    return lambda request, turn: LAYOUT.supervised(left.pop(0))


def shown(ids: Sequence[int]) -> str:
    return tokenizer().decode(ids)


def generations(episode: Trajectory) -> list[Generation]:
    return [*chain.from_iterable(turn.generations for turn in episode.turns)]


def test_a_plan_comes_first_and_stands_before_every_reply() -> None:
    episode = play(AgentConfig("planning"), saying("my plan", "go", "win"))
    assert [[part.part for part in turn.generations] for turn in episode.turns] == [["plan", "act"], ["act"]]
    assert [turn.reply for turn in episode.turns] == ["go", "win"]
    [sample] = samples(episode)
    assert shown(sample.ids) == (
        f"{HEAD}\n\n{ASK_FOR_PLAN}<|im_end|>\n{START}assistant\nmy plan<|im_end|>\n"
        f"{START}user\n{ASK_FOR_ACT}<|im_end|>\n{START}assistant\ngo<|im_end|>\n"
        f"{START}user\n1:1<|im_end|>\n{START}assistant\nwin<|im_end|>"
    )


def test_each_outcome_is_reflected_on_before_the_next_reply() -> None:
    episode = play(AgentConfig("reflection"), saying("go", "it failed", "win"))
    assert [[part.part for part in turn.generations] for turn in episode.turns] == [
        ["act"],
        ["reflect", "act"],
    ]
    assert [turn.reply for turn in episode.turns] == ["go", "win"]
    [sample] = samples(episode)
    assert shown(sample.ids) == (
        f"{HEAD}<|im_end|>\n{START}assistant\ngo<|im_end|>\n"
        f"{START}user\n1:1\n\n{ASK_FOR_REFLECTION}<|im_end|>\n{START}assistant\nit failed<|im_end|>\n"
        f"{START}user\n{ASK_FOR_ACT}<|im_end|>\n{START}assistant\nwin<|im_end|>"
    )


@pytest.mark.parametrize("name", ["planning", "reflection"])
def test_plans_and_reflections_are_trained_like_any_reply(name: str) -> None:
    """Whatever was sampled is trained, with the log-probability it was sampled with, and nothing else is."""
    said = ("one two", "go", "three", "four", "win")
    episode = play(AgentConfig(name), saying(*said))  # type: ignore[arg-type]
    [sample] = samples(episode)
    trained = [id for id, mask in zip(sample.ids, sample.action_mask, strict=True) if mask]
    spoken = len(generations(episode))
    assert spoken == (4 if name == "planning" else 5)
    assert shown(trained) == "".join(f"{text}<|im_end|>" for text in said[:spoken])
    logprobs = [p for p, mask in zip(sample.logprobs, sample.action_mask, strict=True) if mask]
    assert logprobs == [*chain.from_iterable(part.logprobs for part in generations(episode))]


def test_a_plan_that_leaves_no_room_for_a_reply_is_still_learned_from() -> None:
    asked = LAYOUT.opening("Play.", f"1:0\n\n{ASK_FOR_PLAN}")
    episode = play(AgentConfig("planning"), saying("my plan", "go"), max_context=len(asked) + 4)
    assert episode.outcome is Outcome.LENGTH_CUT
    [turn] = episode.turns
    assert (turn.reply, turn.reward, turn.valid) == ("", 0.0, False)
    [sample] = samples(episode)
    assert sum(sample.action_mask) == len(LAYOUT.supervised("my plan"))


def window(size: int, turns: int, template: str = TEMPLATES["chatml"]) -> Trajectory:
    """An episode in which turn n is answered by the letter of its number, in the ids of its template."""
    layout = ChatLayout(tokenizer(template))

    def script(request: Request, turn: int) -> Sequence[int]:
        return layout.supervised(chr(ord("A") + request.seed[4]))

    return play(AgentConfig("window", window=size), script, horizon=turns, layout=layout)


def test_a_window_shows_the_task_and_the_latest_turns() -> None:
    """Windows of 4 turns: turns 0-3; then 2 and 3 again before 4 and 5; then 4 and 5 again before 6.

    The last one ends with the opening of the turn that the limit did not let come.
    """
    contexts = samples(window(4, 7))
    assert [shown(sample.ids).count("assistant\n") for sample in contexts] == [4, 4, 4]
    assert shown(contexts[-1].ids).endswith(f"1:7<|im_end|>\n{START}assistant\n")
    assert shown(contexts[1].ids) == (
        f"{HEAD}\n\n(2 earlier turns are left out here.)\n\n1:2<|im_end|>\n{START}assistant\nC<|im_end|>\n"
        f"{START}user\n1:3<|im_end|>\n{START}assistant\nD<|im_end|>\n"
        f"{START}user\n1:4<|im_end|>\n{START}assistant\nE<|im_end|>\n"
        f"{START}user\n1:5<|im_end|>\n{START}assistant\nF<|im_end|>"
    )
    assert f"{HEAD}\n\n(4 earlier turns are left out here.)\n\n1:4<|im_end|>" in shown(contexts[2].ids)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_each_window_is_a_sample_and_each_sampled_id_is_trained_once(size: int, template: str) -> None:
    episode = window(size, 7, template)
    contexts = samples(episode)
    trained = [
        (turn, id)
        for sample in contexts
        for turn, id, mask in zip(sample.turns, sample.ids, sample.action_mask, strict=True)
        if mask
    ]
    assert trained == [
        (number, id)
        for number, turn in enumerate(episode.turns)
        for part in turn.generations
        for id in part.sampled_ids
    ]
    longest = max(len(sample.ids) for sample in contexts)
    assert all(shown(sample.ids).count("1:0") == 1 for sample in contexts)
    assert longest < len(LAYOUT.opening("Play.", "1:0")) + 45 + 40 * size


def test_a_window_keeps_replies_in_the_ids_in_which_they_were_sampled() -> None:
    """Spelt letter by letter, which is not how the tokenizer would have spelt them."""
    spelt = tuple(id for letter in " stick" for id in LAYOUT.supervised(letter)[:-1])
    assert spelt != LAYOUT.supervised(" stick")[:-1]
    episode = play(AgentConfig("window", window=2), lambda request, turn: (*spelt, *LAYOUT.supervised("")))
    reopened = generations(episode)[2]
    assert reopened.fresh
    assert any(reopened.context_ids[at : at + len(spelt)] == spelt for at in range(len(reopened.context_ids)))


def test_a_cut_reply_is_closed_in_the_window_that_follows() -> None:
    episode = play(AgentConfig("window", window=2), lambda request, turn: LAYOUT.supervised("gone")[:-1])
    assert "assistant\ngone<|im_end|>\n" in shown(generations(episode)[2].context_ids)


@pytest.mark.parametrize("name", ["planning", "reflection", "window"])
def test_a_demonstration_says_nothing_where_an_expert_would_not(name: str) -> None:
    turns = tuple(Turn(f"1:{n}", f"do {n}", 0.0, 0.0, True, f"do {n}") for n in range(3))
    told = Trajectory("fake", "Easy", "fake_1", 101, {}, "Play.", turns, "1:3", Outcome.SUCCESS, 1.0)
    agent = make_agent(AgentConfig(name, window=2), LAYOUT)  # type: ignore[arg-type]
    contexts = samples(as_sampled(told, agent, LAYOUT))
    trained = [id for s in contexts for id, mask in zip(s.ids, s.action_mask, strict=True) if mask]
    assert shown(trained) == "do 0<|im_end|>do 1<|im_end|>do 2<|im_end|>"
    given = "".join(shown(sample.ids) for sample in contexts)
    asked = {"planning": ASK_FOR_PLAN, "reflection": ASK_FOR_REFLECTION, "window": "earlier turn"}
    assert given.count(asked[name]) == {"planning": 1, "reflection": 2, "window": 1}[name]


def test_characters_are_messages_in_the_order_of_a_conversation() -> None:
    for where, first in (("user", "Play.\n\n1:0"), ("system", "1:0")):
        layout = CharacterLayout(where)  # type: ignore[arg-type]
        ids = (
            *layout.opening("Play.", "1:0"),
            *layout.reply("gö \U0001f600", ended=True),
            *layout.following("1:1", ended=True),
        )
        assert all(id < 0 for id in ids)
        said = layout.messages(ids)
        assert said[-3:] == [
            {"role": "user", "content": first},
            {"role": "assistant", "content": "gö \U0001f600"},
            {"role": "user", "content": "1:1"},
        ]
        assert said[:-3] == ([] if where == "user" else [{"role": "system", "content": "Play."}])
