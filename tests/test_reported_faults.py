"""Faults that users of systems like this one reported, played against the built worlds at Gymnasium's edge."""

from __future__ import annotations

import gymnasium
import pytest

import gym_agents

assert gym_agents


@pytest.mark.parametrize(
    ("reply", "command", "told"),
    [
        (
            "Thought: go\nAction: get 1 oak logs\nObservation: Got 1 oak logs\nAction: craft 4 oak planks using 1 oak logs",
            None,
            "2 actions",
        ),
        ('Thought: the format is "Action: <command>", so\nAction: inventory', "inventory", "nothing"),
        ("```\nAction: get 9 diamond\n```\nAction: inventory", "inventory", "nothing"),
        ("Action: inventory\nAction: inventory", None, "2 actions"),
        ("Action:", None, "empty"),
        ("Action:\ninventory", "inventory", "nothing"),
    ],
    ids=["dreamt game", "quoted marker", "fenced marker", "twice the same", "empty", "next line"],
)
def test_textcraft_plays_the_one_action_of_a_reply(reply: str, command: str | None, told: str) -> None:
    """XiaoConstantine/dspy-go #167, stanfordnlp/dspy #535, eosphoros-ai/DB-GPT PR 3074."""
    env = gymnasium.make("AgentGym/TextCraft-v0", max_episode_steps=10)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(reply)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["valid"], info["command"]) == (command is not None, command)
    assert told in observation
    after, *_ = env.step("Action: inventory")
    assert "nothing" in after
    env.close()


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("Action: turn left\nYou see a red ball\nAction: turn left", None),
        ('Thought: I write "Action: move forward"\nAction: turn left', "turn left"),
        ("```\nAction: move forward\n```\nAction: turn left", "turn left"),
        ("Action:\nturn left", "turn left"),
        ("Action:", None),
    ],
)
def test_babyai_plays_the_one_action_of_a_reply(reply: str, command: str | None) -> None:
    """The same rule in every scenario of the grammar."""
    env = gymnasium.make("AgentGym/BabyAI-v0")
    env.reset(seed=0, options={"item": 1})
    *_, info = env.step(reply)
    assert (info["valid"], info["command"]) == (command is not None, command)
    assert info.get("steps", 0) == (1 if command else 0)
    env.close()


def test_babyai_a_failed_mission_is_terminated_without_success() -> None:
    """Farama-Foundation/Minigrid PR 518 (for #475): termination was taken for victory."""
    env = gymnasium.make("AgentGym/BabyAI-v0", max_episode_steps=60)
    observation, _ = env.reset(seed=0, options={"item": 15})
    assert "open the purple door after you open the red door" in observation
    for reply in ("turn left", "open purple door 1"):
        observation, reward, terminated, truncated, info = env.step(f"Action: {reply}")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    env.close()


def test_babyai_a_late_success_is_a_success() -> None:
    """Farama-Foundation/Minigrid #332: the reward shrinks with the steps, and thresholds on it lose slow wins."""
    env = gymnasium.make("AgentGym/BabyAI-v0", max_episode_steps=-1, expert=True)
    env.reset(seed=0, options={"item": 1})
    total = 0.0
    for _ in range(40):
        total += float(env.step("Action: turn left")[1])
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(f"Action: {env.unwrapped.expert()}")
        total += float(reward)
    assert info["success"]
    assert 0.0 < total < 0.5
    assert total == info["score"]
    env.close()


def test_one_time_limit_and_a_win_on_the_last_turn() -> None:
    """Farama-Foundation/Gymnasium #291, #615 and #470."""
    env = gymnasium.make("AgentGym/TextCraft-v0", max_episode_steps=2, expert=True, distractors=0)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 2
    env.reset(seed=0, options={"item": 0})
    for _ in range(2):
        _, reward, terminated, _, info = env.step(f"Action: {env.unwrapped.expert()}")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.reset(seed=0, options={"item": 0})
    assert [env.step("Action: inventory")[3] for _ in range(2)] == [False, True]
    env.close()


@pytest.mark.parametrize("limit", [0, 2.5])
def test_bad_limits_of_a_single_environment_are_typed_errors(limit: float) -> None:
    with pytest.raises((ValueError, TypeError), match="max_episode_steps"):
        gymnasium.make("AgentGym/TextCraft-v0", max_episode_steps=limit)
