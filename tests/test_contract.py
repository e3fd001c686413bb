"""One contract for every id that has a backend, at Gymnasium's edge."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import gym_agents
from gym_agents.errors import BackendMissing, ItemError, OptionError, ResetNeeded, UsageError
from gym_agents.horizon import HorizonLimit
from gym_agents.tasks import SCENARIOS, env_id

assert gym_agents

BUILT = [env_id(row, task) for row in SCENARIOS if row.built for task in (None, *(t.name for t in row.tasks))]
UNBUILT = [
    env_id(row, task) for row in SCENARIOS if not row.built for task in (None, *(t.name for t in row.tasks))
]
EVAL_COUNTS = {
    env_id(row, task.name): task.eval_items for row in SCENARIOS if row.built for task in row.tasks
}


def test_every_id_is_registered() -> None:
    ids = [spec for spec in gymnasium.registry if spec.startswith("AgentGym/")]
    assert len(ids) == 32
    assert sorted(ids) == sorted(BUILT + UNBUILT)


@pytest.mark.parametrize("id", UNBUILT)
def test_an_id_without_a_backend_says_so(id: str) -> None:
    with pytest.raises(BackendMissing, match="not built yet"):
        gymnasium.make(id)


@pytest.mark.parametrize("id", BUILT)
def test_gymnasium_checker_passes(id: str) -> None:
    env = gymnasium.make(id)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("id", BUILT)
def test_observations_stay_inside_the_declared_space(id: str) -> None:
    """Farama-Foundation/Minigrid #105, PR 512 and PR 520: rare missions fell outside the space."""
    rng = np.random.default_rng(0)
    env = gymnasium.make(id)
    replies = [
        "Action: inventory",
        "Action: move forward",
        "Action: turn left",
        "nonsense",
        "Action: get 1 stick",
        "<search>capital of Norway</search>",
        "<answer>Oslo</answer>",
    ]
    for seed in range(12):
        observation, info = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        assert info["instruction"]
        assert not info["success"]
        for _ in range(3):
            observation, reward, terminated, _, info = env.step(str(rng.choice(replies)))
            assert env.observation_space.contains(observation)
            assert 0.0 <= info["score"] <= 1.0
            assert np.isfinite(reward)
            if terminated:
                break
    env.close()


@pytest.mark.parametrize("id", BUILT)
def test_splits_are_disjoint_and_the_evaluation_counts_are_the_papers(id: str) -> None:
    envs = gymnasium.make_vec(id, num_envs=1)
    train, held_out = envs.items("train"), envs.items("eval")
    envs.close()
    assert train
    assert not set(train) & set(held_out)
    assert len(set(held_out)) == len(held_out)
    expected = EVAL_COUNTS.get(id) or sum(
        n for name, n in EVAL_COUNTS.items() if name.startswith(id[:-3] + "-")
    )
    assert len(held_out) == expected


@pytest.mark.parametrize("id", BUILT)
def test_an_item_keeps_its_number_and_can_be_named(id: str) -> None:
    env = gymnasium.make(id)
    first, info = env.reset(seed=11)
    number = int(info["item_id"].rpartition("_")[2])
    by_number, _ = env.reset(seed=5, options={"item": number})
    by_name, named = env.reset(seed=6, options={"item": info["item_id"]})
    assert first == by_number == by_name
    assert named["item_id"] == info["item_id"]
    env.close()


@pytest.mark.parametrize("id", BUILT)
def test_bad_items_options_and_splits_are_typed_errors(id: str) -> None:
    env = gymnasium.make(id)
    with pytest.raises(ItemError):
        env.reset(options={"item": -1})
    with pytest.raises(ItemError, match="numbering"):
        env.reset(options={"item": "somewhere_3"})
    with pytest.raises(OptionError, match="Did you mean 'split'"):
        env.reset(options={"spilt": "eval"})
    with pytest.raises(UsageError, match="validation"):
        env.reset(options={"split": "validation"})
    with pytest.raises(OptionError, match="unknown option"):
        gymnasium.make(id, gravity=9.81)
    env.close()


@pytest.mark.parametrize("id", BUILT)
def test_step_before_reset_and_an_item_of_another_task(id: str) -> None:
    env = gymnasium.make(id).unwrapped
    with pytest.raises(ResetNeeded):
        env.step("Action: inventory")
    env.close()


TRANSCRIPT = """
import sys, gymnasium, gym_agents
for id in sys.argv[1:]:
    env = gymnasium.make(id)
    for seed in (0, 3):
        observation, info = env.reset(seed=seed, options={"split": "eval"})
        print(id, seed, info, repr(observation))
        for reply in ("Action: inventory", "Action: move forward", "Action: turn right", "hm", "Action: get 2 stick", "<search>river</search>"):
            print(env.step(reply))
    env.close()
"""


@pytest.mark.timeout(300)
def test_the_same_transcript_in_two_processes_with_different_hash_seeds() -> None:
    """Set and dict order of strings depend on the hash seed; episodes must not."""
    transcripts = [
        subprocess.run(
            [sys.executable, "-c", TRANSCRIPT, *BUILT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=140,
        ).stdout
        for seed in ("1", "2")
    ]
    assert transcripts[0] == transcripts[1]
    assert transcripts[0].count("\n") == len(BUILT) * 2 * 7


def test_a_vectors_spec_reports_the_limit_now_in_force() -> None:
    """Farama-Foundation/Gymnasium #615: the spec said the registry's limit while another one cut."""
    envs = gymnasium.make_vec("AgentGym/TextCraft-v0", num_envs=1)
    assert envs.spec is not None
    assert envs.spec.max_episode_steps == 30
    envs.close()
    envs = gymnasium.make_vec("AgentGym/TextCraft-v0", num_envs=1, max_episode_steps=5)
    assert isinstance(envs, HorizonLimit)
    assert envs.spec.max_episode_steps == 5
    envs.set_horizon(7)
    assert envs.spec.max_episode_steps == 7
    envs.close()
    for limit, meant in ((None, 30), (-1, None)):
        envs = gymnasium.make_vec("AgentGym/TextCraft-v0", num_envs=1, max_episode_steps=limit)
        assert envs.spec is not None
        assert envs.spec.max_episode_steps == meant
        envs.close()
    with pytest.raises(gymnasium.error.Error, match="wrappers"):
        gymnasium.make_vec("AgentGym/TextCraft-v0", num_envs=1, wrappers=[gymnasium.wrappers.TimeLimit])
