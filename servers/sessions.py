"""All sessions of a server: their names, leases and cap, and that each is played by one caller at a time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from gym_agents import protocol as wire
from gym_agents.errors import (
    ResetNeeded,
    ServerBusy,
    SessionClosed,
    SessionUnknown,
    TurnConflict,
    UsageError,
)
from gym_agents.scenario import make_options
from servers.attempt import Attempt, choose_item
from servers.world import World

T = TypeVar("T")

SHUTDOWN_GRACE = 1.0
"""Seconds that running steps may take to finish when the server stops."""


class Session:
    """One client's place: what it was opened for, and the attempt that is being played in it."""

    def __init__(self, world: World, call: wire.Create, now: float) -> None:
        self.call = call
        self.touched = now
        """When the lease was last renewed."""
        self.lock = asyncio.Lock()
        """Held while a thread plays; never taken for an inline world."""
        self._world = world
        self._options = make_options(world.scenario.options, call.options)
        self._episode = 0
        self._attempt: Attempt | None = None

    def answer(self, call: wire.Reset | wire.Step | wire.Look) -> wire.Answer:
        """Answers a call about the session's episode."""
        if isinstance(call, wire.Step):
            return self.attempt.step(call)
        if isinstance(call, wire.Reset):
            return self._reset(call)
        return self.attempt.look(call.question)

    @property
    def attempt(self) -> Attempt:
        """The attempt being played.

        Raises:
            ResetNeeded: if none has begun.
        """
        if self._attempt is None:
            raise ResetNeeded("The session holds no episode: reset first.")
        return self._attempt

    def _reset(self, call: wire.Reset) -> wire.Started:
        if self._attempt is not None and self._attempt.begun_by(call):
            return self._attempt.started
        if call.episode <= self._episode:
            raise TurnConflict(
                f"Episode {self._episode} has begun already; its number cannot be used for another reset."
            )
        item = choose_item(self._world, self.call.task, call)
        self.close()
        self._attempt = Attempt(self._world, self._options, call, item)
        self._episode = call.episode
        return self._attempt.started

    def close(self) -> None:
        """Closes the attempt, if there is one."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()


class Sessions:
    """Opens, plays and closes sessions on one world.

    An inline world is played on the event loop itself. Any other is played in threads: the calls of one
    session one after the other, in the order in which they came; those of different sessions at once.

    Args:
        world: what is played.
        lease: seconds for which a session lives without a call or a renewal.
        max_sessions: most sessions open at once; the world may have room for fewer.
        threads: most calls in play at once, for a world that is not inline.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        world: World,
        *,
        lease: float,
        max_sessions: int,
        threads: int = 64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.world = world
        self.lease = lease
        self.max_sessions = min(max_sessions, world.max_sessions or max_sessions)
        self._clock = clock
        self._open: dict[str, Session] = {}
        self._closed: dict[str, float] = {}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=world.scenario.name)
        self._running: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def answer_now(self, call: wire.Call) -> wire.Answer:
        """Answers a call to an inline world, at once."""
        if isinstance(call, wire.Create):
            return self._create(call)
        if isinstance(call, wire.Close):
            return self._close_now(call.session)
        session = self._find(call.session)
        with self._dropped_if_lost(session):
            return session.answer(call)

    async def answer(self, call: wire.Call) -> wire.Answer:
        """Answers a call to any world.

        Raises:
            AgentGymError: typed, for whatever could not be done.
        """
        if self.world.inline or isinstance(call, wire.Create):
            return self.answer_now(call)
        if isinstance(call, wire.Close):
            return await self._close(call.session)
        return await self._play(call.session, lambda session: session.answer(call))

    async def expert(self, name: str) -> wire.Advice:
        """The expert's next command in a session."""
        return await self._play(name, lambda session: session.attempt.expert())

    def renew(self, run: str) -> int:
        """Renews the leases of a run's sessions; returns how many there are."""
        sessions, now = self._of_run(run), self._clock()
        for session in sessions:
            session.touched = now
        return len(sessions)

    async def close_run(self, run: str) -> int:
        """Closes a run's sessions; returns how many there were."""
        sessions = self._of_run(run)
        await asyncio.gather(*(self._close(session.call.session) for session in sessions))
        return len(sessions)

    def sweep(self) -> None:
        """Drops the sessions whose lease ran out, and forgets the names that were closed a lease ago."""
        ended = self._clock() - self.lease
        for name, session in list(self._open.items()):
            if session.touched <= ended and not session.lock.locked():
                del self._open[name]
                self._dispose(session)
        self._closed = {name: when for name, when in self._closed.items() if when > ended}

    async def shut_down(self) -> None:
        """Closes every session and the world; steps that still run are given `SHUTDOWN_GRACE` seconds."""
        closing = [asyncio.create_task(self._close(name)) for name in self._open]
        if unfinished := {*closing, *self._running}:
            await asyncio.wait(unfinished, timeout=SHUTDOWN_GRACE)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.world.close()

    def _create(self, call: wire.Create) -> wire.Created:
        if call.session in self._closed:
            raise self._missing(call.session)
        known = self._open.get(call.session)
        if known is None:
            self._open_new(call)
        elif known.call != call:
            raise UsageError(f"Session {call.session!r} is open already, for another run, task or options.")
        else:
            known.touched = self._clock()
        return wire.Created(call.session)

    def _open_new(self, call: wire.Create) -> None:
        self.world.demand(call.task)
        session = Session(self.world, call, self._clock())
        self._make_room()
        self._open[call.session] = session

    def _make_room(self) -> None:
        if len(self._open) < self.max_sessions:
            return
        self.sweep()
        if len(self._open) >= self.max_sessions:
            oldest = min(session.touched for session in self._open.values())
            raise ServerBusy(
                f"All {self.max_sessions} sessions are taken.",
                retry_after=max(0.1, oldest + self.lease - self._clock()),
            )

    def _find(self, name: str) -> Session:
        session = self._open.get(name)
        if session is None:
            raise self._missing(name)
        session.touched = self._clock()
        return session

    def _missing(self, name: str) -> SessionClosed | SessionUnknown:
        if name in self._closed:
            return SessionClosed(f"Session {name!r} was closed.")
        return SessionUnknown(
            f"There is no session {name!r}: it was never opened here, "
            f"or its lease of {self.lease:g} s ran out."
        )

    def _of_run(self, run: str) -> list[Session]:
        return [session for session in self._open.values() if session.call.run == run]

    async def _play(self, name: str, play: Callable[[Session], T]) -> T:
        session = self._find(name)
        if self.world.inline:
            with self._dropped_if_lost(session):
                return play(session)
        return await self._undisturbed(self._in_thread(session, play))

    async def _in_thread(self, session: Session, play: Callable[[Session], T]) -> T:
        async with session.lock:
            self._find(session.call.session)  # it may have been closed while this call waited
            with self._dropped_if_lost(session):
                answer = await self._threaded(play, session)
            session.touched = self._clock()
            return answer

    @contextlib.contextmanager
    def _dropped_if_lost(self, session: Session) -> Iterator[None]:
        """Drops a session whose episode the world has lost, so that its client opens and replays it anew."""
        try:
            yield
        except SessionUnknown:
            del self._open[session.call.session]
            self._dispose(session)
            raise

    async def _undisturbed(self, work: Coroutine[Any, Any, T]) -> T:
        """Finishes the work even where the caller gives up: a session must not be played by two threads."""
        return await asyncio.shield(self._background(work))

    def _background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _threaded(self, play: Callable[[Session], T], session: Session) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, play, session)

    async def _close(self, name: str) -> wire.Closed:
        if self.world.inline or name in self._closed:
            return self._close_now(name)
        return await self._undisturbed(self._close_in_thread(name, self._find(name)))

    async def _close_in_thread(self, name: str, session: Session) -> wire.Closed:
        async with session.lock:
            if name not in self._closed:
                await self._threaded(Session.close, session)
                self._forget(name)
        return wire.Closed(name)

    def _close_now(self, name: str) -> wire.Closed:
        if name not in self._closed:
            self._find(name).close()
            self._forget(name)
        return wire.Closed(name)

    def _forget(self, name: str) -> None:
        del self._open[name]
        self._closed[name] = self._clock()

    def _dispose(self, session: Session) -> None:
        if self.world.inline:
            session.close()
        else:
            self._background(self._threaded(Session.close, session))
