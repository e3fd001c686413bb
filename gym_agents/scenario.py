"""What a scenario says to an agent, and what it makes of the agent's reply.

A scenario is a value: its instruction and its action grammar are pure functions, so that the server, the
trainer and a page can all use the same one. The world behind it lives in a server.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gym_agents.errors import OptionError, near_match


@dataclass(frozen=True)
class Command:
    """The one command that a reply holds, as the world will read it."""

    text: str


@dataclass(frozen=True)
class Invalid:
    """A reply without a usable command; `reason` is what the agent is told."""

    reason: str


@dataclass(frozen=True)
class Options:
    """What a user may set for any scenario; each scenario extends it with fields of its own."""

    grammar: Literal["react", "bare"] = "react"
    """`react`: the whole reply, thought and action. `bare`: the command alone, parsed by the caller."""


@dataclass(frozen=True)
class Scenario:
    """A family of tasks that share one world, one instruction and one action grammar."""

    name: str
    """Lower-case name, as in item ids and on the command line: `textcraft`."""
    title: str
    """Name as in environment ids: `TextCraft`."""
    instruct: Callable[[Any], str]
    """The instruction of the scenario, given its options."""
    command: Callable[[str, Any], Command | Invalid]
    """Reads one command line, given the options: canonical text, or why it is none."""
    options: type[Options] = Options
    """Frozen dataclass of the options that a user may set."""
    read: Callable[[str], Command | Invalid] | None = None
    """How a reply is reduced to its command line; `None` is the rule of `read_react`."""
    draws: bool = False
    """True where its worlds draw a picture of their state (`render_mode="rgb_array"`)."""
    write: Callable[[str], str] | None = None
    """The shortest reply that `read` reduces to a command; `None` is an `Action:` line."""
    max_observation_chars: int = 8_000
    """Longer observations are cut there, with a mark in the text."""

    def instruction(self, options: Options) -> str:
        """The instruction, told to the agent once, before the first observation."""
        return self.instruct(options)

    def parse(self, reply: str, options: Options) -> Command | Invalid:
        """The command in `reply` by the scenario's grammar, or why there is none."""
        line = Command(reply.strip()) if options.grammar == "bare" else (self.read or read_react)(reply)
        return line if isinstance(line, Invalid) else self.command(line.text, options)

    def reply(self, command: str, options: Options) -> str:
        """The shortest reply that gives the command: what `parse` reads back."""
        return command if options.grammar == "bare" else (self.write or write_react)(command)

    def cut(self, observation: str) -> str:
        """The observation, cut at the stated limit."""
        if len(observation) <= self.max_observation_chars:
            return observation
        left_out = len(observation) - self.max_observation_chars
        return f"{observation[: self.max_observation_chars]}\n[... {left_out} more characters]"


_FENCE = re.compile(r"^[ \t]*```.*?(?:^[ \t]*```[^\n]*$|\Z)", re.MULTILINE | re.DOTALL)
_ACTION = re.compile(r"^[ \t]*Action:[ \t]*(.*)$", re.MULTILINE)


def read_react(reply: str) -> Command | Invalid:
    r"""Reads a Thought/Action reply: exactly one line outside code fences starts with `Action:`.

    The command is the rest of that line or, where that is empty, the next line that is not.

    >>> read_react("Thought: the format is 'Action: <command>'.\nAction: inventory")
    Command(text='inventory')
    >>> read_react("Action:\ninventory")
    Command(text='inventory')
    >>> read_react("Action: look\nObservation: a door\nAction: open door").reason
    'Your reply holds 2 actions. Give exactly one line that starts with "Action:".'
    >>> read_react("I think so.").reason
    'Your reply holds no action. Give exactly one line that starts with "Action:".'
    """
    text = _FENCE.sub("", reply) if "```" in reply else reply
    matches = _ACTION.findall(text)
    if len(matches) != 1:
        found = f"{len(matches)} actions" if matches else "no action"
        return Invalid(f'Your reply holds {found}. Give exactly one line that starts with "Action:".')
    command = matches[0].strip() or _next_line(text)
    return Command(command) if command else Invalid('The line "Action:" is empty. Write a command after it.')


def write_react(command: str) -> str:
    """The reply that holds the command and no thought.

    >>> write_react("inventory")
    'Action: inventory'
    """
    return f"Action: {command}"


def _next_line(text: str) -> str:
    match = _ACTION.search(text)
    rest = text[match.end() :] if match else ""
    return next((line.strip() for line in rest.splitlines() if line.strip()), "")


def make_options(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Builds a scenario's options from plain values, as they come from a user or from the wire.

    Raises:
        OptionError: naming every unknown field, wrong type and value out of range at once.
    """
    hints = typing.get_type_hints(kind)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    problems = [f"unknown option {name!r}.{near_match(name, fields)}" for name in given if name not in fields]
    problems += [
        f"option {name!r} is {value!r}, but must be {_describe(fields[name])}"
        for name, value in given.items()
        if name in fields and not fits(value, fields[name])
    ]
    if problems:
        raise OptionError("; ".join(problems))
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise OptionError(str(error)) from error


def fits(value: Any, hint: Any) -> bool:
    """Whether a plain value, as TOML or JSON holds it, is of the annotated type (a list fits a tuple)."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return isinstance(value, (list, tuple)) and all(fits(part, inner) for part in value)
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint))
