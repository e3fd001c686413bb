"""The command line at its edges: what it advises, and what it refuses before anything is played."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import gym_agents
from gym_agents.errors import EmptySplit
from tests.trainers.test_run import RECIPE, SMALL, train
from trainers import runner
from trainers.acting.worlds import make_worlds, split_items
from trainers.commands import main
from trainers.config import EnvConfig
from trainers.folder import RunFolder

gym_agents.register_world("Fake/Counting-v0", "tests.fakes:CountingWorld", max_episode_steps=2)


def test_an_interrupted_evaluation_says_how_to_evaluate_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, checkpoint = tmp_path / "my runs ü", tmp_path / "a b"
    checkpoint.mkdir()
    folder.mkdir()

    def interrupted(config: object, path: Path, checkpoint: str) -> None:
        (path / "config.toml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "evaluate", interrupted)
    own = ["--run.folder", str(folder), f"--checkpoint={checkpoint}"]
    assert main(["evaluate", f"@{RECIPE}", *own]) == 130
    command = capsys.readouterr().err.strip().partition("Go on with: ")[2]
    python, *words = shlex.split(command)
    assert os.path.realpath(python) == os.path.realpath(sys.executable)
    assert words == [
        *("-m", "trainers", "evaluate", f"@{folder}/config.toml"),
        *("--run.folder", str(folder), "--checkpoint", str(checkpoint)),
    ]


@pytest.mark.slow
def test_a_run_does_not_go_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, *SMALL, "--rl.updates", "2")
    written = RunFolder(tmp_path).config.read_bytes()
    again = [f"@{RECIPE}", *SMALL, "--rl.updates", "1", "--run.folder", str(tmp_path)]
    assert main(again) == 2
    assert f"rl.updates: is 1, but the run in {tmp_path} has made 2" in capsys.readouterr().err
    assert RunFolder(tmp_path).config.read_bytes() == written


@pytest.mark.parametrize("extra", [[], ["--dry-run"]])
def test_a_folder_that_cannot_be_used_is_refused_at_once(
    extra: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder, said in ((str(file), "is no folder"), ("runs/\udcff", "holds characters that are no text")):
        assert main([f"@{RECIPE}", "--run.folder", folder, *extra]) == 2
        assert said in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main([f"@{RECIPE}", *SMALL, "--run.folder", str(tmp_path / "file" / "run")]) == 2
    assert "cannot be made: Not a directory" in capsys.readouterr().err


def test_a_dry_run_refuses_what_the_start_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(tmp_path / "run")
    own = [f"@{RECIPE}", "--run.folder", str(folder.path), "--dry-run"]
    assert main(own) == 0
    folder.path.mkdir()
    folder.config.write_text(capsys.readouterr().out)
    assert main(own) == 0
    assert main([*own, "--rl.groups", "3"]) == 2
    assert "was started with 2, not 3" in capsys.readouterr().err
    assert main(["evaluate", f"@{RECIPE}", "--checkpoint", str(tmp_path / "none"), "--dry-run"]) == 2
    assert "none is no folder" in capsys.readouterr().err


def test_a_world_without_items_of_a_split_is_a_typed_error() -> None:
    envs = make_worlds(EnvConfig(id="Fake/Counting-v0", num_envs=1))
    assert split_items(envs, ("Low",), "eval") == (4,)
    with pytest.raises(EmptySplit, match="counting holds no items in its split 'eval'"):
        split_items(envs, ("High",), "eval")
    envs.close()


def test_ctrl_c_while_modules_are_loaded_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text("raise KeyboardInterrupt")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "trainers", "--dry-run"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "Interrupted. Nothing was written yet."
