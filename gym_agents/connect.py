"""From what a user names to a connected scenario: which world, which servers, one client for each."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import math
import os
from dataclasses import dataclass
from typing import Any

import msgspec

from gym_agents import background
from gym_agents.client import Client
from gym_agents.errors import BackendMissing, UsageError
from gym_agents.launcher import LocalServer, local_server
from gym_agents.scenario import Options, Scenario, make_options
from gym_agents.tasks import load_scenario, scenario_row

DEADLINE = 120.0
"""Seconds that one call may take by default, resending and recovery included."""

_clients: dict[tuple[object, ...], Client] = {}
_inherited: list[Client] = []


@dataclass(frozen=True)
class Connection:
    """What an environment holds: a scenario with its options, and the client that reaches its servers."""

    scenario: Scenario
    options: Options
    client: Client

    @property
    def plain_options(self) -> dict[str, Any]:
        """The options as they travel."""
        plain: dict[str, Any] = msgspec.to_builtins(self.options)
        return plain


def connect(
    scenario: str,
    *,
    server: str | None = None,
    token: str | None = None,
    replicas: int = 1,
    expert: bool = False,
    deadline: float = DEADLINE,
    options: dict[str, Any],
) -> Connection:
    """Resolves a scenario's name, or a user's own `module:World`, to a connection; nothing is sent yet.

    `server` names one address or several with commas. Without it the environment variable
    `AGENTGYM_<SCENARIO>_URL` does, and without that `replicas` local servers are started at first use;
    they are shared by the whole process. Only local servers play the `expert`, so that the variable, meant
    for every environment, is passed over where one is asked for.

    Raises:
        UsageError: no server can be found so, or there is no such deadline.
    """
    _demand_deadline(deadline)
    if server is not None and not isinstance(server, str):
        raise UsageError(f"A server is named by its address, a text, not by {server!r}.")
    found = load_world_scenario(scenario)
    made = make_options(found.options, options)
    named = server or ("" if expert else server_variable(found))
    servers: list[str | LocalServer] = (
        [address.strip() for address in named.split(",") if address.strip()]
        if named
        else [local_server(scenario, number, expert=expert) for number in range(replicas)]
    )
    if not servers:
        raise UsageError(f"There is no server to ask: server={server!r}, replicas={replicas!r}.")
    for address in servers:
        if isinstance(address, str) and not address.startswith(("http://", "https://")):
            raise UsageError(f"The server's address {address!r} must begin with http:// or https://.")
    token = token or os.environ.get("AGENTGYM_TOKEN")
    if token and not token.isprintable():
        raise UsageError("The token holds a line's end or another control character.")
    return Connection(found, made, _shared_client(found.name, servers, token, deadline))


def _demand_deadline(deadline: float) -> None:
    number = isinstance(deadline, (int, float)) and not isinstance(deadline, bool)
    if not (number and 0 < deadline < math.inf):
        raise UsageError(f"A deadline is a number of seconds above 0, not {deadline!r}.")


def server_variable(scenario: Scenario) -> str:
    """The addresses that the environment variable of a scenario names, if it does."""
    return os.environ.get(f"AGENTGYM_{scenario.name.upper()}_URL", "")


def load_world_scenario(scenario: str) -> Scenario:
    """The `Scenario` of a name in the table, or of a user's own `module:World`."""
    if ":" not in scenario:
        return load_scenario(scenario_row(scenario))
    module, _, attribute = scenario.partition(":")
    try:
        world = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BackendMissing(f"{scenario!r} is not an importable world: {error}") from error
    own: Scenario = world.scenario
    return own


def _shared_client(name: str, servers: list[str | LocalServer], token: str | None, deadline: float) -> Client:
    key = (name, *servers, token, deadline)
    if key not in _clients:
        if not _clients:
            background.start()  # before our exit handler, which needs the loop
            atexit.register(_close_clients, os.getpid())
        _clients[key] = Client(name, servers, token=token, deadline=deadline)
    return _clients[key]


def _close_clients(owner: int) -> None:
    if os.getpid() == owner and _clients:
        background.run(_close_all(list(_clients.values())))
        _clients.clear()


async def _close_all(clients: list[Client]) -> None:
    await asyncio.gather(*(client.close() for client in clients))


def _forget() -> None:
    """In a forked child: the parent's connections are kept untouched, and never used."""
    _inherited.extend(_clients.values())
    _clients.clear()


os.register_at_fork(after_in_child=_forget)
