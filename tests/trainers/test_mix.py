"""Several scenarios in one run: quotas, horizons of their own, advantages that are whitened apart."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch

import gym_agents
from gym_agents import trajectory
from gym_agents.trajectory import Outcome
from tests.trainers.test_run import interrupted_in_update, metrics
from trainers import runner
from trainers.acting.sampler import ItemSampler
from trainers.commands import main
from trainers.config import RLConfig
from trainers.learning.algorithms import make_lessons
from trainers.learning.batch import Lesson, Sample, pack
from trainers.learning.scoring import Scored
from trainers.metrics import without_times
from trainers.settings import ConfigError, load

gym_agents.register_world("Fake/Mixed-v0", "tests.fakes:CountingWorld", max_episode_steps=9)

MIXED = """
[mix.letters]
id = "Fake/Letters-v0"
groups = 3
stages = [2, 3]
[mix.counting]
id = "Fake/Mixed-v0"
groups = 1
stages = [1, 4]
eval_horizon = 2
[env]
num_envs = 4
[policy]
model = "tiny"
lora_rank = 0
max_context = 512
[sampling]
max_new_tokens = 8
[horizon]
schedule = "stepwise"
every = 1
[rl]
updates = 2
group_size = 2
learning_rate = 1e-3
kl_coef = 0.01
[eval]
attempts = 1
limit = 2
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mixed.toml"
    path.write_text(text)
    return f"@{path}"


def sample(scenario: str, group: int, prompt: tuple[int, ...], score: float) -> Sample:
    """A prompt, and two sampled tokens."""
    ids = (*prompt, 7, 8)
    mask = (False,) * len(prompt) + (True, True)
    return Sample(
        ids=ids,
        action_mask=mask,
        logprobs=(0.0,) * len(ids),
        turns=(0,) * len(ids),
        rewards=(score,),
        score=score,
        outcome=Outcome.SUCCESS,
        scenario=scenario,
        group=group,
        member=0,
    )


def test_quotas_horizons_and_names_hold_in_a_whole_run(tmp_path: Path) -> None:
    recipe, folder = write(tmp_path, MIXED), tmp_path / "run"
    assert main([recipe, "--run.folder", str(folder)]) == 0
    first, second = metrics(folder)
    assert (first["groups"], first["groups/letters"], first["groups/counting"]) == (4, 3, 1)
    assert [(row["horizon/letters"], row["horizon/counting"]) for row in (first, second)] == [(2, 1), (3, 4)]
    assert second["horizon"] == 4
    assert second["episodes"] == second["episodes/letters"] + second["episodes/counting"] == 8
    episodes = list(trajectory.read(folder / "trajectories" / "update-0002.jsonl"))
    played = Counter((episode.scenario, episode.horizon) for episode in episodes)
    assert sorted(count for count in played.values()) == [2, 6]
    assert len({(episode.group, episode.member) for episode in episodes}) == 8  # no name is used twice
    result = json.loads((folder / "evaluations" / "update-0002.json").read_text())
    assert [item["item_id"].partition("_")[0] for item in result["results"]] == ["letters"] * 2 + ["counting"]
    assert main(["audit", str(folder)]) == 0


def test_a_resumed_mix_equals_an_undisturbed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load([write(tmp_path, MIXED), "--rl.updates", "3", "--horizon.every", "2"])
    runner.train(config, tmp_path / "whole")
    with interrupted_in_update(2, monkeypatch):
        runner.train(config, tmp_path / "halves")
    runner.train(config, tmp_path / "halves")
    whole, halves = metrics(tmp_path / "whole"), metrics(tmp_path / "halves")
    assert [row["horizon/counting"] for row in whole] == [1, 1, 4]
    assert list(map(without_times, halves)) == list(map(without_times, whole))
    for name in ("weights.safetensors", "state.json"):
        path = Path("checkpoints", "update-0003", name)
        assert (tmp_path / "halves" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()


def test_draws_of_two_samplers_never_have_one_number() -> None:
    first = ItemSampler(range(5), seed=0, turn=0, turns=2).next(7)
    second = ItemSampler(range(9), seed=0, turn=1, turns=2).next(7)
    assert [draw.number for draw in first] == [0, 2, 4, 6, 8, 10, 12]
    assert [draw.number for draw in second] == [1, 3, 5, 7, 9, 11, 13]
    assert sorted(Counter(draw.item for draw in first).values()) == [1, 1, 1, 2, 2]
    assert not {draw.seed for draw in first} & {draw.seed for draw in second}


def test_each_scenario_is_whitened_by_itself() -> None:
    """Returns 0 and 1 in one scenario, 0 and 0.1 in the other, two tokens each: both become -s and +s with
    s = 0.5 / std, std the unbiased deviation of (0, 0, 1, 1), 1 / sqrt(3): s = sqrt(3) / 2."""
    scores = {("far", 0): 0.0, ("far", 1): 1.0, ("near", 2): 0.0, ("near", 3): 0.1}
    samples = [sample(scenario, group, (1,), score) for (scenario, group), score in scores.items()]
    nothing = torch.zeros(2)
    scored = [Scored(nothing, nothing, nothing, torch.zeros(()))] * 4
    lessons = make_lessons(samples, scored, RLConfig(algorithm="reinforce++"), kl_coef=0.0)
    advantages = list(chain.from_iterable(lesson.advantages.tolist() for lesson in lessons))
    side = 3**0.5 / 2
    assert advantages == pytest.approx([-side, -side, side, side] * 2, rel=1e-4)


def test_a_row_holds_one_scenario_whose_beginning_lies_in_it_once() -> None:
    prompts = {"here": (1, 2, 3, 4), "there": (5, 6, 9)}
    samples = [
        sample(scenario, group, prompts[scenario], 0.0) for group, scenario in enumerate([*prompts] * 2)
    ]
    rows = pack([Lesson(one) for one in samples], 1000)
    assert [row.ids.tolist() for row in rows] == [[1, 2, 3, 4, 7, 7], [5, 6, 9, 7, 7]]
    assert [sorted(set(row.sample.tolist())) for row in rows] == [[0, 2], [1, 3]]


def test_every_mistake_of_a_mix_is_named_at_once(tmp_path: Path) -> None:
    text = """
[mix.a]
id = "Fake/Letters-v0"
group = 3
[mix.b]
id = "Fake/Letters-v0"
groups = 0
stages = [4, 4]
[mix.c]
id = "AgentGym/TextCraft-v0"
tasks = ["Depth9"]
options.distractor = 1
[mix.d]
groups = "many"
[env]
id = "AgentGym/BabyAI-v0"
[run]
method = "sft"
[mix.e]
groups = 2
"""
    with pytest.raises(ConfigError) as caught:
        load([write(tmp_path, text), "--mix.c.eval_horizon", "-1"])
    said = "\n".join(caught.value.mistakes)
    path = tmp_path / "mixed.toml"
    for words in (
        f"{path}:4: unknown key 'group' in [mix.a]. Did you mean 'groups'?",
        f"{path}:7: mix.b.groups is 0",
        f"{path}:8: mix.b.stages is [4, 4]",
        f"{path}:6: mix.b.id is of the world of mix.a",
        f"{path}:11: mix.c.tasks names 'Depth9'",
        f"{path}:12: mix.c.options cannot be used",
        f"{path}:14: mix.d.groups is 'many', but must be a whole number",
        "mix.e.id is ''",
        f"{path}:16: env.id is set beside [mix]",
        f"{path}:18: run.method is 'sft', but only rl mixes scenarios",
        "--mix.c.eval_horizon: mix.c.eval_horizon is -1",
    ):
        assert words in said, (words, said)


def test_a_run_of_another_mix_is_not_gone_on_with(tmp_path: Path) -> None:
    recipe, folder = write(tmp_path, MIXED), tmp_path / "run"
    config = load([recipe])
    folder.mkdir()
    (folder / "config.toml").write_text(Path(recipe[1:]).read_text())
    runner.RunFolder(folder).demand_fit(config)
    with pytest.raises(ConfigError, match=r"mix.letters.groups: .* started with 3, not 2"):
        runner.RunFolder(folder).demand_fit(load([recipe, "--mix.letters.groups", "2"]))
