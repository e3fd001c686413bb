"""One server process: loads a world, listens, says where, and goes when its parent goes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec
import uvicorn
from starlette.applications import Starlette

from gym_agents import protocol as wire
from gym_agents.errors import BackendMissing, UsageError
from gym_agents.tasks import ScenarioRow, load_scenario, scenario_row
from servers.world import World

EXIT_GRACE = 4.0
"""Seconds from the parent's end to a process that is gone, whatever the world is doing."""


def load_world(target: str) -> World:
    """The world of a scenario, or of a user: `textcraft`, or `module:Class`.

    Raises:
        UnknownTask: if there is no such scenario, with the nearest name.
        BackendMissing: if the scenario's backend is not built or not installed.
        UsageError: if there is no such class.
    """
    if ":" in target:
        return _load_class(target)
    row = scenario_row(target)
    load_scenario(row)
    try:
        return _load_class(row.world)
    except ModuleNotFoundError as error:
        raise _missing(row, error) from error


def _missing(row: ScenarioRow, error: ModuleNotFoundError) -> BackendMissing:
    package = (error.name or "").partition(".")[0]
    return BackendMissing(
        f"{row.title} needs the package {package!r}, which is not installed: "
        f"pip install 'gym-agents[{row.name}]'."
    )


def _load_class(target: str) -> World:
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UsageError(f"There is no module {module_name!r} in {os.getcwd()} or on the path.") from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, World)):
        raise UsageError(f"{target!r} does not name a subclass of servers.world.World.")
    return kind()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Raises:
        UsageError: if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise UsageError(f"Cannot listen on {host} port {port}: {error.strerror or error}.") from error
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a socket is reached."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Listening(msgspec.Struct, frozen=True):
    """Where a server process listens; one JSON line of an announcement."""

    url: str
    pid: int


def announce(descriptor: int, servers: Sequence[Listening]) -> None:
    """Writes a line for each server to a file descriptor, and closes it; its reader may be gone by now."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.Encoder().encode_lines(servers))


def follow_parent(pipe: int, end: Callable[[], None]) -> None:
    """Calls `end` once the pipe reads its end, and ends the process if it is still there `EXIT_GRACE` later.

    It waits in a thread, so that not even a world that hangs the event loop outlives the parent.
    """

    def follow() -> None:
        while os.read(pipe, 1024):
            pass
        end()
        time.sleep(EXIT_GRACE)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class Server(uvicorn.Server):
    """Reports its address once it listens."""

    def __init__(self, app: Starlette, report: Callable[[Listening], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_keep_alive=int(wire.SERVER_KEEP_ALIVE),
                timeout_graceful_shutdown=1,
            )
        )
        self._report = report
        logging.getLogger("uvicorn.error").addFilter(_is_no_cut_off_step)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, then says so."""
        await super().startup(sockets)
        for bound in sockets or []:
            self._report(Listening(url_of(bound), os.getpid()))

    def stop(self) -> None:
        """Ends `run`, soon; may be called from any thread."""
        self.should_exit = True


def _is_no_cut_off_step(record: logging.LogRecord) -> bool:
    """A request that is cut off because the server stops is no mistake, and needs no traceback."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def run(server: Server, bound: socket.socket) -> NoReturn:
    """Serves until a signal or the parent's end; threads that are still in a world do not hold it up."""
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[bound])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
