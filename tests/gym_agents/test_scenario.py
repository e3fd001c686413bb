"""The reply grammar and the options that every scenario shares."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gym_agents.errors import OptionError
from gym_agents.scenario import Command, Invalid, Options, make_options, read_react


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ('Thought: the format is "Action: <command>", so\nAction: inventory', "inventory"),
        ("Action:\ninventory", "inventory"),
        ("  Action:   inventory  \n", "inventory"),
        ("```\nAction: get 9 diamond\n```\nAction: inventory", "inventory"),
        ("Action: inventory\n```\nAction: get 9 diamond", "inventory"),
        ("Action: caf\u00e9 \U0001f600\x00", "caf\u00e9 \U0001f600\x00"),
    ],
)
def test_the_one_action_line_counts(reply: str, command: str) -> None:
    """Quoted and fenced markers are no actions: eosphoros-ai/DB-GPT PR 3074, stanfordnlp/dspy #535."""
    assert read_react(reply) == Command(command)


@pytest.mark.parametrize(
    "reply",
    [
        "Thought: go\nAction: get 1 oak logs\nObservation: Got 1 oak logs\nAction: craft 4 oak planks using 1 oak logs",
        "Action: inventory\nAction: inventory",
        "Action:",
        "Action:   \n  \n",
        "",
        "the action: inventory",
    ],
)
def test_no_action_and_several_are_invalid_and_told_why(reply: str) -> None:
    """A whole game dreamt in one reply plays nothing: XiaoConstantine/dspy-go #167."""
    read = read_react(reply)
    assert isinstance(read, Invalid)
    assert "Action:" in read.reason


@dataclass(frozen=True)
class SomeOptions(Options):
    k: int = 3
    ratio: float = 0.5
    name: str | None = None

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ValueError("k must not be negative")


def test_options_from_plain_values() -> None:
    assert make_options(SomeOptions, {"k": 1, "ratio": 1, "name": "x"}) == SomeOptions(k=1, ratio=1, name="x")


def test_every_mistake_is_named_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        make_options(SomeOptions, {"K": 1, "k": True, "grammar": "reakt", "ratio": "big"})
    for part in (
        "unknown option 'K'",
        "'k' is True",
        "'reakt'",
        "one of 'react', 'bare'",
        "'ratio' is 'big'",
    ):
        assert part in caught.value.message
    with pytest.raises(OptionError, match="k must not be negative"):
        make_options(SomeOptions, {"k": -1})
