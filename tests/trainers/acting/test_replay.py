"""Tokens of an episode against its texts: what drifts, and what is laid out anew."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from gym_agents.horizon import HorizonLimit
from gym_agents.trajectory import Trajectory
from tests.trainers.acting.fakes import FakeWorlds, ScriptedEngine
from tests.trainers.acting.templates import TEMPLATES, tokenizer
from trainers.acting.agents import ReActAgent
from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Request, Sampling
from trainers.acting.replay import drifts, in_own_tokens, withheld
from trainers.acting.rollout import Job, rollout
from trainers.learning.batch import samples


def played(template: str) -> tuple[Trajectory, ReActAgent, ChatLayout]:
    """Three turns: ids that spell a word otherwise than the tokenizer would, a control token inside, a cut reply."""
    layout = ChatLayout(tokenizer(TEMPLATES[template]))
    spelt = tokenizer().convert_tokens_to_ids(["g", "e", "t"])
    inside = (*spelt, *tokenizer().convert_tokens_to_ids(["<|im_start|>", "</think>"]))
    said = [(*spelt, *layout.supervised("")), (*inside, *layout.supervised("")), tuple(spelt)]

    def script(request: Request, turn: int) -> tuple[int, ...]:
        return said[turn]

    agent = ReActAgent(layout)
    worlds = cast(HorizonLimit, FakeWorlds(num_envs=1))
    [episode] = rollout(
        agent,
        ScriptedEngine(script),
        worlds,
        [Job(item=3, seed=0, group=0, member=0)],
        horizon=3,
        sampling=Sampling(),
        update=1,
        deterministic=True,
    )
    return episode, agent, layout


def tampered(episode: Trajectory, turn: int, **change: Any) -> Trajectory:
    turns = list(episode.turns)
    [generation] = turns[turn].generations
    generations = (msgspec.structs.replace(generation, **change),)
    turns[turn] = msgspec.structs.replace(turns[turn], generations=generations)
    return msgspec.structs.replace(episode, turns=tuple(turns))


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_was_sampled_is_what_is_trained(template: str) -> None:
    """huggingface/trl #5224, rllm-org/rllm PR 272, jingyaogong/minimind #850, PrimeIntellect-ai/prime-rl #947."""
    episode, agent, layout = played(template)
    assert drifts(episode, agent) == []
    assert in_own_tokens(episode, agent, layout) is episode
    [sample] = samples(episode)
    spelt = tokenizer().convert_tokens_to_ids(["g", "e", "t"])
    assert [id for id, acted in zip(sample.ids, sample.action_mask, strict=True) if acted][-3:] == spelt


def test_one_id_that_was_not_sampled_is_one_drift() -> None:
    episode, agent, _ = played("chatml")
    ids = episode.turns[1].generations[0].sampled_ids
    for change in ({"sampled_ids": (ids[0] + 1, *ids[1:])}, {"context_ids": (5,)}, {"fresh": True}):
        assert len(drifts(tampered(episode, 1, **change), agent)) == 1
    assert drifts(msgspec.structs.replace(episode, turns=()), agent) == []


def test_more_or_less_than_the_agent_asks_for_is_a_drift() -> None:
    episode, agent, _ = played("chatml")
    first = episode.turns[0]
    for generations in ((), first.generations * 2):
        turn = msgspec.structs.replace(first, generations=generations)
        assert len(drifts(msgspec.structs.replace(episode, turns=(turn,)), agent)) == 1


def test_an_episode_of_another_template_is_laid_out_anew_from_its_texts() -> None:
    episode, _, _ = played("empty thought")
    layout = ChatLayout(tokenizer(TEMPLATES["chatml"]))
    agent = ReActAgent(layout)
    anew = in_own_tokens(episode, agent, layout)
    assert drifts(anew, agent) == []
    assert [turn.reply for turn in anew.turns] == [turn.reply for turn in episode.turns]
    assert anew.turns[0].generations[0].sampled_ids == layout.supervised("get")


def test_a_reply_that_is_not_to_be_learned_from_stays_as_context() -> None:
    episode, _, _ = played("chatml")
    [whole], [partly] = samples(episode), samples(withheld(episode, (True, False, True)))
    assert partly.ids == whole.ids
    hidden = [turn == 1 for turn in whole.turns]
    wanted = [acted and not hide for acted, hide in zip(whole.action_mask, hidden, strict=True)]
    assert list(partly.action_mask) == wanted
    assert samples(withheld(episode, (False, False, False))) == []
