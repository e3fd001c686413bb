"""`python -m servers` as a process: where it listens, what it refuses, and that it ends with its parent."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gym_agents.errors import BackendMissing
from servers.__main__ import main
from servers.serving import load_world

COUNTING = "tests.fakes:CountingWorld"
SLEEPING = "tests.fakes:SleepingWorld"


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]:
    """The process, and the lines that it announces; it is killed at the end if it is still there."""
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "servers", *arguments, "--port", "0", "--announce", str(writer)],
        pass_fds=(writer,),
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    try:
        with os.fdopen(reader) as announced:
            yield process, map(json.loads, announced)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=10)


def get(url: str, path: str = "/healthz") -> bytes:
    with urllib.request.urlopen(url + path, timeout=10) as response:
        body: bytes = response.read()
        return body


def post(url: str, message: dict[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}/v1/call", json.dumps(message).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def answers(url: str) -> bool:
    with suppress(OSError):
        return get(url) == b"ok"
    return False


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0]
    return False


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says when it refuses, with exit code 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["servers", *arguments])
        try:
            code: int | str | None = main()
        except SystemExit as exit:
            code = exit.code
    assert code == 2
    return capsys.readouterr().err


def start_sleeping(url: str) -> None:
    """Begins a step of 30 seconds, and does not wait for it."""
    post(url, {"call": "create", "session": "s", "run": "r", "task": None, "options": {}})
    post(url, {"call": "reset", "session": "s", "episode": 1, "seed": 0, "item": 0})
    step = {"call": "step", "session": "s", "episode": 1, "turn": 1, "reply": "Action: add 300"}
    body = json.dumps(step).encode()
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.sendall(b"POST /v1/call HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.3)


def test_it_announces_where_it_listens() -> None:
    with serving(COUNTING, "--max-sessions", "3") as (process, announced):
        line = next(announced)
        assert line == {"url": line["url"], "pid": process.pid}
        hello = json.loads(get(line["url"], "/v1/hello"))
        assert (hello["scenario"], hello["max_sessions"]) == ("counting", 3)
        with pytest.raises(StopIteration):
            next(announced)  # the pipe is closed


@pytest.mark.parametrize(("world", "sent"), [(COUNTING, signal.SIGTERM), (SLEEPING, signal.SIGINT)])
def test_a_signal_ends_it_in_time_even_during_a_step(world: str, sent: signal.Signals) -> None:
    with serving(world) as (process, announced):
        url = next(announced)["url"]
        if world == SLEEPING:
            start_sleeping(url)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=5)
    assert process.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in errors
    with socket.socket() as again:  # the port is free
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", int(url.rpartition(":")[2])))


@pytest.mark.parametrize(("world", "replicas"), [(SLEEPING, "1"), (COUNTING, "2")])
def test_it_ends_with_its_parent_however_that_ends(world: str, replicas: str) -> None:
    """allenai/ScienceWorld PR 74: children that were left running."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, world, replicas], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert parent.stdout is not None
    lines = [json.loads(parent.stdout.readline()) for _ in range(int(replicas))]
    if world == SLEEPING:
        start_sleeping(lines[0]["url"])
    assert all(alive(line["pid"]) for line in lines)
    parent.kill()
    parent.communicate(timeout=5)
    assert until(lambda: not any(alive(line["pid"]) for line in lines))
    assert not any(answers(line["url"]) for line in lines)


PARENT = """
import os, subprocess, sys, time
announced, announce = os.pipe()
lifeline, held = os.pipe()
command = [sys.executable, "-m", "servers", sys.argv[1], "--replicas", sys.argv[2], "--port", "0"]
subprocess.Popen([*command, "--announce", str(announce), "--parent", str(lifeline)], pass_fds=(announce, lifeline))
os.close(announce)
os.close(lifeline)
with os.fdopen(announced) as lines:
    for line in lines:
        print(line, end="", flush=True)
time.sleep(60)
"""


class TestReplicas:
    def test_they_stand_side_by_side_and_end_together(self) -> None:
        with serving(COUNTING, "--replicas", "2") as (process, announced):
            first, second = next(announced), next(announced)
            names = {json.loads(get(line["url"], "/v1/hello"))["server"] for line in (first, second)}
            assert len(names) == 2
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=5)
        assert process.returncode == 0
        assert not alive(first["pid"])
        assert not alive(second["pid"])

    def test_kill_minus_nine_of_their_parent_ends_them(self) -> None:
        with serving(COUNTING, "--replicas", "2") as (process, announced):
            pids = [next(announced)["pid"], next(announced)["pid"]]
            process.kill()
            assert until(lambda: not any(map(alive, pids)))

    def test_one_that_dies_is_started_again_at_its_address(self) -> None:
        with serving(COUNTING, "--replicas", "2") as (process, announced):
            first = next(announced)
            os.kill(first["pid"], signal.SIGKILL)
            assert until(lambda: answers(first["url"]), seconds=20)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=5)
        assert f"{first['url']} died" in errors


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("textcrft",), "Did you mean 'textcraft'?"),
            (("webarena",), "not built yet"),
            (("tests.fakes:NoWorld",), "'tests.fakes:NoWorld' does not name a subclass"),
            (("no_such_module:World",), "no module 'no_such_module'"),
            ((COUNTING, "--host", "0.0.0.0"), "give a --token"),
            ((COUNTING, "--leese", "3"), "--leese"),
        ],
    )
    def test_a_mistake_is_told_with_exit_code_2(
        self, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert words in refused(capsys, *arguments)

    def test_a_mistake_is_told_once_for_all_replicas(self) -> None:
        command = [sys.executable, "-m", "servers", "no_such_module:World", "--replicas", "3"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert ended.stderr.count("no module 'no_such_module'") == 1
        assert "Traceback" not in ended.stderr

    def test_every_wrong_setting_is_named_at_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        wrong = ("--lease", "0", "--replicas", "0", "--max-sessions=-1", "--threads", "0", "--port", "70000")
        told = refused(capsys, COUNTING, *wrong)
        for flag in ("--lease", "--replicas", "--max-sessions", "--threads", "--port"):
            assert flag in told

    def test_a_port_that_is_taken(self, capsys: pytest.CaptureFixture[str]) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            told = refused(capsys, COUNTING, "--port", str(port))
        assert f"Cannot listen on 127.0.0.1 port {port}" in told

    def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "minigrid", None)
        for name in [name for name in sys.modules if name.startswith("servers.babyai")]:
            monkeypatch.delitem(sys.modules, name)
        with pytest.raises(BackendMissing, match=r"'minigrid'.*gym-agents\[babyai\]"):
            load_world("babyai")


def test_the_help_page_names_ports_and_flags() -> None:
    command = [sys.executable, "-m", "servers", "--help"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    for words in ("textcraft 36201", "babyai 36301", "--replicas", "--token", "module:Class"):
        assert words in page


def test_another_address_is_served_with_a_token() -> None:
    with serving(COUNTING, "--host", "0.0.0.0", "--token", "geheim") as (_, announced):
        port = next(announced)["url"].rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"
        assert answers(url)
        with pytest.raises(urllib.error.HTTPError, match="401") as unauthorized:
            get(url, "/v1/hello")
        unauthorized.value.close()
