"""Agents: what the policy sees next, and which part of what it says goes to the world."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Completion
from trainers.config import AgentConfig


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


class Agent(Protocol):
    """Plays episodes, each a generator, so that any number of prompts may precede a reply."""

    stop_ids: frozenset[int]
    """A sampled id of this set ends a generation."""

    def play(self, instruction: str, observation: str) -> Play:
        """Starts an episode at the scenario's instruction and the world's first observation."""
        ...


class ReActAgent:
    """The whole conversation is seen, each observation is appended to it, and all that is said goes to the world."""

    def __init__(self, layout: ChatLayout) -> None:
        self._layout = layout
        self.stop_ids = layout.stop_ids

    def play(self, instruction: str, observation: str) -> Play:
        context_ids = self._layout.opening(instruction, observation)
        while True:
            said: Completion = yield Prompt(context_ids)
            observation = yield Reply(self._layout.decode(said.sampled_ids))
            context_ids = self._layout.following(observation, ended=said.finish == "stop")


def make_agent(config: AgentConfig, layout: ChatLayout) -> Agent:
    """The agent that the configuration names."""
    return {"react": ReActAgent}[config.name](layout)
