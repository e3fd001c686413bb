"""`python -m servers textcraft --port 36001 --replicas 4`: serves a scenario, or a world of your own."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, NoReturn

import tyro

from gym_agents.errors import AgentGymError, UsageError
from gym_agents.tasks import SCENARIOS
from servers.app import create_app
from servers.replicas import supervise
from servers.serving import Listening, Server, announce, follow_parent, listen, load_world, run

FIRST_PORT = 36001
PORTS_PER_SCENARIO = 100

DESCRIPTION = """Serves the episodes of one scenario over HTTP.

A scenario that is served here is found by the environments through its address:
AGENTGYM_<SCENARIO>_URL=http://127.0.0.1:36001 (several replicas with commas), or
gymnasium.make(..., server="http://127.0.0.1:36001").

Default ports: {ports}; any other world {other}. Replicas take the ports that follow.
"""


@dataclass(frozen=True)
class Settings:
    """What to serve, where, and to whom."""

    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")]
    """A scenario's name (textcraft, babyai, ...), or module:Class of a world of your own."""
    host: str = "127.0.0.1"
    """Address to listen on; any but this machine's own loopback wants a token."""
    port: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Port of the first replica; 0 takes any free ones. Unset: the scenario's own, see above."""
    replicas: int = 1
    """How many processes, on consecutive ports; one that dies is started again."""
    token: Annotated[str | None, tyro.conf.arg(metavar="TOKEN")] = None
    """What every request must show as `Authorization: Bearer TOKEN`."""
    expert: Annotated[str | None, tyro.conf.arg(metavar="TOKEN")] = None
    """Also plays the expert, for requests that show this token; for demonstrations and tests only."""
    lease: float = 60.0
    """Seconds for which a session lives without a call or a renewal."""
    max_sessions: int = 4096
    """Most sessions open at once in one process (a world may have room for fewer); more are told when to come back."""
    threads: int = 64
    """Most calls in play at once in one process, for a world whose steps wait."""
    announce: Annotated[int | None, tyro.conf.arg(metavar="FD")] = None
    """File descriptor that is given a JSON line {"url": ..., "pid": ...} by each process once it listens."""
    parent: Annotated[int | None, tyro.conf.arg(metavar="FD")] = None
    """File descriptor of a pipe; everything ends as soon as it reads the pipe's end."""


def check(settings: Settings) -> None:
    """Raises `UsageError`, with every setting that is wrong."""
    problems = []
    if not settings.token and not _is_loopback(settings.host):
        problems.append(f"--host {settings.host} is open to other machines: give a --token, too.")
    if settings.port is not None and not 0 <= settings.port <= 65535:
        problems.append(f"--port {settings.port} is not within 0 and 65535.")
    for name in ("replicas", "lease", "max_sessions", "threads"):
        if not getattr(settings, name) > 0:
            problems.append(f"--{name.replace('_', '-')} must be more than 0.")
    if problems:
        raise UsageError("\n".join(problems))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def default_port(world: str) -> int:
    """The port of a scenario, far enough from the next one's for many replicas."""
    names = [row.name for row in SCENARIOS]
    return FIRST_PORT + PORTS_PER_SCENARIO * (names.index(world) if world in names else len(names))


def description() -> str:
    """The head of the help page."""
    ports = ", ".join(f"{row.name} {default_port(row.name)}" for row in SCENARIOS)
    return DESCRIPTION.format(ports=ports, other=default_port("module:Class"))


def command_line(settings: Settings) -> list[str]:
    """The arguments that give these settings."""
    given = {field.name: getattr(settings, field.name) for field in fields(settings)}
    flags = [
        part
        for name, value in given.items()
        if name != "world" and value is not None
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    return [settings.world, *flags]


def serve_one(settings: Settings, port: int) -> NoReturn:
    """Serves in this process."""
    with listen(settings.host, port) as bound:
        app = create_app(
            load_world(settings.world),
            token=settings.token,
            expert_token=settings.expert,
            lease=settings.lease,
            max_sessions=settings.max_sessions,
            threads=settings.threads,
        )
        server = Server(app, report=lambda listening: report(settings, [listening]))
        if settings.parent is not None:
            follow_parent(settings.parent, server.stop)
        run(server, bound)


def serve_replicas(settings: Settings, port: int) -> int:
    """Serves in child processes; returns the exit code."""
    child = replace(settings, replicas=1, announce=None, parent=None)
    return supervise(
        lambda port: command_line(replace(child, port=port)),
        port,
        settings.replicas,
        report=lambda servers: report(settings, servers),
        parent=settings.parent,
    )


def report(settings: Settings, servers: Sequence[Listening]) -> None:
    """Says where it listens: to the one who asked for it, else on screen."""
    if settings.announce is not None:
        announce(settings.announce, servers)
    else:
        print(f"{settings.world} is served at {','.join(server.url for server in servers)}", flush=True)


def main() -> int:
    """Entry point; a mistake of the caller's ends with a message and exit code 2."""
    settings = tyro.cli(Settings, prog="python -m servers", description=description())
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        check(settings)
        port = default_port(settings.world) if settings.port is None else settings.port
        if settings.replicas > 1:
            return serve_replicas(settings, port)
        serve_one(settings, port)
    except AgentGymError as error:
        print(f"python -m servers: {error.message}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
