"""Trajectory files: our own and AgentGym's, what of them is learned from, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gym_agents import trajectory
from gym_agents.trajectory import Outcome, Trajectory, Turn
from trainers.acting.files import Example, best_per_item, examples, read_examples, worthwhile
from trainers.acting.pairs import make_pairs
from trainers.errors import BadTrajectories

OPENING = [
    {"from": "human", "loss": None, "value": "Craft things."},
    {"from": "gpt", "loss": False, "value": "OK."},
]


def said(speaker: str, value: str, loss: bool | None = None) -> dict[str, Any]:
    return {"from": speaker, "loss": loss, "value": value}


def conversation(*spoken: dict[str, Any], item: str = "textcraft_12", **rest: Any) -> dict[str, Any]:
    return {"item_id": item, "conversations": [*OPENING, *spoken], **rest}


TWO_TURNS = (
    said("human", "Goal: stick"),
    said("gpt", "Action: get 1 log", True),
    said("human", "Got 1 log"),
    said("gpt", "Action: craft 1 stick using 1 log", True),
    said("human", "Crafted 1 stick"),
)


def read(folder: Path, *rows: dict[str, Any]) -> list[Example]:
    path = folder / "conversations.json"
    path.write_text("\n " + json.dumps(rows))
    return read_examples([path])


def episode(item: int = 1, score: float = 1.0, replies: tuple[str, ...] = ("a",), **rest: Any) -> Trajectory:
    turns = tuple(
        Turn("go" if number == 0 else "on", reply, reward=0.0, score=0.0, valid=True, command=None)
        for number, reply in enumerate(replies)
    )
    settings: dict[str, Any] = {"outcome": Outcome.SUCCESS if score == 1.0 else Outcome.FAILURE} | rest
    return Trajectory("fake", None, f"fake_{item}", 0, {}, "Play.", turns, "over", score=score, **settings)


# Reading.


def test_a_conversation_becomes_the_episode_that_an_agent_here_would_have_seen(tmp_path: Path) -> None:
    [found] = read(tmp_path, conversation(*TWO_TURNS, reward=1.0, success=1))
    assert found.episode.instruction == "Craft things."
    assert [(turn.observation, turn.reply) for turn in found.episode.turns] == [
        ("Goal: stick", "Action: get 1 log"),
        ("Got 1 log", "Action: craft 1 stick using 1 log"),
    ]
    assert (found.episode.final_observation, found.episode.score) == ("Crafted 1 stick", 1.0)
    assert found.episode.success
    assert (found.episode.item_id, found.episode.scenario) == ("textcraft_12", "textcraft")


def test_loss_false_is_respected_and_a_missing_one_is_trained(tmp_path: Path) -> None:
    """Upstream's trainer learns from every gpt message, also from those that say `"loss": false`."""
    spoken = (*TWO_TURNS[:3], said("gpt", "Action: look", False), said("human", "a room"), said("gpt", "x"))
    [found] = read(tmp_path, conversation(*spoken))
    assert found.trained == (True, False, True)


def test_without_an_opening_the_first_message_is_an_observation(tmp_path: Path) -> None:
    row = {"item_id": "textcraft_1", "conversations": [said("human", "Goal"), said("gpt", "Action: a", True)]}
    [found] = read(tmp_path, row)
    assert (found.episode.instruction, found.episode.turns[0].observation) == ("", "Goal")


def test_a_demonstration_without_a_reward_is_read_and_is_neither_better_nor_worse(tmp_path: Path) -> None:
    """Upstream's pair maker dies with a KeyError where the expert's file has no reward."""
    found = read(tmp_path, conversation(*TWO_TURNS), conversation(*TWO_TURNS, item="textcraft_13"))
    assert worthwhile(found, 1.0) == found
    with pytest.raises(BadTrajectories, match="2 episodes have no reward.*textcraft_12, textcraft_13"):
        make_pairs(found, min_score=1.0, min_gap=0.1, per_item=1)


@pytest.mark.parametrize(("reward", "score"), [(100, 1.0), (75, 0.75), (0, 0.0), (-100, 0.0)])
def test_the_hundred_points_of_sciworld_are_a_score(reward: float, score: float, tmp_path: Path) -> None:
    """Upstream's filter misses a success of 100, and its -100 would weigh more than any other reward."""
    [found] = read(tmp_path, conversation(*TWO_TURNS, item="sciworld_3", reward=reward))
    assert found.episode.score == score
    assert found.episode.success == (score == 1.0)


@pytest.mark.parametrize(
    ("spoken", "rest", "words"),
    [
        ([said("human", "Goal"), said("human", "Goal")], {}, "must be human and gpt in turn"),
        ([said("human", "Goal")], {}, "at least one reply"),
        (TWO_TURNS, {"reward": 100.0}, "reward is 100.0, above all"),
        ([said("human", "Goal"), said("system", "no")], {}, "Invalid enum value 'system'"),
    ],
)
def test_a_conversation_that_does_not_fit_is_named(
    spoken: list[dict[str, Any]], rest: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadTrajectories, match=words) as caught:
        read(tmp_path, conversation(*TWO_TURNS), conversation(*spoken, **rest))
    assert str(tmp_path / "conversations.json") in str(caught.value)


def test_our_own_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    trajectory.write(path, [episode(1), episode(2, 0.5, ("a", "b"))])
    found = read_examples([path, path])
    assert [example.episode for example in found] == [episode(1), episode(2, 0.5, ("a", "b"))] * 2
    assert [example.trained for example in found[:2]] == [(True,), (True, True)]
    path.write_text('{"scenario": 1}\n')
    with pytest.raises(BadTrajectories, match="own.jsonl:1"):
        read_examples([path])


# Sifting.


def test_the_filter_takes_the_worlds_verdict_or_enough_score_and_no_failed_environment() -> None:
    """Upstream's filter compares one number per scenario with rewards of another scale."""
    found = examples(
        [
            episode(1, 0.4),
            episode(2, 0.6),
            episode(3, 0.1, outcome=Outcome.SUCCESS),
            episode(4, 0.9, outcome=Outcome.ENV_ERROR),
        ]
    )
    kept = [example.episode.item_id for example in worthwhile(found, 0.5)]
    assert kept == ["fake_2", "fake_3"]


def test_of_an_items_episodes_the_best_is_kept_and_of_equals_the_shortest() -> None:
    """Upstream keeps the first, and in its pairs the one of the lowest reward."""
    long, short = episode(1, 0.8, ("a", "b")), episode(1, 0.8, ("c",))
    found = examples([episode(1, 0.2), long, episode(2, 0.1), short, episode(1, 0.5)])
    assert [example.episode for example in best_per_item(found)] == [short, episode(2, 0.1)]


# Pairs.


def pairs(*episodes: Trajectory, per_item: int = 1, min_score: float = 0.7) -> list[tuple[str, str]]:
    made = make_pairs(examples(episodes), min_score=min_score, min_gap=0.2, per_item=per_item)
    return [(better.episode.turns[0].reply, worse.episode.turns[0].reply) for better, worse in made]


def test_a_pair_is_the_best_and_the_worst_of_an_item() -> None:
    """Upstream pairs duplicates of the lowest reward with each other."""
    tried = [episode(1, score, (name,)) for name, score in (("b", 0.9), ("d", 0.0), ("a", 1.0), ("c", 0.5))]
    assert pairs(*tried) == [("a", "d")]
    assert pairs(*tried, per_item=9) == [("a", "d"), ("b", "c")]


def test_there_is_no_pair_without_a_good_one_or_a_gap_or_of_different_tasks() -> None:
    assert pairs(episode(1, 0.6, ("a",)), episode(1, 0.0, ("b",))) == []
    assert pairs(episode(1, 0.9, ("a",)), episode(1, 0.8, ("b",))) == []
    assert pairs(episode(1, 1.0, ("a",)), episode(2, 0.0, ("b",))) == []
    other_start = msgspec.structs.replace(episode(1, 0.0, ("b",)), instruction="Play otherwise.")
    assert pairs(episode(1, 1.0, ("a",)), other_start) == []


def test_episodes_that_say_the_same_count_once_and_failed_ones_never() -> None:
    good, bad = episode(1, 1.0, ("a",)), episode(1, 0.0, ("b",))
    failed = episode(1, 0.0, ("c",), outcome=Outcome.ENV_ERROR)
    assert pairs(good, good, bad, bad, failed, episode(1, 0.0, ()), per_item=9) == [("a", "b")]
