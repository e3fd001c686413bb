"""What a SciWorld agent is told, what it may say, and what may be set."""

from __future__ import annotations

import pytest

from gym_agents.errors import OptionError
from gym_agents.scenario import Command, Invalid, make_options
from gym_agents.scenarios.sciworld import SCENARIO, SIMPLIFICATIONS, SciWorldOptions


@pytest.mark.parametrize(
    ("reply", "command"),
    [
        ("Action: look around", "look around"),
        ("Thought: the stove.\nAction:  Activate   the STOVE. ", "activate the stove"),
        ("Action: 0", "0"),
        ("Action:\nfocus on unknown substance B", "focus on unknown substance b"),
        ("Action: " + "a" * 200, "a" * 200),
    ],
)
def test_a_line_is_read_as_the_simulator_wants_it(reply: str, command: str) -> None:
    assert SCENARIO.parse(reply, SciWorldOptions()) == Command(command)


@pytest.mark.parametrize("line", ["a" * 201, "öffne die Tür", "look \ud800 around", "."])
def test_what_the_simulator_cannot_read_does_not_reach_it(line: str) -> None:
    assert isinstance(SCENARIO.parse(f"Action: {line}", SciWorldOptions()), Invalid)


def test_lines_of_a_bare_reply_become_one() -> None:
    assert SCENARIO.parse("look\n around\n", SciWorldOptions(grammar="bare")) == Command("look around")


def test_the_instruction_names_the_commands_that_there_are() -> None:
    plain = SCENARIO.instruction(SciWorldOptions())
    assert "teleport" not in plain
    assert "connect X to Y" in plain
    easy = SCENARIO.instruction(SciWorldOptions(simplifications=("easy",)))
    assert "teleport to PLACE" in easy
    assert "connect" not in easy


def test_simplifications_keep_the_simulators_order_whatever_the_users() -> None:
    options = make_options(SciWorldOptions, {"simplifications": ["openDoors", "teleportAction", "openDoors"]})
    assert isinstance(options, SciWorldOptions)
    assert options.simplified == ("teleportAction", "openDoors")
    assert SciWorldOptions(simplifications=("easy",)).simplified == SIMPLIFICATIONS


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"simplifications": ["opendoors"]}, "Did you mean 'openDoors'"),
        ({"simplifications": "easy"}, "must be"),
        ({"step_limit": 0}, "1 or more"),
        ({"step_limit": True}, "must be int"),
    ],
)
def test_wrong_options_are_typed_errors(given: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make_options(SciWorldOptions, given)
