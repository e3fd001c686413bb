"""One attempt at one item, each turn played exactly once: first answers, scores, and whose fault it is."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gym_agents import protocol as wire
from gym_agents.errors import (
    AgentGymError,
    EmptySplit,
    ItemError,
    ReplyTooLong,
    ResetNeeded,
    TurnConflict,
    UsageError,
    WorldFailure,
)
from gym_agents.items import pick
from gym_agents.protocol import clean
from gym_agents.scenario import Invalid, Options, Scenario
from servers.plain import plain
from servers.world import Result, World

log = logging.getLogger(__name__)


class _WorldsFault:
    """`with` block around a world's code: whatever it raises becomes a `WorldFailure` with the first cause.

    Typed errors that the world raised on purpose pass as they are.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, AgentGymError):
            first = _first_cause(error)
            log.error("The world failed.\n%s", clean("".join(traceback.format_exception(error))))
            raise WorldFailure(f"The world failed: {type(first).__name__}: {first}{_place(first)}") from error


worlds_fault = _WorldsFault()


def _first_cause(error: BaseException) -> BaseException:
    """The end of the chain of causes; an error may name itself as its own cause."""
    chain: list[BaseException] = []
    earlier: BaseException | None = error
    while earlier is not None and earlier not in chain:
        chain.append(earlier)
        earlier = earlier.__cause__ or (None if earlier.__suppress_context__ else earlier.__context__)
    return chain[-1]


def _place(error: BaseException) -> str:
    """Where it was raised: ` (countdown.py, line 12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def choose_item(world: World, task: str | None, call: wire.Reset) -> int:
    """The item that a reset names or, where it names none, the one that its seed picks.

    Raises:
        ItemError: if the named item is not of the task.
        EmptySplit: if there is none to pick from.
    """
    if call.seed < 0:
        raise UsageError(f"The seed is {call.seed}, but must not be negative.")
    if call.item is not None:
        return _named_item(world, task, call.item)
    items = list_items(world, task, call.split)
    if not items:
        raise EmptySplit(f"{_title(world, task)} has no items in the split {call.split!r}.")
    return pick(items, call.seed)


def list_items(world: World, task: str | None, split: str) -> tuple[int, ...]:
    """The items of a task and split, in order.

    Raises:
        UnknownTask: there is no such task.
        ItemError: there is no such split.
    """
    world.demand(task, split)
    with worlds_fault:
        return tuple(world.items(task, split))


def _named_item(world: World, task: str | None, item: int) -> int:
    with worlds_fault:
        task_of_item = world.task_of(item)
    if task not in (None, task_of_item):
        raise ItemError(f"Item {item} is not of {_title(world, task)}: it is of {task_of_item or 'no task'}.")
    return item


def _title(world: World, task: str | None) -> str:
    return f"{world.scenario.title}-{task}" if task else world.scenario.title


class Attempt:
    """A world's `Episode` and what has been answered about it.

    Raises:
        WorldFailure: if the world could not start it.
    """

    def __init__(self, world: World, options: Options, call: wire.Reset, item: int) -> None:
        self.call = call
        self._scenario = world.scenario
        self._options = options
        self._turn = 0
        self._reply: str | None = None
        self._first_answer: wire.Stepped | AgentGymError | None = None
        self._score = 0.0
        """What has been paid out so far: the sum of the rewards."""
        self._over = False
        with worlds_fault:
            self._episode = world.start(item, call.seed, options)
        try:
            with worlds_fault:
                self.started = self._start(item, world.task_of(item))
        except AgentGymError:
            self.close()
            raise

    def _start(self, item: int, task: str | None) -> wire.Started:
        self._text = _shown(self._episode.observation, self._scenario)
        return wire.Started(
            item=item,
            task=task,
            instruction=self._scenario.instruction(self._options),
            observation=self._text,
            info=_facts(self._episode.info),
        )

    def begun_by(self, call: wire.Reset) -> bool:
        """Whether the call asks for this very attempt; it may name the item that the seed had picked."""
        first = self.call
        same = (call.episode, call.seed, call.split) == (first.episode, first.seed, first.split)
        return same and call.item in (first.item, self.started.item)

    def step(self, call: wire.Step) -> wire.Stepped:
        """Plays the next turn, or answers the last one again.

        Raises:
            TurnConflict: for any other turn, and for the last one with another reply; nothing changes.
            ResetNeeded: after the end.
            ReplyTooLong: the turn is not spent.
            WorldFailure: the world broke; the attempt is over.
        """
        if call.turn != self._turn + 1 or call.episode != self.call.episode:
            return self._again(call)
        if self._over:
            raise ResetNeeded("The episode is over: reset before the next step.")
        _check_length(call.reply)
        self._turn, self._reply = call.turn, call.reply
        try:
            with worlds_fault:
                answer = self._play(call.reply)
        except AgentGymError as error:
            self._over, self._first_answer = True, error
            raise
        self._first_answer = answer
        return answer

    def _again(self, call: wire.Step) -> wire.Stepped:
        if call.episode != self.call.episode:
            raise TurnConflict(
                f"Episode {self.call.episode} is being played, not episode {call.episode}: nothing was done."
            )
        if call.turn != self._turn or call.reply != self._reply or self._first_answer is None:
            other = " with another reply" if call.turn == self._turn else ""
            raise TurnConflict(
                f"Turn {self._turn} was the last one played, and turn {call.turn} came{other}: "
                "nothing was done."
            )
        if isinstance(self._first_answer, AgentGymError):
            raise self._first_answer.with_traceback(None)
        return self._first_answer

    def _play(self, reply: str) -> wire.Stepped:
        command = self._scenario.parse(reply, self._options)
        if isinstance(command, Invalid):
            return self._refused(command.reason)
        result = self._episode.step(command.text)
        _check(result)
        before, self._score = self._score, float(result.score)
        self._over = bool(result.terminated) or result.truncation is not None
        self._text = _shown(result.observation, self._scenario)
        return wire.Stepped(
            observation=self._text,
            reward=self._score - before,
            score=self._score,
            terminated=bool(result.terminated),
            truncated=result.truncation is not None,
            success=bool(result.success),
            valid=bool(result.valid),
            command=clean(command.text),
            info=_step_info(result),
        )

    def _refused(self, reason: str) -> wire.Stepped:
        """An invalid reply: the turn is spent, nothing is earned, the world is untouched."""
        self._text = _shown(reason, self._scenario)
        return wire.Stepped(
            observation=self._text,
            reward=0.0,
            score=self._score,
            terminated=False,
            truncated=False,
            success=False,
            valid=False,
            command=None,
            info={},
        )

    def look(self, question: wire.Question) -> wire.Looked:
        """Answers a read-only question."""
        with worlds_fault:
            match question:
                case "actions":
                    return wire.Looked(plain(self._episode.actions()))
                case "view":
                    return wire.Looked(plain(self._episode.view()))
                case "picture":
                    return wire.Looked(base64.b64encode(self._episode.picture()).decode("ascii"))
                case "text":
                    return wire.Looked(self._text)

    def expert(self) -> wire.Advice:
        """The expert's next command."""
        with worlds_fault:
            return wire.Advice(clean(self._episode.expert()))

    def close(self) -> None:
        """Closes the world's episode; the owner calls it once. A failure is logged: nobody can act on it."""
        try:
            self._episode.close()
        except Exception:
            log.exception("Closing an episode of %s failed.", self._scenario.title)


def _shown(observation: Any, scenario: Scenario) -> str:
    """The observation as every client sees it: well-formed, and cut at the scenario's limit."""
    if not isinstance(observation, str):
        raise WorldFailure(f"The observation is {observation!r}, not a text.")
    return scenario.cut(clean(observation))


def _check(result: Result) -> None:
    if not 0.0 <= result.score <= 1.0:  # false for NaN too
        raise WorldFailure(f"The score is {result.score}, not a number within [0, 1].")
    if result.success and not result.terminated:
        raise WorldFailure("The world calls it a success, but has not terminated the episode.")


def _facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """A world's own info, as plain data."""
    if taken := sorted(wire.RESERVED_INFO & info.keys()):
        raise WorldFailure(f"The world's info names {', '.join(taken)}, which every info has of its own.")
    facts: dict[str, Any] = plain(info)
    return facts


def _step_info(result: Result) -> dict[str, Any]:
    info = _facts(result.info) if result.info else {}
    if result.truncation is not None:
        info["truncation"] = clean(result.truncation)
    return info


def _check_length(reply: str) -> None:
    if len(reply) * 4 > wire.MAX_REPLY_BYTES and len(reply.encode()) > wire.MAX_REPLY_BYTES:
        raise ReplyTooLong(f"The reply is over {wire.MAX_REPLY_BYTES} bytes of UTF-8; the turn is not spent.")
