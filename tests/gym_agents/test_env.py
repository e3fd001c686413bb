"""One episode at a time, and how it is made."""

from __future__ import annotations

import copy
import json
import math
import pickle
import random
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from gym_agents import register_world
from gym_agents.env import TextEnv
from gym_agents.errors import (
    ItemError,
    NotOffered,
    ReplyTooLong,
    ResetNeeded,
    ServerUnreachable,
    UsageError,
    VersionMismatch,
    WorldFailure,
)
from gym_agents.launcher import local_server
from gym_agents.protocol import MAX_REPLY_BYTES

STRANGE_SHOWN = "cafe\u0301 \U0001f600 \x00 \ufffd."


def make(world: str = "CountingWorld", **how: object) -> TextEnv:
    return TextEnv(f"tests.fakes:{world}", **how)


def test_an_episode() -> None:
    env = make()
    observation, info = env.reset(seed=3, options={"item": 1})
    assert observation == "The count is 1. Reach 6. Seed 3."
    assert info == {
        "item_id": "counting_1",
        "task": "Low",
        "score": 0.0,
        "success": False,
        "valid": True,
        "command": None,
        "instruction": "Say `add N` to count, `stop` to end.",
    }
    observation, reward, terminated, truncated, info = env.step("Thought: on.\nAction: add 5")
    assert (observation, reward, terminated, truncated) == ("The count is 6.", 1.0, False, False)
    assert (info["command"], info["score"], info["success"]) == ("add 5", 1.0, False)
    *_, terminated, _, info = env.step("Action: stop")
    assert terminated
    assert info["success"]
    with pytest.raises(ResetNeeded):
        env.step("Action: stop")
    env.close()
    env.close()


def test_the_checker_passes_on_a_strange_world() -> None:
    """Observations with an emoji, a combining accent, a NUL and half a surrogate pair."""
    if "Fakes/Strange-v0" not in gymnasium.registry:
        register_world("Fakes/Strange-v0", "tests.fakes:StrangeTextWorld", max_episode_steps=5)
    env = gymnasium.make("Fakes/Strange-v0").unwrapped
    check_env(env)
    observation, info = env.reset(options={"item": 0})
    assert observation == STRANGE_SHOWN
    assert info[STRANGE_SHOWN] == STRANGE_SHOWN
    observation, *_, info = env.step("Action: add \ud83d")
    assert info["command"] == "add \ufffd"
    assert observation == STRANGE_SHOWN
    observation, *_ = env.step("Action: add 9")
    assert "more characters]" in observation
    assert env.observation_space.contains(observation)
    env.close()


def test_a_seed_picks_the_item_and_an_item_wins_over_the_seed() -> None:
    env, other = make(), make()
    sequence = [env.reset(seed=9)[0], env.reset()[0], env.reset()[0]]
    assert sequence == [other.reset(seed=9)[0], other.reset()[0], other.reset()[0]]
    assert len({env.reset(seed=seed)[1]["item_id"] for seed in range(30)}) == 6
    assert env.reset(seed=9, options={"item": "counting_3"})[0] == "The count is 3. Reach 8. Seed 9."
    env.close()
    other.close()


def test_the_global_generators_are_left_alone() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist()
    env = make()
    env.reset(seed=1)
    env.close()
    assert states == (random.getstate(), np.random.get_state()[1].tolist())


def test_a_list_of_items_replaces_the_split(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_text(json.dumps([{"item_id": "counting_2"}, {"item_id": "counting_10"}]))
    env = make(items=str(path))
    assert {env.reset(seed=seed)[1]["item_id"] for seed in range(20)} == {"counting_2", "counting_10"}
    env.close()
    with pytest.raises(ItemError, match="numbering"):
        make(items=["textcraft_1"]).reset()


def test_items_out_of_range_of_another_task_or_unnamed() -> None:
    env = make(task="High")
    assert env.reset()[1]["task"] == "High"
    for item, reason in (
        (1, "not of Counting-High"),
        (55, "no item 55"),
        ("x", "item id"),
        (1.5, "named by"),
    ):
        with pytest.raises(ItemError, match=reason):
            env.reset(options={"item": item})
    env.close()


def test_a_failed_world_is_a_typed_error_and_the_next_reset_goes_on() -> None:
    env = make("RaisingWorld")
    env.reset(options={"item": 0})
    with pytest.raises(WorldFailure, match=r"the helper went away . \(fakes.py, line \d+\)"):
        env.step("Action: add 3")
    with pytest.raises(ResetNeeded):
        env.step("Action: add 1")
    assert env.reset(options={"item": 0})[0].startswith("The count is 0.")
    env.close()


@pytest.mark.parametrize("wrong", range(1, 10))
def test_nothing_that_is_not_finite_or_not_a_text_gets_through(wrong: int) -> None:
    env = make("NaNWorld")
    env.reset(options={"item": 0})
    with pytest.raises(WorldFailure):
        env.step(f"Action: add {wrong}")
    env.close()


def test_a_huge_reply_costs_no_turn() -> None:
    env = make()
    env.reset(options={"item": 0})
    with pytest.raises(ReplyTooLong):
        env.step("Action: add 1" + " " * MAX_REPLY_BYTES)
    assert env.step("Action: add 1")[0] == "The count is 1."
    env.close()


def test_a_picture_is_rendered_where_the_world_draws_one() -> None:
    env = gymnasium.make("AgentGym/BabyAI-GoTo-v0", render_mode="rgb_array")
    env.reset(options={"item": 0})
    level = gymnasium.make("minigrid:BabyAI-GoToRedBallGrey-v0", render_mode="rgb_array", tile_size=24)
    level.reset(seed=0)
    assert np.array_equal(env.render(), level.render())
    env.close()
    level.close()


def test_a_render_mode_that_the_world_lacks_is_refused_at_once() -> None:
    with pytest.raises(
        UsageError, match="Counting cannot be rendered as 'rgb_array'; its render modes: ansi"
    ):
        make(render_mode="rgb_array")


def test_looking_changes_nothing() -> None:
    env = make(render_mode="ansi")
    with pytest.raises(ResetNeeded):
        env.look("actions")
    env.reset(options={"item": 0})
    assert env.look("actions") == ["add 1", "stop"]
    assert env.look("view") == {"count": 0}
    env.step("Action: add 2")
    assert env.render() == "The count is 2."
    assert env.look("view") == {"count": 2}
    with pytest.raises(NotOffered):
        env.expert()
    env.close()


def test_an_environment_in_play_is_not_copied() -> None:
    """Farama-Foundation/Gymnasium #222: what does not pickle must say so."""
    env = make()
    env.reset()
    for copier in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="pickle its spec"):
            copier(env)
    env.close()


def test_servers_that_are_not_there_or_serve_something_else() -> None:
    with pytest.raises(ServerUnreachable, match="127.0.0.1:9"):
        make(server="http://127.0.0.1:9").reset()
    address = local_server("tests.fakes:CountingWorld").start()
    env = gymnasium.make("AgentGym/TextCraft-v0", server=address + "/")
    with pytest.raises(VersionMismatch, match="serves 'counting', not 'textcraft'"):
        env.reset()


@pytest.mark.parametrize("deadline", [0, -1.0, math.nan, math.inf, "soon", True])
def test_a_deadline_that_is_none_is_refused_at_once(deadline: object) -> None:
    with pytest.raises(UsageError, match="seconds above 0"):
        make(deadline=deadline)


def test_a_server_is_named_by_a_text() -> None:
    with pytest.raises(UsageError, match="not by 5"):
        make(server=5)


def test_a_named_server_and_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    address = local_server("tests.fakes:CountingWorld").start()
    monkeypatch.setenv("AGENTGYM_COUNTING_URL", f"{address}/, {address}")
    env = make()
    assert env.reset(options={"item": 0})[0].startswith("The count is 0.")
    env.close()


def test_unknown_ids_are_gymnasiums_own_errors_with_the_near_match() -> None:
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `TextCraft`"):
        gymnasium.make("AgentGym/Textcraft-v0")
    with pytest.raises(gymnasium.error.VersionNotFound):
        gymnasium.make("AgentGym/TextCraft-v9")


def test_a_worlds_info_cannot_speak_for_the_verdict_or_the_item() -> None:
    env = make("PosingWorld")
    with pytest.raises(WorldFailure, match="info names item_id"):
        env.reset(options={"item": 0})
    env.close()
    env = make("NaNWorld")
    env.reset(options={"item": 0})
    with pytest.raises(WorldFailure, match="info names score, success"):
        env.step("Action: add 10")
    env.close()
