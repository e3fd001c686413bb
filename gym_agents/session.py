"""The client's side of one session: where it lives and what has been played, enough to rebuild it."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from gym_agents.errors import ReplayMismatch, ResetNeeded
from gym_agents.protocol import Answer, Call, Close, Create, Question, Reset, Started, Step, Stepped
from gym_agents.protocol import Look as LookCall


class Session:
    """One session; its calls are made one after the other.

    It numbers its episodes and turns, so that a call can be sent again without playing twice, and it keeps
    the answers of the episode in play, so that a lost session can be replayed and checked.
    """

    def __init__(self, run: str, task: str | None, options: dict[str, Any], replica: int) -> None:
        self.id = secrets.token_hex(16)
        self.replica = replica
        self.opened = False
        """True once the server is known to hold it."""
        self._create = Create(self.id, run, task, options)
        self._episode = 0
        self._played: list[tuple[Reset | Step, Started | Stepped]] = []

    def reset(self, seed: int, item: int | None, split: str) -> Reset:
        """The call that starts the next episode."""
        self._episode += 1
        self._played.clear()
        return Reset(self.id, self._episode, seed, item, split)

    def step(self, reply: str) -> Step:
        """The call that plays the next turn."""
        if not self._played:
            raise ResetNeeded("The episode has not started: reset first.")
        return Step(self.id, self._episode, len(self._played), reply)

    def look(self, question: Question) -> LookCall:
        return LookCall(self.id, question)

    def close(self) -> Close:
        return Close(self.id)

    def preface(self) -> list[Call]:
        """What has to be sent before the next call: the session's creation, the first time."""
        return [] if self.opened else [self._create]

    def heard(self, call: Call, answer: Answer) -> None:
        """Keeps the answer of a reset or a step."""
        if isinstance(call, (Reset, Step)) and isinstance(answer, (Started, Stepped)):
            self._played.append((call, answer))

    def addressed(self, call: Call) -> Call:
        """The call under the session's present name."""
        return call if call.session == self.id else msgspec.structs.replace(call, session=self.id)

    def replay(self) -> list[Call]:
        """The calls that rebuild the session under a new name: a replica may still hold the old one."""
        self.id = secrets.token_hex(16)
        self._create = msgspec.structs.replace(self._create, session=self.id)
        return [self._create, *(self.addressed(self._named(call)) for call, _ in self._played)]

    def check_replay(self, answers: list[Answer]) -> None:
        """Compares what a replay answered with what was answered the first time.

        Raises:
            ReplayMismatch: at the first answer that differs.
        """
        seen = [answer for _, answer in self._played]
        for turn, (before, now) in enumerate(zip(seen, answers[1:], strict=True)):
            if before != now:
                raise ReplayMismatch(
                    f"Session {self.id} was replayed, and turn {turn} differs: first {before!r}, now {now!r}."
                )

    def _named(self, call: Reset | Step) -> Reset | Step:
        """A reset that names the item it once picked, since a split may be listed otherwise elsewhere."""
        if isinstance(call, Step):
            return call
        started = self._played[0][1]
        assert isinstance(started, Started)
        return msgspec.structs.replace(call, item=started.item)
