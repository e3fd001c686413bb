"""Several server processes for one world, started and kept up by a parent that they do not outlive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from servers.serving import EXIT_GRACE, Listening, follow_parent

POLL_SECONDS = 0.2

CommandLine = Callable[[int], Sequence[str]]
"""What to tell `python -m servers` for a replica on a port (0: any)."""


class Replica:
    """One child process. It ends when its lifeline closes, of which only this process holds the other end."""

    def __init__(self, command_line: CommandLine, port: int) -> None:
        self._command_line = command_line
        self._announced, announce = os.pipe()
        child_end, self._lifeline = os.pipe()
        pipes = ("--announce", str(announce), "--parent", str(child_end))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "servers", *command_line(port), *pipes],
                pass_fds=(announce, child_end),
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        finally:
            os.close(announce)
            os.close(child_end)

    def wait_until_up(self) -> Listening:
        """Where it listens, once it does.

        Raises:
            subprocess.CalledProcessError: if it ended before.
        """
        with os.fdopen(self._announced) as pipe:
            line = pipe.readline()
        if not line:
            raise subprocess.CalledProcessError(self._process.wait(), self._process.args)
        self._listening = msgspec.json.decode(line, type=Listening)
        return self._listening

    def keep_up(self) -> Replica:
        """This replica, or, if it has died, another on the same port."""
        if self._process.poll() is None:
            return self
        self.let_go()
        print(f"The replica at {self._listening.url} died; it is started again.", file=sys.stderr, flush=True)
        successor = Replica(self._command_line, urlsplit(self._listening.url).port or 0)
        successor.wait_until_up()
        return successor

    def let_go(self) -> None:
        """Tells it to end."""
        os.close(self._lifeline)

    def end(self, deadline: float) -> None:
        """Waits for its end until `deadline` (monotonic seconds), then kills it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
            return
        self._process.kill()
        self._process.wait()


def supervise(
    command_line: CommandLine,
    port: int,
    number: int,
    *,
    report: Callable[[list[Listening]], None],
    parent: int | None,
) -> int:
    """Runs replicas on consecutive ports (0: any) until a signal or the parent's end.

    Args:
        report: is told where they listen, once all do.
        parent: file descriptor of a pipe whose end ends them all.

    Returns:
        The exit code: 0, or that of a replica that did not come up.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if parent is not None:
        follow_parent(parent, lambda: os.kill(os.getpid(), signal.SIGTERM))
    replicas: list[Replica] = []
    try:
        for index in range(number):
            replicas.append(Replica(command_line, port and port + index))
            if index == 0:
                listening = [replicas[0].wait_until_up()]  # a mistake shows once, not once a replica
        report(listening + [replica.wait_until_up() for replica in replicas[1:]])
        while True:
            time.sleep(POLL_SECONDS)
            replicas[:] = [replica.keep_up() for replica in replicas]
    except KeyboardInterrupt:
        return 0
    except subprocess.CalledProcessError as error:
        return error.returncode
    finally:
        _end_all(replicas)


def _end_all(replicas: Sequence[Replica]) -> None:
    for replica in replicas:
        replica.let_go()
    deadline = time.monotonic() + EXIT_GRACE
    for replica in replicas:
        replica.end(deadline)
