"""A model server over HTTP: one base address, deadlines, retries, typed answers and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec
import tenacity

from trainers.errors import EngineFailure, EngineRefusal

M = TypeVar("M")

CONNECT_DEADLINE = 10.0
"""Seconds to reach a server."""
LONGEST_PAUSE = 30.0
"""Most seconds between two attempts, whatever the server asks for."""
WORTH_REPEATING = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses after which the same request may be answered."""

_backoff = tenacity.wait_exponential_jitter(multiplier=0.2, max=LONGEST_PAUSE)


class ModelServer:
    """An OpenAI-compatible server; every coroutine of it runs on one event loop.

    Args:
        address: with its version, as in `http://127.0.0.1:8000/v1`.
        key: sent as bearer token, where it is not empty.
        deadline: seconds that a call may take, its repeats included.
        attempts: most times that a call is made.
    """

    def __init__(self, address: str, *, key: str = "", deadline: float = 600.0, attempts: int = 5) -> None:
        self.address = address.rstrip("/")
        self.deadline = deadline
        self._attempts = attempts
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http: aiohttp.ClientSession | None = None

    async def get(self, path: str, kind: type[M]) -> M:
        """What the server says at a path.

        Raises:
            EngineFailure: if no answer of this kind came, within the attempts and the deadline.
            EngineRefusal: if the server refuses the request.
        """
        return await self._call("GET", self.address + path, None, kind)

    async def post(self, path: str, body: Mapping[str, Any], kind: type[M]) -> M:
        """The answer to a request; raises as `get` does."""
        return await self._call("POST", self.address + path, body, kind)

    async def describe(self, kind: type[M]) -> M:
        """The server's own description of its routes, which lies beside the versioned ones; raises as `get` does."""
        return await self._call("GET", f"{self._root}/openapi.json", None, kind)

    async def control(self, path: str, body: Mapping[str, Any]) -> None:
        """Asks for something on a route that lies beside the versioned ones; raises as `get` does."""
        await self._call("POST", self._root + path, body, bytes)

    async def close(self) -> None:
        """Ends the connections."""
        if self._http is not None:
            await self._http.close()

    @property
    def _root(self) -> str:
        return self.address.removesuffix("/v1")

    async def _call(self, method: str, url: str, body: Mapping[str, Any] | None, kind: type[M]) -> M:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(EngineFailure),
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=_pause,
            reraise=True,
        )
        try:
            async with asyncio.timeout(self.deadline):
                data: bytes = await retrying(self._once, method, url, body)
        except TimeoutError as error:
            raise EngineFailure(f"{url} gave no answer within {self.deadline:g} s.") from error
        return _decoded(data, kind, url)

    async def _once(self, method: str, url: str, body: Mapping[str, Any] | None) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._pool().request(method, url, data=data) as response:
                answer = await response.read()
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineFailure(f"No answer from {url}: {error!r}") from error
        if response.status in WORTH_REPEATING:
            raise EngineFailure(
                _said(url, response.status, answer), retry_after=_seconds(response.headers.get("Retry-After"))
            )
        if not response.ok:
            raise EngineRefusal(_said(url, response.status, answer))
        return answer

    def _pool(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers={**self._headers, "Content-Type": "application/json"},
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_DEADLINE),
            )
        return self._http


def _pause(state: tenacity.RetryCallState) -> float:
    """Until the server expects to have room, if it said so, and else a little longer each time."""
    error = state.outcome.exception() if state.outcome is not None else None
    if isinstance(error, EngineFailure) and error.retry_after is not None:
        return min(error.retry_after, LONGEST_PAUSE)
    return _backoff(state)


def _seconds(header: str | None) -> float | None:
    """A `Retry-After` in seconds; a date there is not worth its parser."""
    return float(header) if header is not None and header.isdecimal() else None


def _said(url: str, status: int, answer: bytes) -> str:
    return f"{url} answered {status}: {answer[:500].decode(errors='replace')}"


def _decoded(data: bytes, kind: type[M], url: str) -> M:
    if kind is bytes:
        return data  # type: ignore[return-value]
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise EngineFailure(f"What {url} answered cannot be used: {error}") from error
