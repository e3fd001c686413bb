"""A retrieval server elsewhere, in the form of Search-R1's `/retrieve`."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import aiohttp
import msgspec
import tenacity

from gym_agents import background
from gym_agents.errors import RetrieverFailure
from servers.searchqa.corpora import split_contents
from servers.searchqa.passages import Passage
from servers.searchqa.retrieval import Retriever

MAX_BATCH = 64
"""Queries in one request."""
CONNECTIONS = 8
"""Requests at once."""
DEADLINE = 30.0
"""Seconds that a search may take, waits for an overloaded server included; less than a client's for a step."""
OVERLOADED = (429, 502, 503, 504)
"""HTTP statuses after which the same request is sent again, later."""


class _Document(msgspec.Struct):
    contents: str
    """The quoted title, a line break, and the text."""


class _Scored(msgspec.Struct):
    document: _Document


class _Found(msgspec.Struct):
    result: list[list[_Scored]]


class _Overloaded(Exception):
    """The server cannot answer now."""


_decoder = msgspec.json.Decoder(_Found)
_backoff = tenacity.wait_exponential(multiplier=0.1, max=2.0)


class Remote(Retriever):
    """Asks a retrieval server; queries that wait at the same time go out together.

    Args:
        url: its address, with or without `/retrieve`.
        deadline: seconds that a search may take.
    """

    def __init__(self, url: str, *, deadline: float = DEADLINE) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/retrieve')}/retrieve"
        self._deadline = deadline
        self.name = f"retrieval server {self._url}"
        self._waiting: defaultdict[int, list[tuple[str, asyncio.Future[list[Passage]]]]] = defaultdict(list)
        self._sending: set[asyncio.Task[None]] = set()
        self._http: aiohttp.ClientSession | None = None

    def search(self, query: str, k: int) -> list[Passage]:
        """What the server answers.

        Raises:
            RetrieverFailure: if it is not there, stays overloaded until the deadline, or answers in another form.
        """
        return background.run(self._search(query, k))

    async def _search(self, query: str, k: int) -> list[Passage]:
        answer: asyncio.Future[list[Passage]] = asyncio.get_running_loop().create_future()
        self._waiting[k].append((query, answer))
        if len(self._sending) < CONNECTIONS:
            task = asyncio.create_task(self._send_waiting())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        try:
            async with asyncio.timeout(self._deadline):
                return await answer
        except TimeoutError:
            raise RetrieverFailure(f"{self._url} gave no answer within {self._deadline:g} s.") from None

    async def _send_waiting(self) -> None:
        """Sends what waits until nothing does, as much at once as a request may hold."""
        await asyncio.sleep(0)  # those that come in the same turn of the loop go along
        while self._waiting:
            k = next(iter(self._waiting))
            batch, rest = self._waiting[k][:MAX_BATCH], self._waiting[k][MAX_BATCH:]
            if rest:
                self._waiting[k] = rest
            else:
                del self._waiting[k]
            await self._answer(k, batch)

    async def _answer(self, k: int, batch: list[tuple[str, asyncio.Future[list[Passage]]]]) -> None:
        try:
            found = await self._retrieve([query for query, _ in batch], k)
        except RetrieverFailure as failure:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(failure)
            return
        for (_, answer), passages in zip(batch, found, strict=True):
            if not answer.done():
                answer.set_result(passages)

    async def _retrieve(self, queries: list[str], k: int) -> list[list[Passage]]:
        body = {"queries": queries, "topk": k, "return_scores": True}
        try:
            async for attempt in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception_type((_Overloaded, aiohttp.ClientConnectionError)),
                stop=tenacity.stop_before_delay(self._deadline),
                wait=_backoff,
                reraise=True,
            ):
                with attempt:
                    return self._read(await self._post(body), len(queries), k)
        except (_Overloaded, aiohttp.ClientError, TimeoutError) as error:
            raise RetrieverFailure(f"{self._url} cannot be asked: {error or type(error).__name__}") from error
        raise AssertionError("retrying ends with an answer or an error")

    async def _post(self, body: dict[str, Any]) -> bytes:
        if self._http is None:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._deadline))
        async with self._http.post(self._url, json=body) as response:
            if response.status in OVERLOADED:
                raise _Overloaded(f"it is overloaded (HTTP {response.status}).")
            if response.status != 200:
                raise RetrieverFailure(f"{self._url} answered with HTTP {response.status}.")
            return await response.read()

    def _read(self, answer: bytes, queries: int, k: int) -> list[list[Passage]]:
        try:
            found = _decoder.decode(answer).result
        except msgspec.DecodeError as error:
            raise RetrieverFailure(f"{self._url} answered in another form: {error}.") from error
        if len(found) != queries:
            raise RetrieverFailure(f"{self._url} answered {len(found)} of {queries} queries.")
        return [[split_contents(scored.document.contents) for scored in one[:k]] for one in found]

    def close(self) -> None:
        """Closes the connections."""
        if self._http is not None:
            background.run(self._http.close())
            self._http = None
