"""Starts local server processes, one set a process, which die with their parent however it dies.

The server reads a pipe whose other end only this process holds; when this process is gone, the pipe
closes and the server exits.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from gym_agents.errors import ServerUnreachable

START_DEADLINE = 60.0
"""Seconds that a server may take until it listens."""
ROOT = Path(__file__).parent.parent
SERVE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import servers
del sys.path[0]
from servers.__main__ import main
sys.exit(main())
"""
"""`python -m servers`, where the user's own modules may hide ours: only the package is taken from `ROOT`."""

ANY_PORT = "0"

_servers: dict[tuple[str, int, bool], LocalServer] = {}
_lock = threading.Lock()


def local_server(world: str, number: int = 0, *, expert: bool = False) -> LocalServer:
    """This process's server number `number` for a world (a scenario's name, or `module:Class`).

    It is started at its first use. With `expert` it also plays the expert, for those who hold
    its `expert_token`.
    """
    with _lock:
        key = (world, number, expert)
        if key not in _servers:
            _servers[key] = LocalServer(world, expert=expert)
        return _servers[key]


class LocalServer:
    """One server process on a free port of the loopback interface.

    Args:
        world: a scenario's name, or `module:Class` of a world.
        expert: whether it plays the expert too.
        arguments: more of `python -m servers`' command line.
    """

    def __init__(self, world: str, *, expert: bool = False, arguments: Sequence[str] = ()) -> None:
        self.world = world
        self._arguments = list(arguments)
        self.expert_token = secrets.token_hex(16) if expert else None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._url = ""
        self._port = ANY_PORT
        """The same again after a death, while it is free, since other processes may know it."""
        self._log: IO[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def address(self) -> str | None:
        """Where it listens, `None` while it does not run."""
        process = self._process
        return self._url if process is not None and process.poll() is None else None

    def start(self) -> str:
        """Starts it, or starts it again where it has died; the address.

        Raises:
            ServerUnreachable: if it does not come up, with the end of its log.
        """
        with self._lock:
            if self.address is None:
                self._start_on_its_port()
            return self._url

    @property
    def pid(self) -> int | None:
        """Process id, `None` before the start."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """Ends the process; it may be started again."""
        with self._lock:
            self._release()

    def forget(self) -> None:
        """In a forked child: lets go of the parent's server without ending it."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._process, self._lifeline, self._lock = None, -1, threading.Lock()

    def _start_on_its_port(self) -> None:
        try:
            self._start()
        except ServerUnreachable:
            if self._port == ANY_PORT:
                raise
            self._port = ANY_PORT  # somebody else may have taken the old one
            self._start()

    def _start(self) -> None:
        self._release()
        child_end, self._lifeline = os.pipe()
        announced, announce = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        command = [sys.executable, "-P", "-c", SERVE, str(ROOT), self.world, "--port", self._port]
        command += self._arguments
        command += ["--announce", str(announce), "--parent", str(child_end)]
        if self.expert_token:
            command += ["--expert", self.expert_token]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=(announce, child_end),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(str(path) or "." for path in sys.path)},
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        finally:
            os.close(child_end)
            os.close(announce)
        self._url = self._await_announcement(announced)

    def _await_announcement(self, announced: int) -> str:
        with os.fdopen(announced, "rb") as pipe:
            deadline = time.monotonic() + START_DEADLINE
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                reason = f"did not listen within {START_DEADLINE:.0f} s"
            elif line := pipe.readline():
                url: str = json.loads(line)["url"]
                self._port = url.rpartition(":")[2]
                return url
            else:
                reason = "ended before it listened"
        tail = self._log_tail()
        self._release()
        raise ServerUnreachable(f"The local server for {self.world!r} {reason}. Its last words:\n{tail}")

    def _log_tail(self) -> str:
        assert self._log is not None
        if self._process is not None:
            try:
                self._process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def _release(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None


def close_all() -> None:
    """Ends every local server of this process."""
    with _lock:
        for server in _servers.values():
            server.close()
        _servers.clear()


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()
    for server in _servers.values():
        server.forget()
    _servers.clear()


atexit.register(close_all)
os.register_at_fork(after_in_child=_forget_all)
