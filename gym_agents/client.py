"""The asynchronous client: many sessions on one server or on several replicas of it.

The fast path sends one batch a replica and hands over answers as they come. A call that it could not
settle goes the slow way: it is sent again, waits while the server is busy, or has its session rebuilt on a
living replica, until it is answered or its deadline ends. Nothing waits without a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import tenacity

from gym_agents.errors import (
    AgentGymError,
    DeadlineExceeded,
    EnvironmentFailure,
    ReplyTooLong,
    ServerBusy,
    ServerUnreachable,
    SessionUnknown,
    UsageError,
    VersionMismatch,
    from_code,
)
from gym_agents.launcher import LocalServer
from gym_agents.protocol import (
    MAX_BATCH_BYTES,
    MAX_REPLY_BYTES,
    VERSION,
    Answer,
    Call,
    Failed,
    Hello,
    Step,
    clean,
)
from gym_agents.replica import CONNECT_DEADLINE, Replica
from gym_agents.session import Session

ATTEMPTS_BEFORE_MOVING = 3
"""Failed attempts at a replica before its sessions move to the next one."""
LONGEST_PAUSE = 5.0
"""Most seconds between two attempts at a busy server: there may be room before it expects some."""


class Job(NamedTuple):
    """A call, and the session that it belongs to."""

    session: Session
    call: Call


T = TypeVar("T")
Deliver = Callable[[Job, Answer | AgentGymError], None]


class Client:
    """All sessions that this process plays on a set of replicas; they are one run."""

    def __init__(
        self, scenario: str, servers: Sequence[str | LocalServer], *, token: str | None, deadline: float
    ) -> None:
        self.scenario = scenario
        self.run = secrets.token_hex(8)
        self.deadline = deadline
        """Seconds that any one call may take, resending and recovery included."""
        self._replicas = [Replica(server, token) for server in servers]
        self._hello: Hello | None = None
        self._greeting = asyncio.Lock()
        self._opened = 0
        self._renewal: asyncio.Task[None] | None = None
        self._owner = os.getpid()

    @property
    def _is_ours(self) -> bool:
        """False in a forked child, whose copy would speak over its parent's connections."""
        return os.getpid() == self._owner

    def open(self, task: str | None, options: dict[str, object]) -> Session:
        """A new session, on the next replica in turn; nothing is sent yet."""
        self._opened += 1
        return Session(self.run, task, options, self._opened % len(self._replicas))

    async def hello(self) -> Hello:
        """The handshake with every replica, once.

        Raises:
            UsageError: in a forked child; the connections are its parent's.
            ServerUnreachable: if one does not answer within `CONNECT_DEADLINE`, or the deadline where that is
                sooner (a local one: once started).
            VersionMismatch: if one speaks another version or serves something else than the others.
        """
        if not self._is_ours:
            raise UsageError("This environment was made before the process forked: make the child its own.")
        async with self._greeting:
            if self._hello is None:
                greetings = await asyncio.gather(*(self._greet(replica) for replica in self._replicas))
                odd = [hello for hello in greetings if hello.backend != greetings[0].backend]
                if odd:
                    raise VersionMismatch(
                        f"Replicas of {greetings[0].backend!r} and {odd[0].backend!r} cannot share a run."
                    )
                self._hello = greetings[0]
                self._renewal = asyncio.create_task(self._renew(self._hello.lease / 3))
            return self._hello

    async def items(self, task: str | None, split: str) -> tuple[int, ...]:
        """The items of a split."""
        await self.hello()
        return await self._in_time(self._replicas[0].items(task, split))

    async def expert(self, session: Session) -> str:
        """The expert's next command, from a server that plays one."""
        await self.hello()
        return await self._in_time(self._replicas[session.replica].expert(session.id))

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.deadline):
                return await answer
        except TimeoutError as error:
            raise DeadlineExceeded(f"No answer within {self.deadline:g} s.") from error

    async def play(self, jobs: Sequence[Job], deliver: Deliver) -> None:
        """Sends the jobs, at most one a session, and hands each its answer or its error, as they come."""
        try:
            await self.hello()
        except AgentGymError as error:
            for job in jobs:
                deliver(job, error)
            return
        parts = [part for replica in range(len(self._replicas)) for part in self._parts(jobs, replica)]
        await asyncio.gather(*(self._play_part(part, deliver) for part in parts))

    async def ask(self, job: Job) -> Answer:
        """Plays one job; raises its error."""
        heard: list[Answer | AgentGymError] = []
        await self.play([job], lambda _, answer: heard.append(answer))
        if isinstance(heard[0], AgentGymError):
            raise heard[0]
        return heard[0]

    async def leave(self, sessions: Iterable[Session]) -> None:
        """Closes sessions as far as their servers can be reached; their leases do the rest."""
        for replica, peer in enumerate(self._replicas):
            calls = [session.close() for session in sessions if session.replica == replica and session.opened]
            if calls and peer.running and self._is_ours:
                with contextlib.suppress(AgentGymError, TimeoutError):
                    async with asyncio.timeout(2):
                        async for _ in peer.batch(calls):
                            pass

    async def close(self) -> None:
        """Closes the run's sessions on every replica, and the connections."""
        if self._renewal is not None:
            self._renewal.cancel()
        for replica in self._replicas:
            if self._hello is not None and replica.running:
                with contextlib.suppress(AgentGymError, TimeoutError):
                    async with asyncio.timeout(1):
                        await replica.close_run(self.run)
            await replica.close()

    async def _greet(self, replica: Replica) -> Hello:
        address = await replica.url("")
        patience = min(CONNECT_DEADLINE, self.deadline)
        try:
            async with asyncio.timeout(patience):
                hello = await replica.hello()
        except TimeoutError as error:
            raise ServerUnreachable(f"{address} did not answer within {patience:g} s.") from error
        if hello.version != VERSION:
            raise VersionMismatch(
                f"{address} speaks version {hello.version} of the wire, we speak {VERSION}."
            )
        if hello.scenario != self.scenario:
            raise VersionMismatch(f"{address} serves {hello.scenario!r}, not {self.scenario!r}.")
        return hello

    async def _renew(self, every: float) -> None:
        """Keeps the run's sessions alive while the process does something else."""
        while True:
            await asyncio.sleep(every)
            for replica in self._replicas:
                with contextlib.suppress(AgentGymError, TimeoutError):  # the next call will find out
                    async with asyncio.timeout(every):
                        await replica.renew(self.run)

    def _parts(self, jobs: Sequence[Job], replica: int) -> list[list[Job]]:
        """The jobs of one replica, split where a body would grow over the server's limit."""
        parts: list[list[Job]] = []
        room = 0
        for job in jobs:
            if job.session.replica != replica:
                continue
            size = 1024 + (6 * len(job.call.reply) if isinstance(job.call, Step) else 0)
            if size > room:
                parts.append([])
                room = MAX_BATCH_BYTES
            parts[-1].append(job)
            room -= size
        return parts

    async def _play_part(self, jobs: list[Job], deliver: Deliver) -> None:
        """The fast path, then the slow one for whatever it left."""
        unsettled = dict(enumerate(jobs))
        ends = asyncio.get_running_loop().time() + self.deadline
        try:
            async with asyncio.timeout_at(ends):
                with contextlib.suppress(ServerUnreachable):
                    async for at, answer in self._exchange(jobs):
                        if not self._wants_care(jobs[at], answer):
                            self._settle(unsettled.pop(at), answer, deliver)
        except TimeoutError:
            pass
        except AgentGymError as error:
            for job in unsettled.values():
                deliver(job, error)
            return
        await asyncio.gather(*(self._nurse(job, ends, deliver) for job in unsettled.values()))

    async def _exchange(self, jobs: list[Job]) -> AsyncIterator[tuple[int, Answer]]:
        """One batch on one replica: (job, answer) pairs; answers to prefaces are taken in passing."""
        calls: list[Call] = []
        owners: list[int | None] = []
        for at, job in enumerate(jobs):
            preface = job.session.preface()
            calls += [*preface, job.session.addressed(job.call)]
            owners += [*(None for _ in preface), at]
        async for lines in self._replicas[jobs[0].session.replica].batch(calls):
            for line in lines:
                at_job = owners[line.at]
                if at_job is not None:
                    yield at_job, line.answer

    async def _nurse(self, job: Job, ends: float, deliver: Deliver) -> None:
        """The slow path of one job: resends, waits, recovers, until it is answered or the deadline ends."""
        cause: AgentGymError | None = None
        try:
            async with asyncio.timeout_at(ends):
                async for attempt in tenacity.AsyncRetrying(
                    retry=tenacity.retry_if_exception_type((ServerUnreachable, ServerBusy, SessionUnknown)),
                    wait=_pause,
                    before_sleep=self._move_after_failures(job),
                ):
                    with attempt:
                        try:
                            answer = await self._attempt(job)
                        except AgentGymError as error:
                            cause = error
                            raise
        except TimeoutError:
            why = f" Last seen: {cause}" if cause else ""
            deliver(job, DeadlineExceeded(f"No answer within {self.deadline:g} s.{why}"))
        except AgentGymError as error:
            deliver(job, error)
        else:
            self._settle(job, answer, deliver)

    async def _attempt(self, job: Job) -> Answer:
        if not job.session.opened:
            await self._rebuild(job.session)
        answers = [answer async for _, answer in self._exchange([job])]
        if not answers:
            raise ServerUnreachable("The server ended its answer before this call's turn.")
        if self._wants_care(job, answers[0]):
            raise _error(answers[0])
        return answers[0]

    async def _rebuild(self, session: Session) -> None:
        """Creates the session, and replays its episode as far as it was played."""
        calls = session.replay()
        if len(calls) > 1 and not (await self.hello()).replays:
            raise EnvironmentFailure(
                f"The session was lost, and {self.scenario} cannot be replayed: reset to go on."
            )
        answers: dict[int, Answer] = {}
        async for lines in self._replicas[session.replica].batch(calls):
            answers |= {line.at: line.answer for line in lines}
        if len(answers) < len(calls):
            raise ServerUnreachable("The server broke off while a session was replayed.")
        in_order = [answers[at] for at in range(len(calls))]
        for answer in in_order:
            if isinstance(answer, Failed):
                raise _error(answer)
        session.check_replay(in_order)
        session.opened = True

    def _move_after_failures(self, job: Job) -> Callable[[tenacity.RetryCallState], None]:
        """After a few failed attempts the session goes to the next replica and is rebuilt there."""

        def move(state: tenacity.RetryCallState) -> None:
            assert state.outcome is not None
            unreachable = isinstance(state.outcome.exception(), ServerUnreachable)
            if unreachable and state.attempt_number % ATTEMPTS_BEFORE_MOVING == 0 and len(self._replicas) > 1:
                job.session.replica = (job.session.replica + 1) % len(self._replicas)
                job.session.opened = False

        return move

    @staticmethod
    def _wants_care(job: Job, answer: Answer) -> bool:
        """True for what the slow path mends: a busy server, and a session that it does not hold."""
        if not isinstance(answer, Failed):
            return False
        if answer.code == SessionUnknown.code:
            job.session.opened = False
        return answer.code in (ServerBusy.code, SessionUnknown.code)

    def _settle(self, job: Job, answer: Answer, deliver: Deliver) -> None:
        job.session.opened = True
        if isinstance(answer, Failed):
            deliver(job, _error(answer))
        else:
            job.session.heard(job.call, answer)
            deliver(job, answer)


def checked_reply(reply: str) -> str:
    """The reply as it can travel.

    Raises:
        TypeError: if it is no text.
        ReplyTooLong: if it is over `MAX_REPLY_BYTES`; nothing was sent, and the turn is not spent.
    """
    if not isinstance(reply, str):
        raise TypeError(f"The action is the agent's reply, a str, not {type(reply).__name__}.")
    text = clean(str(reply))  # NumPy's texts are subclasses, which the wire does not know
    size = len(text) if text.isascii() else len(text.encode())
    if size > MAX_REPLY_BYTES:
        raise ReplyTooLong(f"The reply has {size} bytes; the limit is {MAX_REPLY_BYTES}.")
    return text


def _error(answer: Answer) -> AgentGymError:
    assert isinstance(answer, Failed)
    return from_code(answer.code, answer.message, answer.retry_after)


_backoff = tenacity.wait_exponential(multiplier=0.05, max=2.0)


def _pause(state: tenacity.RetryCallState) -> float:
    """As long as a busy server asks for, within limits; else an exponential back-off."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, ServerBusy) and error.retry_after is not None:
        return min(error.retry_after, LONGEST_PAUSE)
    return 0.0 if isinstance(error, SessionUnknown) else _backoff(state)
