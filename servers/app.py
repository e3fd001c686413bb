"""The HTTP application of one world: routes, limits, tokens, and typed errors under their status codes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gym_agents import protocol as wire
from gym_agents.errors import AgentGymError, BodyTooLarge, NotOffered, Unauthorized, UsageError
from servers.attempt import list_items
from servers.metrics import Metrics
from servers.sessions import Sessions
from servers.world import World

T = TypeVar("T")

JSON = "application/json"
JSON_LINES = "application/jsonl"
MAX_SMALL_BYTES = 4096
"""Bodies that name a run or a session."""

_encoder = msgspec.json.Encoder()
_call = msgspec.json.Decoder(wire.Call)
_calls = msgspec.json.Decoder(list[wire.Call])
_raw_calls = msgspec.json.Decoder(list[msgspec.Raw])
_run = msgspec.json.Decoder(wire.Run)
_expert = msgspec.json.Decoder(wire.Expert)


def create_app(
    world: World,
    *,
    token: str | None = None,
    expert_token: str | None = None,
    lease: float = 60.0,
    max_sessions: int = 4096,
    threads: int = 64,
) -> Starlette:
    """The application that serves a world.

    Args:
        world: what is served; it is closed with the application.
        token: what every route but `/healthz` wants as `Authorization: Bearer <token>`.
        expert_token: what `/v1/expert` wants instead; without it, that route does not exist.
        lease: seconds for which a session lives without a call or a renewal.
        max_sessions: most sessions open at once; the world may have room for fewer.
        threads: most calls in play at once, for a world that is not inline.
    """
    sessions = Sessions(world, lease=lease, max_sessions=max_sessions, threads=threads)
    api = Api(sessions)
    routes = [
        Route(wire.HELLO, api.hello),
        Route(wire.ITEMS, api.items),
        Route(wire.CALL, api.call, methods=["POST"]),
        Route(wire.BATCH, api.batch, methods=["POST"]),
        Route(wire.RENEW, api.renew, methods=["POST"]),
        Route(wire.CLOSE_RUN, api.close_run, methods=["POST"]),
        Route(wire.HEALTH, api.health),
        Route(wire.METRICS, api.metrics_text),
    ]
    if expert_token is not None:
        routes.append(Route(wire.EXPERT, api.expert, methods=["POST"]))
    return Starlette(
        routes=routes,
        middleware=[Middleware(TokenGate, token=token, expert_token=expert_token)],
        exception_handlers={
            AgentGymError: api.refuse,
            HTTPException: api.refuse_route,
            ClientDisconnect: api.refuse_broken_body,
            Exception: api.refuse_for_a_bug,
        },
        lifespan=lambda app: _sweeping(sessions),
    )


@contextlib.asynccontextmanager
async def _sweeping(sessions: Sessions) -> AsyncIterator[None]:
    sweeper = asyncio.create_task(_sweep(sessions))
    try:
        yield
    finally:
        sweeper.cancel()
        await sessions.shut_down()


async def _sweep(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(max(0.2, sessions.lease / 4))
        sessions.sweep()


class Api:
    """The handlers of the routes."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._world = world = sessions.world
        self._metrics = Metrics(sessions.__len__)
        self._hello = wire.Hello(
            version=wire.VERSION,
            scenario=world.scenario.name,
            numbering=world.numbering,
            backend=world.backend,
            tasks=tuple(world.tasks),
            replays=world.replays,
            lease=sessions.lease,
            max_sessions=sessions.max_sessions,
            server=secrets.token_hex(8),
        )

    async def hello(self, request: Request) -> Response:
        """What is served, and by what."""
        return _reply(self._hello)

    async def items(self, request: Request) -> Response:
        """The items of `?task=&split=`; no task is the whole scenario."""
        task, split = request.query_params.get("task") or None, request.query_params.get("split", "train")
        return _reply(wire.Items(self._world.numbering, list_items(self._world, task, split)))

    async def call(self, request: Request) -> Response:
        """One call."""
        call = _decode(_call, await read_body(request, wire.MAX_CALL_BYTES))
        with self._metrics.call_seconds.time():
            answer = await self._sessions.answer(call)
        self._metrics.count((answer,))
        return _reply(answer)

    async def batch(self, request: Request) -> Response:
        """Many calls; a line each, in the order in which they finish."""
        calls = decode_calls(await read_body(request, wire.MAX_BATCH_BYTES))
        if not self._world.inline:
            return StreamingResponse(self._lines(calls), media_type=JSON_LINES)
        with self._metrics.batch_seconds.time():
            answers = [self._answer_now(call) for call in calls]
            self._metrics.count(answers)
            lines = [wire.Line(at, answer) for at, answer in enumerate(answers)]
            return Response(_encoder.encode_lines(lines), media_type=JSON_LINES)

    def _answer_now(self, call: wire.Call | wire.Failed) -> wire.Answer:
        if isinstance(call, wire.Failed):
            return call
        try:
            return self._sessions.answer_now(call)
        except AgentGymError as error:
            return failed(error)

    async def _lines(self, calls: Sequence[wire.Call | wire.Failed]) -> AsyncIterator[bytes]:
        """Starts every call; those of one session wait for each other at its lock, in their order."""
        with self._metrics.batch_seconds.time():
            tasks = [asyncio.create_task(self._line(at, call)) for at, call in enumerate(calls)]
            for task in asyncio.as_completed(tasks):
                line = await task
                self._metrics.count((line.answer,))
                yield _encoder.encode_lines((line,))

    async def _line(self, at: int, call: wire.Call | wire.Failed) -> wire.Line:
        if isinstance(call, wire.Failed):
            return wire.Line(at, call)
        try:
            return wire.Line(at, await self._sessions.answer(call))
        except AgentGymError as error:
            return wire.Line(at, failed(error))

    async def renew(self, request: Request) -> Response:
        """Renews the leases of a run's sessions."""
        run = _decode(_run, await read_body(request, MAX_SMALL_BYTES)).run
        return _reply(wire.Sessions(self._sessions.renew(run)))

    async def close_run(self, request: Request) -> Response:
        """Closes a run's sessions."""
        run = _decode(_run, await read_body(request, MAX_SMALL_BYTES)).run
        return _reply(wire.Sessions(await self._sessions.close_run(run)))

    async def expert(self, request: Request) -> Response:
        """The expert's next command."""
        session = _decode(_expert, await read_body(request, MAX_SMALL_BYTES)).session
        return _reply(await self._sessions.expert(session))

    async def health(self, request: Request) -> Response:
        """Whether the process answers."""
        return PlainTextResponse("ok")

    async def metrics_text(self, request: Request) -> Response:
        """What was counted."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def refuse(self, request: Request, error: Exception) -> Response:
        """A typed error, under its status."""
        assert isinstance(error, AgentGymError)
        answer = failed(error)
        self._metrics.count((answer,))
        return _refusal(answer, error.status)

    async def refuse_route(self, request: Request, error: Exception) -> Response:
        """An unknown route, or a known one with another method."""
        assert isinstance(error, HTTPException)
        kind = NotOffered if error.status_code == NotOffered.status else UsageError
        message = f"{request.method} {request.url.path}: {error.detail}."
        return _refusal(failed(kind(message)), error.status_code)

    async def refuse_broken_body(self, request: Request, error: Exception) -> Response:
        """A client that left before its request was whole; nobody reads this answer."""
        return _refusal(failed(UsageError("The request broke off.")), UsageError.status)

    async def refuse_for_a_bug(self, request: Request, error: Exception) -> Response:
        """A mistake of this server's own; it is logged with its traceback."""
        answer = failed(AgentGymError(f"The server itself failed: {type(error).__name__}: {error}"))
        self._metrics.count((answer,))
        return _refusal(answer, AgentGymError.status)


class TokenGate:
    """Lets a request pass that shows the token which its route wants."""

    def __init__(self, app: ASGIApp, token: str | None, expert_token: str | None) -> None:
        self._app = app
        self._token = token
        self._exceptions = {wire.HEALTH: None, wire.EXPERT: expert_token or token}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 instead of the application where the token is missing or another."""
        app = self._app if scope["type"] != "http" or self._opens(scope) else _unauthorized()
        await app(scope, receive, send)

    def _opens(self, scope: Scope) -> bool:
        wanted = self._exceptions.get(scope["path"], self._token)
        if wanted is None:
            return True
        shown = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(shown, f"Bearer {wanted}".encode())


def _unauthorized() -> Response:
    error = Unauthorized("This server wants a token that the request did not show.")
    return _refusal(failed(error), error.status, {"WWW-Authenticate": "Bearer"})


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body.

    Raises:
        BodyTooLarge: as soon as it is known to be over `limit` bytes; the rest is not read.
    """
    too_large = BodyTooLarge(f"The body is over the limit of {limit} bytes.")
    if int(request.headers.get("content-length", 0)) > limit:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)


def decode_calls(body: bytes) -> Sequence[wire.Call | wire.Failed]:
    """The calls of a batch; one that does not fit the protocol fails alone.

    Raises:
        UsageError: if the body is no JSON array.
        BodyTooLarge: if it holds more than `MAX_BATCH_CALLS`.
    """
    raw_calls = _decode(_raw_calls, body)
    if len(raw_calls) > wire.MAX_BATCH_CALLS:
        raise BodyTooLarge(f"A batch holds {len(raw_calls)} calls; the limit is {wire.MAX_BATCH_CALLS}.")
    try:
        return _calls.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return [_decode_or_fail(raw) for raw in raw_calls]


def _decode_or_fail(raw: msgspec.Raw) -> wire.Call | wire.Failed:
    try:
        return _decode(_call, bytes(raw))
    except UsageError as error:
        return failed(error)


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"The body does not fit the protocol: {error}.") from error


def failed(error: AgentGymError) -> wire.Failed:
    """The error, as it travels."""
    return wire.Failed(error.code, wire.clean(error.message), error.retry_after)


def _reply(message: msgspec.Struct) -> Response:
    return Response(_encoder.encode(message), media_type=JSON)


def _refusal(answer: wire.Failed, status: int, headers: dict[str, str] | None = None) -> Response:
    headers = headers or {}
    if answer.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(answer.retry_after))
    return Response(_encoder.encode(answer), status, headers, JSON)
