"""Going on with what a folder holds: whose an evaluation is, what broke off, what cannot be read."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gym_agents import trajectory
from gym_agents.launcher import local_server
from tests.trainers.test_run import RECIPE, SMALL, interrupted_in_update, metrics, train
from trainers.checkpoint import Checkpoints, State, restore
from trainers.commands import main
from trainers.config import Config, PolicyConfig
from trainers.errors import DamagedCheckpoint
from trainers.folder import RunFolder, new_folder_name
from trainers.models import load_policy


def evaluate(folder: Path, *flags: str) -> int:
    return main(["evaluate", f"@{RECIPE}", *SMALL, "--run.folder", str(folder), *flags])


def zeroed(checkpoint: Path, copy: Path) -> Path:
    """A checkpoint of the same update whose weights are all 0."""
    shutil.copytree(checkpoint, copy)
    weights = load_file(copy / "weights.safetensors")
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in weights.items()}, copy / "weights.safetensors"
    )
    return copy


def test_an_evaluation_of_other_weights_is_never_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", *SMALL, "--rl.updates", "1")
    own = tmp_path / "run" / "checkpoints" / "update-0001"
    assert evaluate(tmp_path / "eval", "--checkpoint", str(own)) == 0
    assert evaluate(tmp_path / "eval", "--checkpoint", str(own)) == 0
    kept = (tmp_path / "eval" / "evaluations" / "update-0001-sampled.jsonl").read_bytes()
    other = zeroed(own, tmp_path / "other")
    assert evaluate(tmp_path / "eval", "--checkpoint", str(other)) == 2
    assert "holds the evaluation of other weights, also after 1 updates" in capsys.readouterr().err
    assert (tmp_path / "eval" / "evaluations" / "update-0001-sampled.jsonl").read_bytes() == kept


def test_a_run_that_goes_on_from_an_evaluation_evaluates_its_warm_start_anew(tmp_path: Path) -> None:
    flags = ("--eval.limit", "1", "--rl.updates", "1", "--warm_start.steps", "2")
    assert main(["evaluate", f"@{RECIPE}", *flags, "--run.folder", str(tmp_path / "both")]) == 0
    train(tmp_path / "both", *flags)
    train(tmp_path / "alone", *flags)
    name = "evaluations/update-0000-sampled.jsonl"
    assert (tmp_path / "both" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    found = [RunFolder(tmp_path / run).read_evaluation(0) for run in ("both", "alone")]
    assert found[0] == found[1]


def test_weights_have_one_fingerprint_wherever_they_came_from(tmp_path: Path) -> None:
    config = PolicyConfig("tiny", lora_rank=0, max_context=64)
    policy, other = (load_policy(config, torch.device("cpu")) for _ in range(2))
    with torch.no_grad():
        next(iter(policy.trainable.values())).view(-1)[0] += 1e-3
    assert policy.fingerprint() != other.fingerprint()
    policy.save_weights(tmp_path / "weights.safetensors")
    other.load_weights(tmp_path / "weights.safetensors")
    assert policy.fingerprint() == other.fingerprint()


def test_two_runs_of_one_second_have_two_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for process in (4711, 4712):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        monkeypatch.setattr("time.strftime", lambda form: "20260131-120000")
        names.append(new_folder_name(Config(), "train"))
    assert names == [f"runs/textcraft-train-20260131-120000-{process}" for process in (4711, 4712)]


def test_updates_are_ordered_as_numbers(tmp_path: Path) -> None:
    policy = load_policy(PolicyConfig("tiny", lora_rank=2, max_context=64), torch.device("cpu"))
    optimizer = torch.optim.AdamW(policy.trainable.values())
    checkpoints = Checkpoints(tmp_path)
    for update in (9998, 9999, 10000, 10001):
        checkpoints.save(State(update=update), policy, optimizer, keep=2)
    assert checkpoints.newest() == tmp_path / "update-10001"
    assert {path.name for path in tmp_path.iterdir()} == {"update-10000", "update-10001"}


@pytest.mark.parametrize("every", ["1", "5"])
def test_a_run_goes_on_after_a_line_that_broke_off(
    every: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a checkpoint of the update before, and without any."""
    flags = (*SMALL, "--rl.updates", "2", "--run.checkpoint_every", every)
    with interrupted_in_update(2, monkeypatch):
        train(tmp_path, *flags)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 2, "horiz')
    train(tmp_path, *flags)
    assert [row["update"] for row in metrics(tmp_path)] == [1, 2]
    assert len(list(trajectory.read(tmp_path / "trajectories" / "update-0002.jsonl"))) == 4


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt"])
def test_a_checkpoint_damaged_at_equal_size_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    flags = (*SMALL, "--rl.updates", "2")
    train(folder, *flags)
    damaged = folder / "checkpoints" / "update-0002"
    (damaged / name).write_bytes(b"\xff" * (damaged / name).stat().st_size)
    again = [f"@{RECIPE}", *flags, "--run.folder", str(folder)]
    assert main(again) == 1
    said = capsys.readouterr().err
    assert f"DamagedCheckpoint: {damaged / name} is damaged" in said
    shutil.rmtree(damaged)
    assert main(again) == 0


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.pt"])
def test_a_checkpoint_of_which_a_part_was_overwritten_is_named(name: str, tmp_path: Path) -> None:
    policy = load_policy(PolicyConfig("tiny", lora_rank=2, max_context=64), torch.device("cpu"))
    optimizer = torch.optim.AdamW(policy.trainable.values())
    Checkpoints(tmp_path).save(State(update=1), policy, optimizer, keep=1)
    path = tmp_path / "update-0001" / name
    whole = path.read_bytes()
    for start in (0, len(whole) // 2, len(whole) - 200):
        path.write_bytes(whole[:start] + b"\0" * 64 + whole[start + 64 :])
        with suppress(DamagedCheckpoint):
            restore(path.parent, policy, optimizer)


@pytest.mark.parametrize("named", ["flag", "variable"])
def test_the_expert_is_a_server_of_ones_own_whatever_server_is_named(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = local_server("textcraft").start()
    flags = ["--warm_start.episodes", "2", "--output", str(tmp_path / "demos.jsonl")]
    if named == "variable":
        monkeypatch.setenv("AGENTGYM_TEXTCRAFT_URL", address)
    else:
        flags += ["--env.server", address]
    assert main(["demos", f"@{RECIPE}", *flags]) == 0
    assert len(list(trajectory.read(tmp_path / "demos.jsonl"))) == 2
