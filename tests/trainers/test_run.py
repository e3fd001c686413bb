"""Whole runs with a tiny random model on real worlds: files, resuming, controls, failures."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import typing
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

import gym_agents
from gym_agents import trajectory
from gym_agents.trajectory import Trajectory
from trainers import rl, runner
from trainers.acting.evaluate import success
from trainers.acting.health import ErrorBudget
from trainers.commands import main
from trainers.config import PolicyConfig, RLConfig
from trainers.errors import ExplodingGradient, TooManyEnvErrors
from trainers.folder import RunFolder
from trainers.metrics import without_times
from trainers.models import load_policy
from trainers.settings import load

RECIPE = "trainers/recipes/tiny_textcraft.toml"
SMALL = ("--warm_start.steps", "0", "--eval.limit", "1", "--eval.attempts", "1")
gym_agents.register_world("Fake/Raising-v0", "tests.fakes:RaisingWorld", max_episode_steps=2)
gym_agents.register_world("Fake/Letters-v0", "tests.fakes:LettersWorld", max_episode_steps=3)
ALGORITHMS = typing.get_args(typing.get_type_hints(RLConfig)["algorithm"])


def train(folder: Path, *flags: str) -> None:
    runner.train(load([f"@{RECIPE}", *flags]), folder)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def command(folder: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "trainers", f"@{RECIPE}", "--run.folder", str(folder), *flags]


@pytest.mark.slow
def test_a_run_leaves_its_files_and_says_three_things_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = subprocess.run(command(folder), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {
        *("config.toml", "versions.json", "metrics.jsonl", "curve.png", "demonstrations.jsonl"),
        *("trajectories", "evaluations", "checkpoints", "policy"),
    }
    learned = load_policy(
        PolicyConfig(str(folder / "policy"), lora_rank=0, max_context=64), torch.device("cpu")
    )
    kept = load_file(folder / "checkpoints" / "update-0002" / "weights.safetensors")
    assert all(torch.equal(weights, kept[name]) for name, weights in learned.trainable.items())
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert load([f"@{folder}/config.toml"]).horizon.stages == (2, 3)
    rows = metrics(folder)
    assert [(row["update"], row["horizon"], row["episodes"]) for row in rows] == [(1, 2, 4), (2, 3, 4)]
    assert all(set(row["seconds"]) == {"acting", "generation", "learning"} for row in rows)
    episodes = list(trajectory.read(folder / "trajectories" / "update-0002.jsonl"))
    assert [(episode.horizon, episode.update) for episode in episodes] == [(3, 2)] * 4
    assert all(len(turn.generations) == 1 for episode in episodes for turn in episode.turns)
    results, where, following = done.stdout.splitlines()[-3:]
    assert results.startswith("Success on 2 held-out items of textcraft-sorted: 0.0% [0.0, 0.0] -> 0.0%")
    assert str(folder) in where
    assert "--rl.updates 4" in following


@pytest.mark.slow
def test_a_resumed_run_equals_an_undisturbed_one_across_a_change_of_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items, seeds, horizon and learning rate go on where they were: accelerate #2823, #963; slime PR 1547.

    The interruption comes in update 4, when update 3, already noted, is not in a checkpoint; the horizon
    changes between updates 2 and 3, and the learning rate is still warming up.
    """
    flags = (*SMALL, "--rl.updates", "4", "--horizon.every", "2", "--run.checkpoint_every", "2")
    flags = (*flags, "--rl.warmup_updates", "4")
    train(tmp_path / "whole", *flags)

    with interrupted_in_update(4, monkeypatch):
        train(tmp_path / "halves", *flags)
    assert [row["update"] for row in metrics(tmp_path / "halves")] == [1, 2, 3]
    train(tmp_path / "halves", *flags)

    whole, halves = metrics(tmp_path / "whole"), metrics(tmp_path / "halves")
    assert [row["horizon"] for row in whole] == [2, 2, 3, 3]
    assert [row["learning_rate"] for row in whole] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3])
    assert list(map(without_times, halves)) == list(map(without_times, whole))
    for name in (
        "checkpoints/update-0004/weights.safetensors",
        "trajectories/update-0003.jsonl",
        "trajectories/update-0004.jsonl",
        "evaluations/update-0004-sampled.jsonl",
    ):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    starts = [(tmp_path / "whole" / "checkpoints" / name) for name in ("update-0002", "update-0004")]
    first, last = ((path / "weights.safetensors").read_bytes() for path in starts)
    assert first != last


@contextmanager
def interrupted_in_update(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within, the run is to be broken off by Ctrl-C in the update of this number."""
    learn = rl.learn

    def interrupted(run: Any, episodes: Any, update: int) -> dict[str, float]:
        if update == number:
            raise KeyboardInterrupt
        return learn(run, episodes, update)

    with monkeypatch.context() as patch:
        patch.setattr(rl, "learn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


def train_letters(folder: Path, algorithm: str, *flags: str) -> None:
    """A run in a world that a random model earns something in: two turns of one token, then three."""
    words = [
        "--env.id",
        "Fake/Letters-v0",
        "--env.num_envs",
        "16",
        "--eval.limit",
        "1",
        "--eval.attempts",
        "1",
    ]
    words += ["--policy.model", "tiny", "--policy.lora_rank", "0", "--policy.max_context", "256"]
    words += ["--sampling.max_new_tokens", "1", "--horizon.stages", "2", "3", "--rl.groups", "4"]
    words += ["--rl.group_size", "4", "--rl.learning_rate", "2e-3", "--rl.algorithm", algorithm]
    runner.train(load([*words, *flags]), folder)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_resumes_where_it_was(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With everything that has a state: the adaptive horizon, which changes on the way, and the KL's weight."""
    flags = ("--rl.updates", "4", "--run.checkpoint_every", "2", "--rl.epochs", "2", "--rl.minibatches", "2")
    flags = (*flags, "--rl.kl_coef", "0.1", "--rl.kl_in", "reward", "--rl.kl_target", "0.01")
    flags = (*flags, "--horizon.schedule", "adaptive", "--horizon.window", "1", "--horizon.every", "2")
    train_letters(tmp_path / "whole", algorithm, *flags)
    with interrupted_in_update(4, monkeypatch):
        train_letters(tmp_path / "halves", algorithm, *flags)
    train_letters(tmp_path / "halves", algorithm, *flags)
    whole, halves = metrics(tmp_path / "whole"), metrics(tmp_path / "halves")
    assert [row["horizon"] for row in whole] == [2, 2, 3, 3]
    assert len({row["kl_coef"] for row in whole}) == 4
    assert list(map(without_times, halves)) == list(map(without_times, whole))
    for name in ("state.json", "weights.safetensors"):
        path = Path("checkpoints", "update-0004", name)
        assert (tmp_path / "halves" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_learns(algorithm: str, tmp_path: Path) -> None:
    flags = ("--rl.updates", "10", "--rl.groups", "8", "--rl.group_size", "8", "--rl.minibatches", "2")
    flags = (*flags, "--env.num_envs", "64", "--eval.limit", "8", "--eval.attempts", "16")
    train_letters(tmp_path, algorithm, *flags, "--run.checkpoint_every", "10")
    before, after = (success(found, "sampled") for found in RunFolder(tmp_path).read_evaluations())
    assert before.mean < 0.1
    assert after.low > before.high


def test_a_step_that_must_not_be_made_stops_the_run_and_keeps_its_batch(tmp_path: Path) -> None:
    with pytest.raises(ExplodingGradient, match=r"Its rows are in .*unsound-update-0001-process-0\.pt"):
        train_letters(tmp_path, "reinforce++", "--rl.max_grad_norm", "1e-9")
    rows = torch.load(tmp_path / "unsound-update-0001-process-0.pt", weights_only=True)
    episodes = list(trajectory.read(tmp_path / "unsound-update-0001-process-0.jsonl"))
    assert len(episodes) == 16
    sampled = [token for row in rows for token in row["target_ids"].tolist()]
    played = [part.sampled_ids for episode in episodes for turn in episode.turns for part in turn.generations]
    assert Counter(sampled) == Counter(chain.from_iterable(played))
    assert not list((tmp_path / "checkpoints").glob("update-*"))


def test_two_updates_at_learning_rate_zero_leave_every_evaluation_as_it_was(tmp_path: Path) -> None:
    train(tmp_path, *SMALL, "--rl.learning_rate", "0", "--eval.attempts", "2", "--eval.limit", "3")
    for way in ("greedy", "sampled"):
        before, after = (
            list(trajectory.read(tmp_path / "evaluations" / f"update-{update}-{way}.jsonl"))
            for update in ("0000", "0002")
        )
        replies = [[turn.reply for turn in episode.turns] for episode in before]
        assert len(replies) == (3 if way == "greedy" else 6)
        assert replies == [[turn.reply for turn in episode.turns] for episode in after]


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = subprocess.Popen(
        command(folder, *SMALL, "--rl.updates", "500"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: (folder / "checkpoints" / "update-0001").exists(), process=run)
    children = psutil.Process(run.pid).children(recursive=True)
    assert children
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=30)
    assert run.returncode == 130, said
    assert said.strip().splitlines()[-1].startswith("Interrupted. Go on with: ")
    assert "Traceback" not in said
    assert not psutil.wait_procs(children, timeout=10)[1]


def wait_for(condition: Any, *, process: subprocess.Popen[str], deadline: float = 90.0) -> None:
    ends = time.monotonic() + deadline
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_failing_worlds_are_dropped_and_counted_or_stop_the_run(tmp_path: Path) -> None:
    """A failed environment is no zero: NVIDIA-NeMo/Gym #1351, NVIDIA-NeMo/RL #2305. Item 3 of 0..3 always fails."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(Path(RECIPE).read_text().replace("options.distractors = 0\n", ""))
    world = ("--env.id", "Fake/Raising-v0", "--env.tasks", "Low", "--eval.tasks", "Low", "--rl.groups", "4")
    folder = tmp_path / "run"
    with pytest.raises(TooManyEnvErrors, match=r"2 of 8 episodes of Fake/Raising-v0 .* no such simulator"):
        runner.train(load([f"@{recipe}", *SMALL, *world, "--env.max_error_rate", "0.2"]), folder)
    assert not (folder / "metrics.jsonl").exists()
    runner.train(load([f"@{recipe}", *SMALL, *world, "--env.max_error_rate", "0.3"]), folder)
    for row in metrics(folder):
        assert (row["episodes"], row["env_errors"], row["groups"], row["dropped_groups"]) == (6, 2, 4, 1)


@pytest.mark.slow
def test_a_server_killed_in_the_middle_of_an_update_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[psutil.Process] = []

    def kill_once(budget: ErrorBudget, episode: Trajectory) -> None:
        if episode.update == 2 and not killed:
            killed.extend(server_processes())
            for server in killed:
                server.kill()

    flags = (*SMALL, "--rl.groups", "4", "--env.num_envs", "2")
    with monkeypatch.context() as patch:
        patch.setattr(ErrorBudget, "spend", kill_once)
        train(tmp_path / "killed", *flags)
    assert killed
    assert not {server.pid for server in killed} & {server.pid for server in server_processes()}
    train(tmp_path / "alone", *flags)
    name = "trajectories/update-0002.jsonl"
    assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_two_processes_do_what_one_does(algorithm: str, tmp_path: Path) -> None:
    """With `ppo`, values, the KL in the reward, and the mean and deviation of advantages are shared as well."""
    flags = (*SMALL, "--rl.groups", "3", "--rl.tokens_per_batch", "300", "--rl.algorithm", algorithm)
    flags = (*flags, "--rl.kl_in", "reward" if algorithm == "ppo" else "loss")
    train(tmp_path / "one", *flags)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    launch += ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]
    words = [*launch, *command(tmp_path / "two", *flags)[1:]]
    environ = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    one, two = metrics(tmp_path / "one")[0], metrics(tmp_path / "two")[0]
    assert (one["episodes"], one["tokens"]) == (6, two["tokens"])
    for figure in ("loss", "entropy", "grad_norm"):
        assert two[figure] == pytest.approx(one[figure], rel=1e-4)
    assert one["grad_norm"] > 0
    replies = [
        [turn.reply for episode in trajectory.read(path) for turn in episode.turns]
        for path in (tmp_path / name / "trajectories/update-0001.jsonl" for name in ("one", "two"))
    ]
    assert replies[0] == replies[1]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def server_processes() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [
        child
        for child in children
        if child.status() != psutil.STATUS_ZOMBIE and "textcraft" in child.cmdline()
    ]


def test_a_checkpoint_is_evaluated_as_its_run_evaluated_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", *SMALL)
    own = ("--run.folder", str(tmp_path / "again"), "--checkpoint", str(tmp_path / "run"))
    assert main(["evaluate", f"@{RECIPE}", *SMALL, *own]) == 0
    assert "Held-out success on textcraft-sorted after 2 updates: 0.0%" in capsys.readouterr().out
    name = "evaluations/update-0002-sampled.jsonl"
    assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--run.folder", str(tmp_path / "run"), "--checkpoint", str(tmp_path))
    assert main(["evaluate", f"@{RECIPE}", *own]) == 2
    assert "is neither a checkpoint nor a run that has one" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_mistakes_end_with_status_2_and_leave_nothing(
    extra: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt setting must stop the run before it starts: MakazhanAlpamys/Soup #627, AshleyLab/OpenMHC #14."""
    recipe = tmp_path / "bad.toml"
    recipe.write_text("learning_rat = 1e-5\n[policy]\nlora-r = 8\n")
    folder = tmp_path / "run"
    assert main([f"@{recipe}", "--run.folder", str(folder), "--rl.stepz", "3", *extra]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in said] == [f"{recipe}:1", f"{recipe}:3", "--rl.stepz"]
    assert not folder.exists()


def test_a_dry_run_prints_what_would_be_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"@{RECIPE}", "--rl.updates", "3", "--dry-run"]) == 0
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out)
    assert load([f"@{printed}"]) == load([f"@{RECIPE}", "--rl.updates", "3"])


def test_help_shows_every_field_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "--rl.group_size INT" in shown
    assert "Episodes per item." in shown
    assert "--dry-run" in shown


def test_an_unknown_policy_is_said_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main([f"@{RECIPE}", "--policy.model", "tinny", "--run.folder", str(tmp_path / "run")]) == 1
    assert "Did you mean 'tiny'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
