"""SearchQA's grammar: one tag a turn, read from the agent's own reply and from nothing else."""

from __future__ import annotations

import pytest

from gym_agents.errors import OptionError
from gym_agents.scenario import Command, Invalid, make_options
from gym_agents.scenarios.searchqa import SCENARIO, SearchQAOptions

OPTIONS = SearchQAOptions()
HINT = "<search>words</search> or <answer>text</answer>"


def parsed(reply: str, grammar: str = "react") -> str:
    """The command, or the reason why there is none after an exclamation mark."""
    result = SCENARIO.parse(reply, make_options(SearchQAOptions, {"grammar": grammar}))
    return result.text if isinstance(result, Command) else f"!{result.reason}"


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("<answer>Paris</answer>", "<answer>Paris</answer>"),
        ("I know it. <answer> Paris \n </answer> That is all.", "<answer>Paris</answer>"),
        ("<ANSWER>Paris</ANSWER>", "<answer>Paris</answer>"),
        ("<Search>capital  of\tFrance</search>", "<search>capital of France</search>"),
        ("<think>Is it <answer>Rome</answer>?</think><answer>Paris</answer>", "<answer>Paris</answer>"),
        ("```\n<answer>Rome</answer>\n```\n<answer>Paris</answer>", "<answer>Paris</answer>"),
        ("<search>a < b</search>", "<search>a < b</search>"),
        ("<answer>A</answer><answer>B</answer>", f"!Your reply holds 2 tags. Give exactly one: {HINT}."),
        ("<search>A</search><answer>B</answer>", f"!Your reply holds 2 tags. Give exactly one: {HINT}."),
        (
            "<search>A</search>\n<information>[1] B</information>\n<answer>B</answer>",
            f"!Your reply holds 2 tags. Give exactly one: {HINT}.",
        ),
        ("Paris", f"!Your reply holds no tag. Give exactly one: {HINT}."),
        ("<answer>Paris", "!The tag <answer> is not closed: end it with </answer>."),
        ("<answer>Paris</search>", "!The tag <answer> is not closed: end it with </answer>."),
        ("</answer>Paris<answer>", "!The tag <answer> is not closed: end it with </answer>."),
        ("<think><answer>Paris</answer>", "<answer>Paris</answer>"),
        ("<answer>  </answer>", "!The tag <answer> is empty."),
        (f"<search>{'x' * 501}</search>", "!The tag <search> holds at most 500 characters."),
    ],
)
def test_one_tag_of_the_reply_is_read(reply: str, read: str) -> None:
    """PeterGriffinJin/Search-R1 #79: a scorer that counted tags of the prompt gave 0 once the prompt changed."""
    assert parsed(reply) == read


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        (" <answer>Paris</answer>\n", "<answer>Paris</answer>"),
        ("It is <answer>Paris</answer>", f"!Give exactly one tag: {HINT}."),
        ("<answer>A</answer><answer>B</answer>", f"!Give exactly one tag: {HINT}."),
    ],
)
def test_the_bare_grammar_takes_the_tag_alone(reply: str, read: str) -> None:
    assert parsed(reply, grammar="bare") == read


@pytest.mark.parametrize("grammar", ["react", "bare"])
def test_the_shortest_reply_is_read_back(grammar: str) -> None:
    options = make_options(SearchQAOptions, {"grammar": grammar})
    assert SCENARIO.reply("<search>Oslo</search>", options) == "<search>Oslo</search>"
    assert SCENARIO.parse("<search>Oslo</search>", options) == Command("<search>Oslo</search>")


def test_the_instruction_follows_the_options() -> None:
    assert "the 3 best passages" in SCENARIO.instruction(OPTIONS)
    assert "ends the episode" in SCENARIO.instruction(OPTIONS)
    other = SearchQAOptions(k=1, answers="retry", grammar="bare")
    assert "the best passage" in SCENARIO.instruction(other)
    assert "may be followed by another" in SCENARIO.instruction(other)
    assert SCENARIO.instruction(other).endswith("Reply with one tag alone.")


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 11}, {"answers": "twice"}, {"k": True}])
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        make_options(SearchQAOptions, options)


def test_a_refusal_is_no_command() -> None:
    assert isinstance(SCENARIO.parse("", OPTIONS), Invalid)
