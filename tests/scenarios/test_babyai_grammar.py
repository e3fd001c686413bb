"""BabyAI's grammar, and what it makes of whole replies."""

from __future__ import annotations

import pytest

from gym_agents.scenario import Command, Invalid, Options
from gym_agents.scenarios.babyai import SCENARIO

BARE = Options(grammar="bare")


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("turn left", "turn left"),
        ("Turn  RIGHT.", "turn right"),
        (" move\tforward ", "move forward"),
        ("drop", "drop"),
        ("toggle", "toggle"),
        ("go to red ball 1", "go to red ball 1"),
        ("Go to the red ball", "go to red ball"),
        ("pickup a grey key 2", "pick up grey key 2"),
        ("pick up grey key 12.", "pick up grey key 12"),
        ("open purple door 1", "open purple door 1"),
        ("go through the yellow door 1", "go through yellow door 1"),
    ],
)
def test_moves_are_read(line: str, command: str) -> None:
    assert SCENARIO.parse(line, BARE) == Command(command)
    assert SCENARIO.parse(f"Thought: why not\nAction: {line}", Options()) == Command(command)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "turn",
        "turn around",
        "go to",
        "go to ball",
        "go to pink ball 1",
        "go to red ball 0",
        "go to red ball 01",
        "go to red ball 99999",
        "go to red ball 1 and drop",
        "turn left turn left",
        "pick the red ball up",
        "open red door 1; toggle",
        "go to red ball \u0661",
        "\0",
    ],
)
def test_anything_else_is_told_the_moves(line: str) -> None:
    answer = SCENARIO.parse(line, BARE)
    assert isinstance(answer, Invalid)
    assert "go through X, toggle, with X a name such as red ball 1." in answer.reason


def test_the_instruction_names_every_move_and_the_form_of_a_reply() -> None:
    instruction = SCENARIO.instruction(Options())
    for move in (
        "turn left",
        "move forward",
        "go to X",
        "pick up X",
        "drop",
        "open X",
        "go through X",
        "toggle",
    ):
        assert move in instruction
    assert SCENARIO.parse(instruction.splitlines()[-1], Options()) == Command("go to red ball 1")
    assert "Action:" not in SCENARIO.instruction(BARE)
