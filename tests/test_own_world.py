"""The page about a world of one's own is true: its code is a world that plays, serves and trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "own_world.md"

EPISODE = """
import gymnasium
from gymnasium.utils.env_checker import check_env
env = gymnasium.make("countdown:Mine/Countdown-v0", expert=True)
check_env(env.unwrapped)
observation, info = env.reset(seed=0, options={"item": 2})
assert (observation, info["item_id"]) == ("2 to go.", "countdown_2")
assert env.unwrapped.expert() == "down"
assert env.step("Action: down")[1] == 0.5
observation, reward, terminated, _, info = env.step("Action: down")
assert (observation, reward, terminated, info["success"]) == ("0 to go.", 0.5, True, True)
envs = gymnasium.make_vec("countdown:Mine/Countdown-v0", num_envs=3)
envs.reset(seed=0, options={"item": [1, 2, 3]})
assert envs.step(["Action: down"] * 3)[2].tolist() == [True, False, False]
envs.close()
env.close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "countdown.py").write_text(code.group(1))
    return tmp_path


def python(folder: Path, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), str(PAGE.parent.parent)])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_it_is_an_environment_and_a_vector(folder: Path) -> None:
    finished = python(folder, "-c", EPISODE, timeout=60)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.slow
def test_it_trains_for_two_updates(folder: Path) -> None:
    flags = ["--env.id", "countdown:Mine/Countdown-v0", "--policy.model", "tiny", "--rl.updates", "2"]
    flags += ["--rl.groups", "2", "--rl.group_size", "2", "--sampling.max_new_tokens", "8"]
    flags += ["--eval.attempts", "1", "--run.folder", str(folder / "run")]
    finished = python(folder, "-m", "trainers", *flags, timeout=110)
    assert finished.returncode == 0, finished.stderr
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2]
    assert all(row["env_errors"] == 0 for row in rows)
