"""The expert: it solves every kind of mission, from states that it did not bring about too."""

from __future__ import annotations

import pytest

from gym_agents.errors import NotOffered
from gym_agents.scenario import Options
from servers.babyai.levels import LEVELS
from servers.babyai.world import BabyAIWorld
from servers.world import Episode, Result

WORLD = BabyAIWorld()
NEVER_WON = {"KeyInBox", "OpenDoorsOrderN4Debug"}
"""Without an expert; and won only where the mission is a single door's."""


def finish(episode: Episode, limit: int = 60) -> Result:
    for _ in range(limit):
        result = episode.step(episode.expert())
        assert result.valid, result.observation
        if result.terminated:
            break
    return result


@pytest.mark.parametrize("level", [level for level in LEVELS if level not in NEVER_WON])
def test_it_solves_every_level(level: str) -> None:
    result = finish(WORLD.start(LEVELS.index(level), 0, Options()))
    assert result.success
    assert result.score >= 0.1


def test_it_goes_straight_for_what_it_sees() -> None:
    episode = WORLD.start(2, 0, Options())
    assert episode.expert() == "go to red ball 1"
    assert finish(episode, limit=1).success


@pytest.mark.parametrize("item", [5, 18, 26, 32, 35])
def test_it_goes_on_from_wrong_turns(item: int) -> None:
    """After twelve moves of any kind, but for opened boxes, which may hold nothing any more."""
    episode = WORLD.start(item, 0, Options())
    for turn in range(12):
        possible = [move for move in episode.actions() if not move.startswith(("open", "toggle"))]
        assert not episode.step(possible[turn * 7 % len(possible)]).terminated
    assert finish(episode, limit=100).success


@pytest.mark.parametrize("item", [1406])
def test_it_says_so_where_the_key_lies_behind_its_own_door(item: int) -> None:
    with pytest.raises(NotOffered, match="nothing left to explore"):
        finish(WORLD.start(item, 0, Options()), limit=100)


def test_it_moves_only_towards_what_it_has_seen() -> None:
    """Every thing that its moves name stands in an earlier observation of the episode."""
    for item in WORLD.items("FindObj", "eval"):
        episode = WORLD.start(item, 0, Options())
        told = episode.observation
        for _ in range(20):
            move = episode.expert()
            name = " ".join(move.split()[-3:])
            assert move.startswith(("turn", "move", "drop", "toggle")) or name in told
            result = episode.step(move)
            told += result.observation
            if result.terminated:
                break
