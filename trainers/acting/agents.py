"""Agents: what the policy sees next, and which part of what it says goes to the world."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, NoReturn, Protocol

from trainers.acting.engines.base import Completion
from trainers.config import AgentConfig

ASK_FOR_PLAN = "Do not act yet. First write a plan of a few short lines: what has to be reached, and through which steps."
ASK_FOR_REFLECTION = (
    "Do not act yet. First say in one or two sentences what this outcome tells you: did your last action do "
    "what you meant it to, and what should be different now?"
)
ASK_FOR_ACT = "Now give your next reply, in the form that was asked for at the beginning."


@dataclass(frozen=True)
class Prompt:
    """Asks the policy to go on from here; the `Completion` is sent back."""

    context_ids: tuple[int, ...]
    """Ids to append before sampling."""
    fresh: bool = False
    """Begins a new context instead of extending the one before."""
    part: str = "act"
    """What it is for: `act`, `plan`, `reflect`."""


@dataclass(frozen=True)
class Reply:
    """Tells the world something; its next observation is sent back."""

    text: str


Play = Generator[Prompt | Reply, Any, NoReturn]
"""One episode of an agent: it yields prompts and replies in any order, and never ends by itself."""


class Layout(Protocol):
    """How a conversation is laid out in ids; `ChatLayout` is one, for a tokenizer that is at hand."""

    stop_ids: frozenset[int]
    """A sampled id of this set ends a reply."""

    def opening(self, instruction: str, observation: str) -> tuple[int, ...]:
        """Ids up to where the first reply begins."""
        ...

    def following(self, observation: str, *, ended: bool) -> tuple[int, ...]:
        """Ids from where a reply stopped, its end sampled or not, to where the next one begins."""
        ...

    def decode(self, sampled_ids: Sequence[int]) -> str:
        """The text of a reply, without its end."""
        ...


class Agent(Protocol):
    """Plays episodes, each a generator, so that any number of prompts may precede a reply."""

    stop_ids: frozenset[int]
    """A sampled id of this set ends a generation."""

    def play(self, instruction: str, observation: str) -> Play:
        """Starts an episode at the scenario's instruction and the world's first observation."""
        ...


class _Conversing:
    """What all agents here have: the layout of their conversations."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.stop_ids = layout.stop_ids


class ReActAgent(_Conversing):
    """The whole conversation is seen, each observation is appended to it, and all that is said goes to the world."""

    def play(self, instruction: str, observation: str) -> Play:
        context_ids = self._layout.opening(instruction, observation)
        while True:
            said: Completion = yield Prompt(context_ids)
            observation = yield Reply(self._layout.decode(said.sampled_ids))
            context_ids = self._layout.following(observation, ended=said.finish == "stop")


class PlanningAgent(_Conversing):
    """Writes a plan at the first observation, and then acts as `ReActAgent` does, with the plan before its eyes."""

    def play(self, instruction: str, observation: str) -> Play:
        asked = _asking(observation, ASK_FOR_PLAN)
        said: Completion = yield Prompt(self._layout.opening(instruction, asked), part="plan")
        heard = ASK_FOR_ACT
        while True:
            said = yield Prompt(self._layout.following(heard, ended=said.finish == "stop"))
            heard = yield Reply(self._layout.decode(said.sampled_ids))


class ReflectingAgent(_Conversing):
    """Says, after each outcome, a word on it for itself alone; then it replies."""

    def play(self, instruction: str, observation: str) -> Play:
        said: Completion = yield Prompt(self._layout.opening(instruction, observation))
        while True:
            observation = yield Reply(self._layout.decode(said.sampled_ids))
            asked = _asking(observation, ASK_FOR_REFLECTION)
            said = yield Prompt(self._layout.following(asked, ended=said.finish == "stop"), part="reflect")
            said = yield Prompt(self._layout.following(ASK_FOR_ACT, ended=said.finish == "stop"))


class _Seen(NamedTuple):
    """A turn that a window holds."""

    observation: str
    said: Completion


class WindowAgent(_Conversing):
    """Sees the first observation and the latest turns, so that an episode may be longer than the context.

    A window grows as the conversation of a `ReActAgent` does. Once it holds `window` turns, a new one begins:
    with the instruction, the first observation (which holds the task) and the last half of those turns, their
    replies in the ids in which they were sampled. These are context there: each sampled token is trained once.
    """

    def __init__(self, layout: Layout, window: int) -> None:
        super().__init__(layout)
        self._window = window

    def play(self, instruction: str, observation: str) -> Play:
        first, number, seen = observation, 0, list[_Seen]()
        prompt = Prompt(self._layout.opening(instruction, observation))
        while True:
            said: Completion = yield prompt
            seen.append(_Seen(observation, said))
            observation = yield Reply(self._layout.decode(said.sampled_ids))
            number += 1
            if len(seen) < self._window:
                prompt = Prompt(self._layout.following(observation, ended=said.finish == "stop"))
            else:
                seen = seen[self._window - self._window // 2 :]
                gone = _asking(first, f"({number - len(seen)} earlier turns are left out here.)")
                prompt = Prompt(self._reopened(instruction, gone, seen, observation), fresh=True)

    def _reopened(self, instruction: str, gone: str, seen: list[_Seen], observation: str) -> tuple[int, ...]:
        """Ids of a new context: what is gone, the turns that are still seen, and the observation."""
        observations = [*(turn.observation for turn in seen), observation]
        turns = (
            (*turn.said.sampled_ids, *self._layout.following(heard, ended=turn.said.finish == "stop"))
            for turn, heard in zip(seen, observations[1:], strict=True)
        )
        return (
            *self._layout.opening(instruction, _asking(gone, observations[0])),
            *chain.from_iterable(turns),
        )


def _asking(text: str, question: str) -> str:
    return f"{text}\n\n{question}"


def make_agent(config: AgentConfig, layout: Layout) -> Agent:
    """The agent that the configuration names."""
    kinds: dict[str, Callable[[], Agent]] = {
        "react": lambda: ReActAgent(layout),
        "planning": lambda: PlanningAgent(layout),
        "reflection": lambda: ReflectingAgent(layout),
        "window": lambda: WindowAgent(layout, config.window),
    }
    return kinds[config.name]()
