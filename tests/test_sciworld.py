"""SciWorld at Gymnasium's edge: scores and ends, gold paths, and a Java process that dies under its sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import pytest

from gym_agents.env import TextEnv
from gym_agents.errors import ResetNeeded
from gym_agents.horizon import HorizonLimit
from gym_agents.launcher import LocalServer, local_server
from gym_agents.tasks import scenario_row
from tests.servers.test_sciworld_world import FIRST

NO_LIMIT = {"max_episode_steps": -1, "step_limit": 1000}


@pytest.fixture(scope="module")
def env() -> Iterator[gymnasium.Env[str, str]]:
    """A server that plays the expert, without any limit of turns or moves."""
    made = gymnasium.make("AgentGym/SciWorld-v0", expert=True, **NO_LIMIT)
    yield made
    made.close()


def inner(env: gymnasium.Env[str, str]) -> TextEnv:
    assert isinstance(env.unwrapped, TextEnv)
    return env.unwrapped


def follow(env: gymnasium.Env[str, str], item: int) -> tuple[list[float], bool, dict[str, Any]]:
    """Plays the expert's path; rewards, whether the world ended it, and the last info."""
    env.reset(seed=0, options={"item": item})
    rewards, terminated, info = [], False, {}
    while not terminated:
        _, reward, terminated, truncated, info = env.step(f"Action: {inner(env).expert()}")
        assert not truncated
        rewards.append(float(reward))
    return rewards, terminated, info


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("task", FIRST)
def test_the_gold_path_of_every_tasks_first_variation_succeeds(
    env: gymnasium.Env[str, str], task: str
) -> None:
    rewards, _, info = follow(env, FIRST[task])
    assert (info["success"], info["raw_score"]) == (True, 100)
    assert sum(rewards) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("task", [task.name for task in scenario_row("sciworld").tasks])
def test_gold_paths_of_evaluation_items_succeed(task: str) -> None:
    held_out = gymnasium.make(f"AgentGym/SciWorld-{task}-v0", expert=True, **NO_LIMIT)
    envs = gymnasium.make_vec(f"AgentGym/SciWorld-{task}-v0", num_envs=1, expert=True)
    assert isinstance(envs, HorizonLimit)
    items = envs.items("eval")
    for item in (items[0], items[len(items) // 2], items[-1]):
        rewards, _, info = follow(held_out, item)
        assert info["success"], item
        assert sum(rewards) == pytest.approx(1.0)
    held_out.close()
    envs.close()


def test_a_part_of_the_score_is_no_success(env: gymnasium.Env[str, str]) -> None:
    """Tencent/digitalhuman #34 and #35, WujiangXu/EPO #3, allenai/ScienceWorld #3 and PR 6, WooooDyy/AgentGym
    PR 15: an episode that a limit ended counted as solved, and the running score was paid again and again."""
    rewards = begin_to_measure(env)
    *_, terminated, truncated, info = env.step("Action: look around")
    assert 0 < info["raw_score"] < 100
    assert sum(rewards) == pytest.approx(info["raw_score"] / 100, abs=1e-9)
    assert (terminated, truncated, info["success"]) == (False, False, False)


def begin_to_measure(env: gymnasium.Env[str, str]) -> list[float]:
    """Follows the expert of a Measure item until something is earned, then does harmless things."""
    env.reset(seed=0, options={"item": FIRST["use-thermometer"]})
    rewards, info = [0.0], {"raw_score": 0}
    while info["raw_score"] == 0:
        _, reward, _, _, info = env.step(f"Action: {inner(env).expert()}")
        rewards.append(float(reward))
    for _ in range(3):
        _, reward, _, _, info = env.step("Action: inventory")
        assert reward == 0.0
        rewards.append(float(reward))
    return rewards


@pytest.mark.parametrize(("limits", "told"), [({"step_limit": 20}, True), ({"max_episode_steps": 12}, False)])
def test_both_limits_truncate_and_neither_is_success(limits: dict[str, int], told: bool) -> None:
    """The same reports: the simulator's step limit, then the environment's turn limit."""
    limited = gymnasium.make("AgentGym/SciWorld-v0", expert=True, **{**NO_LIMIT, **limits})
    rewards = begin_to_measure(limited)
    terminated = truncated = False
    while not truncated:
        _, reward, terminated, truncated, info = limited.step("Action: wait1")
        rewards.append(float(reward))
    assert (terminated, info["success"]) == (False, False)
    assert ("truncation" in info) is told
    assert sum(rewards) == pytest.approx(info["score"], abs=1e-9)
    assert 0.0 < info["score"] < 1.0
    limited.close()


def test_a_wrong_focus_ends_with_nothing(env: gymnasium.Env[str, str]) -> None:
    """The simulator's own score of -100: the last reward takes back what was earned."""
    env.reset(seed=0, options={"item": FIRST["find-animal"]})
    rewards = []
    for command in ("open door to greenhouse", "go to greenhouse", "focus on door to hallway"):
        _, reward, terminated, _, info = env.step(f"Action: {command}")
        rewards.append(float(reward))
    assert sum(rewards[:2]) > 0.0
    assert sum(rewards) == 0.0
    assert (terminated, info["success"], info["raw_score"]) == (True, False, -100)
    with pytest.raises(ResetNeeded):
        inner(env).step("Action: look around")


def test_an_opening_score_is_paid_with_the_first_step(env: gymnasium.Env[str, str]) -> None:
    """This variation's agent stands where it is to go: 17 points before it has acted."""
    _, info = env.reset(seed=0, options={"item": FIRST["find-plant"] + 2})
    opening = info["raw_score"]
    _, reward, _, _, info = env.step("Action: inventory")
    assert reward == pytest.approx(opening / 100)
    assert info["raw_score"] == opening > 0


def java_of(server: LocalServer) -> int:
    """The process id of a server's Java."""
    listed = subprocess.run(
        ["pgrep", "-P", str(server.pid), "java"], capture_output=True, text=True, check=True
    )
    return int(listed.stdout)


def gone(pid: int, within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    return not os.path.exists(f"/proc/{pid}")


WALK = (
    "open door to hallway",
    "go to hallway",
    "open door to greenhouse",
    "go to greenhouse",
    "wait",
    "objects",
)


@pytest.fixture
def envs() -> Iterator[HorizonLimit]:
    made = gymnasium.make_vec("AgentGym/SciWorld-v0", num_envs=2)
    assert isinstance(made, HorizonLimit)
    yield made
    made.close()


def test_episodes_go_on_when_java_dies_under_them(envs: HorizonLimit) -> None:
    """NVIDIA-NeMo/Gym #1351, NVIDIA-NeMo/RL #2305: a helper that died gave empty answers and zero rewards."""
    undisturbed, disturbed = [walk(envs, kill_before) for kill_before in (None, 3)]
    assert disturbed == undisturbed


def walk(envs: HorizonLimit, kill_before: int | None) -> list[object]:
    """All answers to a walk; Java is killed before one of its steps."""
    answers: list[object] = [
        envs.reset(seed=[0, 0], options={"item": [FIRST["boil"], FIRST["find-animal"]]})[0]
    ]
    for turn, command in enumerate(WALK):
        if turn == kill_before:
            java = java_of(local_server("sciworld"))
            os.kill(java, signal.SIGKILL)
            assert gone(java)
        observations, rewards, _, _, infos = envs.step([f"Action: {command}"] * 2)
        answers.append((observations, rewards.tolist(), infos["moves"].tolist()))
    return answers


def test_an_idle_connection_is_not_used_as_the_server_drops_it(envs: HorizonLimit) -> None:
    """NVIDIA-NeMo/Gym PR 1555, marin-community/marin PR 2818: servers dropped idle connections after 5 s."""
    envs.reset(seed=[0, 1])
    for pause in (0.0, 4.9, 5.1):
        time.sleep(pause)
        *_, infos = envs.step(["Action: wait1"] * 2)
    assert infos["moves"].tolist() == [6, 6]  # each is a unit for the decision and one of waiting


def test_sessions_come_and_go_and_nothing_stays_behind() -> None:
    """huggingface/OpenEnv PR 1000, allenai/ScienceWorld PR 24 and PR 74, py4j/py4j #320."""
    server = LocalServer("sciworld", arguments=["--max-sessions", "1", "--lease", "2"])
    address = server.start()
    java = java_of(server)
    opened = "import os, gymnasium, gym_agents\n"
    opened += f"gymnasium.make('AgentGym/SciWorld-v0', server={address!r}).reset(seed=0)\n"
    subprocess.run([sys.executable, "-c", opened + "os.kill(os.getpid(), 9)"], timeout=100)
    env = gymnasium.make("AgentGym/SciWorld-v0", server=address)  # waits for the dead one's lease
    env.reset(seed=0)
    with pytest.raises(Exception, match="taken") as busy:
        gymnasium.make("AgentGym/SciWorld-v0", server=address, deadline=0.5).reset(seed=0)
    assert "1 sessions" in str(busy.value)
    env.close()
    env.close()
    server.close()
    assert gone(java)
