"""Worlds and an engine that do as a test tells them."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_agents.errors import AgentGymError, ReplyTooLong
from gym_agents.scenario import Command, Options, Scenario
from gym_agents.vector import Event
from tests.trainers.acting.templates import tokenizer
from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Completion, Request, Usage

LAYOUT = ChatLayout(tokenizer())
TOO_LONG = 200
"""Characters of a reply from which it is refused."""


@dataclass
class FakeWorlds:
    """A vector of worlds in which the episode of item n observes `n:turn` and ends at the reply `win` or `lose`.

    Answers arrive in a random order, a few at a time. `faults` maps an item to what its answers fail with: the
    first of its resets and steps with the first of the list, and so on; `None` fails nothing.
    """

    num_envs: int = 4
    arrivals: int = 0
    """Seed of the order in which answers arrive."""
    faults: dict[int, list[AgentGymError | None]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    """Items whose steps are answered last of all."""
    horizon: int | None = None

    def __post_init__(self) -> None:
        self.scenario = Scenario("fake", "Fake", lambda _: "Play.", lambda line, _: Command(line))
        self.options, self.numbering = Options(), "fake"
        self.rng = random.Random(self.arrivals)
        self.under_way: dict[int, Event] = {}
        self.items: dict[int, int] = {}
        self.turns: dict[int, int] = {}
        self.resets: list[tuple[int, int, str]] = []

    def set_horizon(self, limit: int | None) -> None:
        self.horizon = limit

    def send_reset(
        self, indices: Sequence[int], *, seeds: Sequence[int], items: Sequence[int], split: str
    ) -> None:
        for index, seed, item in zip(indices, seeds, items, strict=True):
            self.items[index], self.turns[index] = item, 0
            self.resets.append((item, seed, split))
            info = {"item_id": f"fake_{item}", "task": "Easy", "instruction": "Play.", "score": 0.0}
            self._answer(index, "reset", info)

    def send(self, indices: Sequence[int], replies: Sequence[str]) -> None:
        if any(len(reply) >= TOO_LONG for reply in replies):
            raise ReplyTooLong("The reply is too long.")
        for index, reply in zip(indices, replies, strict=True):
            self.turns[index] += 1
            won = reply == "win"
            info = {"score": float(won), "success": won, "valid": reply != "?", "command": reply}
            self._answer(index, "step", info, over=reply in ("win", "lose"))

    def _answer(self, index: int, kind: Any, info: dict[str, Any], over: bool = False) -> None:
        assert index not in self.under_way, "an index was sent to twice"
        faults = self.faults.get(self.items[index], [])
        error = faults.pop(0) if faults else None
        cut = not over and kind == "step" and self.turns[index] == self.horizon
        observation = "" if error else f"{self.items[index]}:{self.turns[index]}"
        score = 0.0 if error else info["score"]
        self.under_way[index] = Event(index, kind, observation, score, over, cut, info, error)

    def recv(self, timeout: float | None = None) -> list[Event]:
        assert self.under_way, "nothing was sent"
        indices = sorted(index for index in self.under_way if self.items[index] not in self.held)
        if not indices and timeout is not None:
            return []
        indices = indices or sorted(self.under_way)
        chosen = self.rng.sample(indices, self.rng.randint(1, len(indices)))
        return [self.under_way.pop(index) for index in chosen]


Script = Callable[[Request, int], Sequence[int]]
"""The ids that a request is answered with, given the number of requests of its conversation before it."""


def replies(*texts: str) -> Script:
    """Each conversation says these, one a turn, each with its end."""
    return lambda request, turn: LAYOUT.supervised(texts[turn])


class ScriptedEngine:
    """Answers from a script: the oldest request alone at each `collect`, so that others stay under way."""

    def __init__(self, script: Script, *, at_once: int = 1, max_context: int = 10_000) -> None:
        self.script = script
        self.at_once = at_once
        self.max_context = max_context
        self.usage = Usage()
        self.requests: list[Request] = []
        self.open: dict[Hashable, list[int]] = {}
        self.turns: dict[Hashable, int] = {}
        self.queue: list[Request] = []

    def submit(self, request: Request) -> None:
        assert request.conversation not in [waiting.conversation for waiting in self.queue]
        self.requests.append(request)
        self.queue.append(request)
        self.open.setdefault(request.conversation, []).extend(request.context_ids)

    def collect(self) -> list[Completion]:
        answered, self.queue = self.queue[: self.at_once], self.queue[self.at_once :]
        return [self._completion(request) for request in answered]

    def _completion(self, request: Request) -> Completion:
        name = request.conversation
        turn = self.turns[name] = self.turns.get(name, -1) + 1
        room = self.max_context - len(self.open[name])
        ids = tuple(self.script(request, turn))[: max(room, 0)]
        self.open[name] += ids
        stopped = bool(ids) and ids[-1] in request.stop_ids
        logprobs = tuple(-float(at) for at in range(len(ids)))
        return Completion(name, ids, logprobs, "stop" if stopped else "length", weight_version=7)

    def release(self, conversation: Hashable) -> None:
        self.open.pop(conversation, None)
        self.queue = [request for request in self.queue if request.conversation != conversation]

    def sync(self, weight_version: int) -> None:
        raise AssertionError("a rollout changes no weights")
