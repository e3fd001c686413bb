"""TextCraft's options and command grammar, and what they make of whole replies."""

from __future__ import annotations

import pytest

from gym_agents.errors import OptionError
from gym_agents.scenario import Command, Invalid, make_options
from gym_agents.scenarios.textcraft import (
    MAX_COMMAND_CHARS,
    SCENARIO,
    Craft,
    Get,
    Inventory,
    TextCraftOptions,
    read_action,
)


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("get 1 oak logs", Get(1, "oak logs")),
        ("GET 012\tOak \n Logs .", Get(12, "oak logs")),
        ("get 999999999 string", Get(999_999_999, "string")),
        ("inventory", Inventory()),
        (" Inventory. ", Inventory()),
        ("craft 4 stick using 2 oak planks", Craft(4, "stick", {"oak planks": 2})),
        ("craft stick using 2 bamboo", Craft(1, "stick", {"bamboo": 2})),
        ("Craft 1 torch using 1 coal ,1 stick.", Craft(1, "torch", {"coal": 1, "stick": 1})),
    ],
)
def test_commands_are_read_whatever_their_case_and_blanks(line: str, action: object) -> None:
    assert read_action(line) == action


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "Unknown command"),
        ("dance", "Unknown command"),
        ("inventory please", "Unknown command"),
        ("getting 3 string", "Unknown command"),
        ("get", "Write: get <n> <item>"),
        ("get string", "Write: get <n> <item>"),
        ("get 0 string", "from 1 to 999999999"),
        ("get -1 string", "from 1 to 999999999"),
        ("get 1000000000 string", "from 1 to 999999999"),
        ("get \N{ARABIC-INDIC DIGIT ONE} string", "Write: get <n> <item>"),
        ("get 1 minecraft:string", "Write: get <n> <item>"),
        ("craft 4 stick", "Write: craft <n> <item> using"),
        ("craft 4 stick using", "Write: craft <n> <item> using"),
        ("craft 4 stick using bamboo", "Write: craft <n> <item> using"),
        ("craft 4 stick using 2 bamboo,", "Write: craft <n> <item> using"),
        ("craft 1 torch using 1 coal and 0 stick, 0 stick", "from 1 to 999999999"),
        ("craft 4 stick using 1 bamboo, 1 bamboo", "Name each ingredient once"),
        ("get 1 " + "a" * MAX_COMMAND_CHARS, f"at most {MAX_COMMAND_CHARS} characters"),
    ],
)
def test_what_is_no_command_is_refused_with_a_reason(line: str, part: str) -> None:
    refusal = read_action(line)
    assert isinstance(refusal, Invalid)
    assert part in refusal.reason


def test_command_text_is_canonical() -> None:
    reply = "Thought: planks first.\nAction: Craft  4 OAK planks using 1 oak  logs."
    assert SCENARIO.parse(reply, TextCraftOptions()) == Command("craft 4 oak planks using 1 oak logs")


def test_bare_grammar_takes_the_command_alone() -> None:
    options = TextCraftOptions(grammar="bare")
    assert SCENARIO.parse(" get 2 string\n", options) == Command("get 2 string")
    assert isinstance(SCENARIO.parse("Action: get 2 string", options), Invalid)


def test_instruction_names_every_command_and_the_reply_that_is_wanted() -> None:
    react = SCENARIO.instruction(TextCraftOptions())
    bare = SCENARIO.instruction(TextCraftOptions(grammar="bare"))
    assert all(f"\n{word}" in react and f"\n{word}" in bare for word in ("get ", "craft ", "inventory "))
    assert "\nAction: " in react
    assert "Action:" not in bare


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"distractors": -1}, "must be 0 or more"),
        ({"distractors": 2.0}, "must be int"),
        ({"distractors": True}, "must be int"),
        ({"distractor": 2}, "Did you mean 'distractors'?"),
    ],
)
def test_bad_options_are_typed_errors(given: dict[str, object], part: str) -> None:
    with pytest.raises(OptionError, match=part.replace("?", r"\?")):
        make_options(TextCraftOptions, given)


def test_negative_distractors_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="distractors"):
        TextCraftOptions(distractors=-1)
