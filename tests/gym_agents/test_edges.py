"""What a user can do wrong, or can meet, at the edge: each ends at once, with an error that names it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gym_agents.env import TextEnv
from gym_agents.errors import AgentGymError, DeadlineExceeded, UsageError, VectorFailure
from gym_agents.horizon import make_vector_env
from gym_agents.launcher import LocalServer

WORLD = "tests.fakes:CountingWorld"
ADD = "Action: add 1"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    made = LocalServer(WORLD, expert=True)
    made.start()
    yield made
    made.close()


def kill(server: LocalServer, how: signal.Signals) -> None:
    assert server.pid is not None
    os.kill(server.pid, how)


def test_replies_may_be_numpys_texts() -> None:
    env = TextEnv(WORLD)
    env.reset(options={"item": 0})
    assert env.step(np.str_(ADD))[0] == "The count is 1."
    env.close()
    envs = make_vector_env(2, WORLD)
    envs.reset(options={"item": 0})
    assert envs.step(np.array([ADD, ADD]))[0] == ("The count is 1.",) * 2
    with pytest.raises(TypeError, match="not NoneType"):
        envs.step([None, ADD])
    assert envs.step([ADD, ADD])[0] == ("The count is 2.",) * 2
    envs.close()


def test_what_cannot_be_sent_fails_and_the_indices_go_on() -> None:
    envs = make_vector_env(2, WORLD)
    with pytest.raises(VectorFailure, match="cannot be sent") as caught:
        envs.reset(options={"item": 0, "split": object()})
    assert list(caught.value.failures) == [0, 1]
    assert envs.reset(options={"item": 0})[0][0].startswith("The count is 0.")
    envs.close()


def test_every_question_has_the_deadline(server: LocalServer) -> None:
    envs = make_vector_env(1, WORLD, server=server.start(), deadline=1.5)
    envs.reset(options={"item": 0})
    kill(server, signal.SIGSTOP)
    for ask in (envs.items, lambda: envs.expert(0)):
        started = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"within 1\.5 s"):
            ask()
        assert time.monotonic() - started < 5
    unheard = make_vector_env(1, WORLD, server=f"{server.start()},{server.start()}", deadline=1.0)
    started = time.monotonic()
    with pytest.raises(AgentGymError, match="within 1 s"):
        unheard.items()
    assert time.monotonic() - started < 1.8
    kill(server, signal.SIGCONT)
    assert envs.items() == (0, 1, 2, 3, 10, 11)
    envs.close()


def test_a_local_server_whose_port_was_taken_listens_on_another(server: LocalServer) -> None:
    address = server.start()
    kill(server, signal.SIGKILL)
    while server.address is not None:
        time.sleep(0.01)
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        assert server.start() != address


FORKED = """
import os, sys, time
from gym_agents.env import TextEnv
env = TextEnv("tests.fakes:CountingWorld")
env.reset(options={"item": 0})
if os.fork() == 0:
    started = time.monotonic()
    try:
        env.step("Action: add 1")
    except Exception as error:
        print(type(error).__name__, error, time.monotonic() - started < 2, flush=True)
    env.close()
    os._exit(0)
os.wait()
print(env.step("Action: add 1")[0])
"""


def test_a_forked_child_is_told_to_make_its_own() -> None:
    finished = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60)
    told, count = finished.stdout.splitlines()
    assert told.startswith("UsageError")
    assert "before the process forked" in told
    assert told.endswith("True")
    assert count == "The count is 1."


MINE = """
import pathlib, sys
sys.path.insert(0, pathlib.Path.cwd())
from gym_agents.env import TextEnv
for world in ("textcraft", "mine:World"):
    env = TextEnv(world)
    print(env.reset(seed=0)[1]["item_id"])
"""


@pytest.mark.parametrize("name", ["servers.py", "servers/__init__.py"])
def test_a_folder_with_servers_of_its_own_hides_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.py").write_text("from tests.fakes import CountingWorld as World\n")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise RuntimeError('not this one')\n")
    code = "import sys; here = sys.path.pop(0)\nimport servers\nsys.path.insert(0, here)\n" + MINE
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    assert [line.partition("_")[0] for line in finished.stdout.split()] == ["textcraft-sorted", "counting"]


@pytest.mark.parametrize("nowhere", [{"server": ","}, {"replicas": 0}, {"replicas": -1}])
def test_no_server_at_all_is_refused(nowhere: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="no server to ask"):
        make_vector_env(1, WORLD, **nowhere)


def test_a_token_with_a_lines_end_is_refused() -> None:
    with pytest.raises(UsageError, match="control character"):
        make_vector_env(1, WORLD, token="secret\n")


def test_an_address_without_its_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match="http://"):
        make_vector_env(1, WORLD, server="127.0.0.1:36001")
