"""The Makefile, run with stand-ins for Python: nothing is installed, and no training starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gym_agents.tasks import SCENARIOS

ROOT = Path(__file__).parents[1]
BUILT = [row.name for row in SCENARIOS if row.built]
SLOW_TO_STOP = """
import pathlib, sys, time
started, stopped = map(pathlib.Path, sys.argv[1:])
try:
    started.touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    stopped.touch()
    sys.exit(130)
"""
INHERITED = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ENV", "MODEL", "RUN", "ARGS", "PYTHONS")


@pytest.fixture
def environ() -> dict[str, str]:
    """The environment without what `make test ARGS=...` hands down."""
    return {name: value for name, value in os.environ.items() if name not in INHERITED}


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment that looks installed; its python prints the modules it is asked to run."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    script(folder / "bin/pip", "exit 0")
    script(
        folder / "bin/python", f'if [ "$1" = -m ]; then echo "ran: $*"; else exec {sys.executable} "$@"; fi'
    )
    for what in ("base", "train", "dev"):
        (folder / f".installed-{what}").touch()
    return folder


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def make(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def command_of(result: subprocess.CompletedProcess[str]) -> str:
    (line,) = re.findall(r"^ran: (.*)$", result.stdout, re.MULTILINE)
    return str(line)


def test_plain_make_lists_every_command(environ: dict[str, str]) -> None:
    listed = re.findall(r"^make ([a-z-]+) ", make(env=environ).stdout, re.MULTILINE)
    wanted = "help install train sft dpo evolve serve eval bench test test-fast test-gpu check format clean"
    assert listed == wanted.split()


def test_train_passes_model_folder_and_further_flags_on(venv: Path, environ: dict[str, str]) -> None:
    flags = ("MODEL=my/model", "RUN=runs/mine", "ARGS=--rl.updates 3")
    result = make("train", f"VENV={venv}", "ENV=babyai", *flags, env=environ)
    recipe = "@trainers/recipes/babyai.toml"
    wanted = f"-m trainers {recipe} --policy.model my/model --run.folder runs/mine --rl.updates 3"
    assert command_of(result) == wanted


@pytest.mark.parametrize(("method", "own"), [("sft", " --warm_start.steps 0"), ("dpo", ""), ("evolve", "")])
def test_the_offline_methods_run_the_scenarios_recipe(
    method: str, own: str, venv: Path, environ: dict[str, str]
) -> None:
    result = make(method, f"VENV={venv}", "ENV=babyai", "RUN=runs/mine", "ARGS=--eval.limit 3", env=environ)
    recipe = f"-m trainers @trainers/recipes/babyai.toml --run.method {method}{own}"
    assert command_of(result) == f"{recipe} --run.folder runs/mine --eval.limit 3"


def test_eval_passes_the_checkpoint_on(venv: Path, environ: dict[str, str]) -> None:
    result = make("eval", f"VENV={venv}", "ENV=textcraft", "CKPT=runs/mine", env=environ)
    assert (
        command_of(result) == "-m trainers evaluate @trainers/recipes/textcraft.toml --checkpoint runs/mine"
    )


def test_serve_names_scenario_port_and_replicas(venv: Path, environ: dict[str, str]) -> None:
    result = make("serve", f"VENV={venv}", "ENV=textcraft", "PORT=4000", "REPLICAS=3", env=environ)
    assert command_of(result) == "-m servers textcraft --port 4000 --replicas 3"


@pytest.mark.parametrize("command", ["train", "sft", "dpo", "evolve", "eval"])
def test_an_unknown_scenario_is_refused_with_the_known_ones(
    command: str, venv: Path, environ: dict[str, str]
) -> None:
    result = make(command, f"VENV={venv}", "ENV=minecraft", env=environ)
    assert result.returncode == 2
    assert "There is no scenario 'minecraft'" in result.stderr
    assert all(name in result.stderr for name in ("textcraft", "babyai", "sciworld", "searchqa", "webarena"))
    assert "ran:" not in result.stdout
    assert "Traceback" not in result.stderr


def test_a_scenario_without_a_backend_is_refused_as_such(venv: Path, environ: dict[str, str]) -> None:
    result = make("train", f"VENV={venv}", "ENV=webarena", env=environ)
    assert result.returncode == 2
    assert "not built yet" in result.stderr


@pytest.mark.parametrize("name", BUILT)
def test_every_built_scenario_has_its_recipe(name: str) -> None:
    assert (ROOT / "trainers/recipes" / f"{name}.toml").is_file()


def test_the_exit_code_of_a_run_is_told(venv: Path, environ: dict[str, str]) -> None:
    script(venv / "bin/python", f'if [ "$1" = -m ]; then exit 7; else exec {sys.executable} "$@"; fi')
    result = make("train", f"VENV={venv}", "ENV=textcraft", env=environ)
    assert result.returncode == 2  # make's own, for every failed recipe
    assert "Error 7" in result.stderr


def test_ctrl_c_reaches_the_run_and_make_waits_for_it(
    venv: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    started, stopped = tmp_path / "started", tmp_path / "stopped"
    (tmp_path / "run.py").write_text(SLOW_TO_STOP)
    run = f"exec {sys.executable} {tmp_path}/run.py {started} {stopped}"
    script(venv / "bin/python", f'if [ "$1" = -m ]; then {run}; else exec {sys.executable} "$@"; fi')
    process = subprocess.Popen(
        ["make", "train", f"VENV={venv}", "ENV=textcraft", "MODEL=a"],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    await_file(started)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does on Ctrl-C
    assert process.wait(60) != 0
    assert stopped.exists()


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def test_without_a_python_it_says_what_to_install(tmp_path: Path, environ: dict[str, str]) -> None:
    script(tmp_path / "python-old", "exit 1")  # what the version check of an old Python does
    pythons = f"PYTHONS={tmp_path}/python-old {tmp_path}/python-none"
    result = make("install", f"VENV={tmp_path}/venv", pythons, env=environ)
    assert result.returncode == 2
    assert "No Python 3.11 or later" in result.stderr
    assert "apt-get install python3" in result.stderr
    assert "brew install" in result.stderr


def python_without_ensurepip(folder: Path) -> str:
    """A Debian python without its venv package; prints what else it is asked to do."""
    path = folder / "python-debian"
    body = f"""case "$*" in
      *ensurepip*) [ -e {folder}/package ] ;;
      *-venv*) echo python3.11-venv ;;
      *version_info*) echo $0 ;;
      *) echo "ran: $*"; exit 3 ;;
    esac"""
    script(path, body)
    return str(path)


@pytest.mark.parametrize("user", ["1000", "0"])
def test_a_debian_without_venv_is_helped(user: str, tmp_path: Path, environ: dict[str, str]) -> None:
    python = python_without_ensurepip(tmp_path)
    commands = tmp_path / "commands"
    commands.mkdir()
    script(commands / "id", f"echo {user}")
    script(commands / "apt-get", f'echo "apt-get $*"; touch {tmp_path}/package')
    environ["PATH"] = f"{commands}:{environ['PATH']}"
    result = make("install", f"VENV={tmp_path}/venv", f"PYTHONS={python}", env=environ)
    assert result.returncode == 2
    if user == "0":
        assert "apt-get install -y -qq python3.11-venv" in result.stdout
        assert command_of(result) == f"-m venv --clear {tmp_path}/venv"
    else:
        assert "sudo apt-get install python3.11-venv" in result.stderr
        assert "ran:" not in result.stdout


@pytest.mark.parametrize("user", ["1000", "0"])
def test_sciworld_is_helped_to_its_java(
    user: str, venv: Path, tmp_path: Path, environ: dict[str, str]
) -> None:
    """A Debian without Java; installing it makes the command."""
    commands = tmp_path / "commands"
    commands.mkdir()
    script(commands / "java", f"[ -e {tmp_path}/package ]")
    script(commands / "id", f"echo {user}")
    script(commands / "apt-get", f'echo "apt-get $*"; touch {tmp_path}/package')
    environ["PATH"] = f"{commands}:{environ['PATH']}"
    environ.pop("JAVA_HOME", None)
    result = make("serve", f"VENV={venv}", "ENV=sciworld", env=environ)
    if user == "0":
        assert "apt-get install -y -qq default-jre-headless" in result.stdout
        assert command_of(result) == "-m servers sciworld"
    else:
        assert result.returncode == 2
        assert "sudo apt-get install default-jre-headless" in result.stderr
        assert "ran:" not in result.stdout


def test_only_sciworld_wants_java(venv: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    script(tmp_path / "java", "exit 1")
    script(tmp_path / "apt-get", "exit 1")
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"
    result = make("serve", f"VENV={venv}", "ENV=textcraft", env=environ)
    assert command_of(result) == "-m servers textcraft"
