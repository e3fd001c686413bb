"""Whole runs on a model server and on an API: what is trained, what is only evaluated, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gym_agents import trajectory
from tests.trainers.acting.model_server import TinyServer, serving
from trainers.commands import main
from trainers.engines import demand_whole_weights
from trainers.errors import ShardedWeights

RECIPE = "trainers/recipes/tiny_textcraft.toml"
SMALL = ("--warm_start.steps", "0", "--eval.limit", "1", "--eval.attempts", "1")


@pytest.fixture
def tiny() -> Iterator[TinyServer]:
    with serving(TinyServer()) as server:
        yield server


def command(folder: Path, tiny: TinyServer, engine: str, *flags: str, word: str = "train") -> int:
    server = ("--engine.name", engine, "--engine.server", tiny.address, "--engine.attempts", "1")
    return main([word, f"@{RECIPE}", "--run.folder", str(folder), *SMALL, *server, *flags])


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "4"], ids=["whole weights", "adapter"])
def test_a_run_trains_what_a_server_samples(tmp_path: Path, tiny: TinyServer, rank: str) -> None:
    """Before an update's step the policy is the one that sampled: a ratio of 1, also after weights were sent."""
    assert command(tmp_path / "run", tiny, "remote", "--policy.lora_rank", rank) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["ratio"] for row in rows] == pytest.approx([1.0, 1.0], abs=1e-3)
    assert all(row["grad_norm"] > 0 and row["sampled_tokens"] > 0 for row in rows)
    [*_, last] = trajectory.read(tmp_path / "run" / "trajectories" / "update-0002.jsonl")
    [generation, *_] = last.turns[0].generations
    assert generation.weight_version == 1
    assert len(generation.logprobs) == len(generation.sampled_ids) > 0
    synced = [word for word in tiny.called if word.startswith(("load", "reload"))]
    assert len(synced) == 3  # before the first update, and after each


def test_a_server_without_log_probabilities_is_evaluated_and_not_trained_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(TinyServer(logprobs=False, routes=())) as tiny:
        assert command(tmp_path / "train", tiny, "remote") == 1
        assert "EvaluationOnly: " in (said := capsys.readouterr().err)
        assert "does not give their log-probabilities, nor a way to give it new weights" in said
        assert command(tmp_path / "eval", tiny, "remote", word="evaluate") == 0
    said = capsys.readouterr().out
    assert "serves evaluation alone: it does not give their log-probabilities" in " ".join(said.split())
    assert (tmp_path / "eval" / "evaluations" / "update-0000.json").exists()


def test_an_api_model_is_evaluated_and_never_trained(
    tmp_path: Path, tiny: TinyServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--engine.model", "gpt")
    assert command(tmp_path / "train", tiny, "api", *model) == 2
    assert "engine.name: is 'api'" in capsys.readouterr().err
    assert not tiny.asked
    assert command(tmp_path / "eval", tiny, "api", *model, word="evaluate") == 0
    [episode] = trajectory.read(tmp_path / "eval" / "evaluations" / "update-0000-sampled.jsonl")
    assert [turn.command for turn in episode.turns] == ["inventory"] * 2
    assert all(id < 0 for turn in episode.turns for part in turn.generations for id in part.sampled_ids)
    assert {body["model"] for body in tiny.asked} == {"gpt"}
    assert (
        command(tmp_path / "again", tiny, "api", *model, "--checkpoint", str(tmp_path), word="evaluate") == 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["planning", "reflection", "window"])
def test_every_agent_runs_from_warm_start_to_update(tmp_path: Path, agent: str) -> None:
    flags = ("--agent.name", agent, "--agent.window", "1", "--warm_start.steps", "1", "--rl.updates", "1")
    assert main([f"@{RECIPE}", "--run.folder", str(tmp_path), *SMALL, *flags]) == 0
    episodes = list(trajectory.read(tmp_path / "trajectories" / "update-0001.jsonl"))
    parts = [part for episode in episodes for turn in episode.turns for part in turn.generations]
    if agent == "window":
        assert any(part.fresh for part in parts)
    else:
        assert {part.part for part in parts} == {"act", {"planning": "plan", "reflection": "reflect"}[agent]}
    [row] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["grad_norm"] > 0


@pytest.mark.slow
def test_figures_go_to_a_tracker_too(tmp_path: Path) -> None:
    flags = ("--run.trackers", "tensorboard", "--rl.updates", "1")
    assert main([f"@{RECIPE}", "--run.folder", str(tmp_path), *SMALL, *flags]) == 0
    events = EventAccumulator(str(tmp_path / "gym-agents"))
    events.Reload()
    [row] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    for name in ("loss", "sampled_tokens"):
        [point] = events.Scalars(name)
        assert (point.step, point.value) == (1, pytest.approx(json.loads(row)[name], rel=1e-5))
    assert [point.step for point in events.Scalars("held_out/sampled")] == [0, 1]


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM"])
def test_a_launch_that_shards_weights_is_refused_and_says_what_to_do(kind: str) -> None:
    launched: Any = SimpleNamespace(distributed_type=DistributedType[kind])
    with pytest.raises(ShardedWeights, match=r"one_machine.yaml .* LoRA .*engine.name = remote"):
        demand_whole_weights(launched)


def test_launches_of_whole_models_are_not_refused() -> None:
    for kind in ("NO", "MULTI_CPU", "MULTI_GPU"):
        whole: Any = SimpleNamespace(distributed_type=DistributedType[kind])
        demand_whole_weights(whole)
    paths = sorted(Path("trainers/accelerate").glob("*.yaml"))
    assert [load_config_from_file(str(path)).distributed_type for path in paths] == [
        DistributedType.MULTI_GPU
    ] * 2
