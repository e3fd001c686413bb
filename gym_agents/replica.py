"""One server process: its address, a pool of connections, typed errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import aiohttp
import msgspec

from gym_agents.errors import AgentGymError, BadAnswer, ServerUnreachable, UsageError, from_code
from gym_agents.launcher import LocalServer
from gym_agents.protocol import (
    BATCH,
    CLIENT_KEEP_ALIVE,
    CLOSE_RUN,
    EXPERT,
    HELLO,
    ITEMS,
    RENEW,
    Advice,
    Call,
    Expert,
    Failed,
    Hello,
    Items,
    Line,
    Run,
)

CONNECT_DEADLINE = 10.0
"""Seconds to reach a server for the first time."""

M = TypeVar("M", Hello, Items, Advice)

_encode = msgspec.json.Encoder().encode
_decode_lines = msgspec.json.Decoder(Line).decode_lines


class Replica:
    """One server process: its address and a pool of connections."""

    def __init__(self, server: str | LocalServer, token: str | None) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http: aiohttp.ClientSession | None = None

    @property
    def running(self) -> bool:
        """False for a local server that has not been started, or has died."""
        return isinstance(self._server, str) or self._server.address is not None

    async def url(self, path: str) -> str:
        """The address of a route; a local server that is not running is started."""
        if isinstance(self._server, str):
            return self._server.rstrip("/") + path
        address = self._server.address
        if address is None:
            address = await asyncio.to_thread(self._server.start)
        return address + path

    async def hello(self) -> Hello:
        return _decoded(await self._fetch("GET", HELLO), Hello)

    async def items(self, task: str | None, split: str) -> tuple[int, ...]:
        query = f"?split={split}" + (f"&task={task}" if task else "")
        return _decoded(await self._fetch("GET", ITEMS + query), Items).items

    async def expert(self, session: str) -> str:
        """The expert's next command in a session."""
        token = self._server.expert_token if isinstance(self._server, LocalServer) else None
        return _decoded(await self._fetch("POST", EXPERT, Expert(session), token), Advice).command

    async def renew(self, run: str) -> None:
        await self._fetch("POST", RENEW, Run(run))

    async def close_run(self, run: str) -> None:
        await self._fetch("POST", CLOSE_RUN, Run(run))

    async def batch(self, calls: Sequence[Call]) -> AsyncIterator[list[Line]]:
        """Sends the calls; yields answers as they arrive, several at a time.

        Raises:
            ServerUnreachable: if the connection is lost; calls without an answer may have been played.
        """
        async with self._request("POST", BATCH, _encoded(calls)) as response:
            rest = b""
            async for chunk in response.content.iter_any():
                complete, newline, rest = (rest + chunk).rpartition(b"\n")
                if newline:
                    yield self._lines(complete)
            if rest:
                raise ServerUnreachable(f"{await self.url('')} broke off in the middle of an answer.")

    async def _fetch(self, method: str, path: str, body: object = None, token: str | None = None) -> bytes:
        """One plain request; typed errors are raised."""
        headers = {"Authorization": f"Bearer {token}"} if token else None
        data = None if body is None else _encoded(body)
        async with self._request(method, path, data, headers) as response:
            return await response.read()

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = await self.url(path)
        try:
            async with self._pool().request(method, url, data=data, headers=headers) as response:
                if response.status != 200:
                    raise _failure(response.status, await response.read(), url)
                yield response
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ServerUnreachable(f"No answer from {url}: {str(error) or type(error).__name__}.") from error

    def _pool(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers={**self._headers, "Content-Type": "application/json"},
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=CLIENT_KEEP_ALIVE),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_DEADLINE),
            )
        return self._http

    @staticmethod
    def _lines(data: bytes) -> list[Line]:
        try:
            return _decode_lines(data)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"The server's answer does not fit the protocol: {error}") from error


def _failure(status: int, body: bytes, url: str) -> AgentGymError:
    try:
        failed = msgspec.json.decode(body, type=Failed)
    except msgspec.DecodeError:
        return BadAnswer(f"{url} answered {status} without a typed error: {body[:200]!r}")
    return from_code(failed.code, failed.message, failed.retry_after)


def _encoded(body: object) -> bytes:
    try:
        return _encode(body)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"This cannot be sent: {error}.") from error


def _decoded(data: bytes, kind: type[M]) -> M:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"The server's answer is not a {kind.__name__}: {error}") from error
