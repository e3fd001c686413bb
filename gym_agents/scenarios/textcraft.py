"""TextCraft: what its agent is told, and the three commands that it may give."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gym_agents.scenario import Command, Invalid, Options, Scenario

MAX_COMMAND_CHARS = 500
"""Longer command lines are refused unread; the longest useful one has about 200 characters."""


@dataclass(frozen=True)
class TextCraftOptions(Options):
    """What a user may set for TextCraft.

    Raises:
        ValueError: if `distractors` is negative.
    """

    distractors: int = 10
    """At most so many recipes are shown that the goal does not need."""

    def __post_init__(self) -> None:
        if self.distractors < 0:
            raise ValueError(f"option 'distractors' is {self.distractors}, but must be 0 or more")


@dataclass(frozen=True, slots=True)
class Get:
    """Fetch units of an item that no recipe makes."""

    count: int
    item: str

    def __str__(self) -> str:
        return f"get {self.count} {self.item}"


@dataclass(frozen=True, slots=True)
class Craft:
    """Follow one recipe once."""

    count: int
    """As the agent stated it; the recipe alone decides how many come out."""
    item: str
    using: Mapping[str, int]
    """Units of each ingredient."""

    def __str__(self) -> str:
        using = ", ".join(f"{count} {item}" for item, count in self.using.items())
        return f"craft {self.count} {self.item} using {using}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """Look at what is held."""

    def __str__(self) -> str:
        return "inventory"


Action = Get | Craft | Inventory

_COUNTED = re.compile(r"0*([1-9][0-9]{0,8}) ([a-z][a-z ]*)")
_COUNTS = ", with <n> from 1 to 999999999"


def read_action(line: str) -> Action | Invalid:
    """Reads a command line; case, the width of blanks and a full stop at the end do not matter.

    >>> read_action("Get  3 oak logs.")
    Get(count=3, item='oak logs')
    >>> str(read_action("craft 1 torch using 1 coal,1 stick"))
    'craft 1 torch using 1 coal, 1 stick'
    >>> read_action("inventory")
    Inventory()
    >>> read_action("get oak logs").reason
    'Write: get <n> <item>, with <n> from 1 to 999999999'
    """
    if len(line) > MAX_COMMAND_CHARS:
        return Invalid(f"A command has at most {MAX_COMMAND_CHARS} characters.")
    return _read(" ".join(line.lower().split()).removesuffix(".").rstrip())


# A policy says the same few commands again and again, and each is read by the server and by the world.
@functools.lru_cache(maxsize=4096)
def _read(text: str) -> Action | Invalid:
    match text.partition(" ")[0]:
        case "get":
            return _read_get(text)
        case "craft":
            return _read_craft(text)
        case "inventory" if text == "inventory":
            return Inventory()
    return Invalid("Unknown command. Use get, craft or inventory.")


def _read_get(text: str) -> Get | Invalid:
    match = _COUNTED.fullmatch(text, len("get "))
    return Get(int(match[1]), match[2]) if match else Invalid(f"Write: get <n> <item>{_COUNTS}")


def _read_craft(text: str) -> Craft | Invalid:
    output, _, using = text.removeprefix("craft ").partition(" using ")
    head = _COUNTED.fullmatch(output if output[:1].isdigit() else f"1 {output}")
    parts = [_COUNTED.fullmatch(part.strip()) for part in using.split(",")]
    counts = {part[2]: int(part[1]) for part in parts if part}
    if head is None or None in parts:
        return Invalid(f"Write: craft <n> <item> using <n> <item>, <n> <item>{_COUNTS}")
    if len(counts) < len(parts):
        return Invalid("Name each ingredient once.")
    return Craft(int(head[1]), head[2], counts)


def _command(line: str, options: TextCraftOptions) -> Command | Invalid:
    action = read_action(line)
    return action if isinstance(action, Invalid) else Command(str(action))


_RULES = """Craft the goal with the recipes shown. One command a turn:
get <n> <item> (what no recipe makes)
craft <n> <item> using <n> <item>, <n> <item> (a recipe's exact counts)
inventory (what you hold)
A group such as planks takes one kind of it."""

_REPLY = {
    "react": "You may think first; end with one line\nAction: <command>",
    "bare": "Reply with one command alone.",
}


def _instruct(options: Any) -> str:
    return f"{_RULES}\n{_REPLY[options.grammar]}"


SCENARIO = Scenario(
    name="textcraft",
    title="TextCraft",
    instruct=_instruct,
    command=_command,
    options=TextCraftOptions,
    # All distractors that there are make 9,700; the goal stands at the end and must not be cut off.
    max_observation_chars=12_000,
)
