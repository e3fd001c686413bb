"""SearchQA: what the agent is told, and its two moves."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from gym_agents.scenario import Command, Invalid, Options, Scenario

MAX_CHARS = 500
"""Longer queries and answers are refused unread."""
MAX_K = 10
MAX_PASSAGE_CHARS = 2_000
"""A passage is shown up to here, its number and title included; those of common corpora are shorter."""


@dataclass(frozen=True)
class SearchQAOptions(Options):
    """What a user may set for SearchQA.

    Raises:
        ValueError: if `k` is out of range.
    """

    k: int = 3
    """Passages that a search shows."""
    answers: Literal["once", "retry"] = "once"
    """`once`: the first answer ends the episode. `retry`: a wrong one may be followed by others."""

    def __post_init__(self) -> None:
        if not 1 <= self.k <= MAX_K:
            raise ValueError(f"option 'k' is {self.k}, but must be from 1 to {MAX_K}")


@dataclass(frozen=True, slots=True)
class Search:
    """Look for passages."""

    query: str

    def __str__(self) -> str:
        return f"<search>{self.query}</search>"


@dataclass(frozen=True, slots=True)
class Answer:
    """Say what the answer is."""

    text: str

    def __str__(self) -> str:
        return f"<answer>{self.text}</answer>"


_TAG = re.compile(r"<(/?)(search|answer)>", re.IGNORECASE)
_MOVE = re.compile(r"<(search|answer)>(.*)</\1>", re.IGNORECASE | re.DOTALL)
_ASIDE = re.compile(
    r"<think>.*?</think>|^[ \t]*```.*?^[ \t]*```[^\n]*$", re.IGNORECASE | re.DOTALL | re.MULTILINE
)
_EITHER = "<search>words</search> or <answer>text</answer>"


def read_move(line: str) -> Search | Answer | Invalid:
    """Reads one tag with its content; the case of the tag and the width of blanks do not matter.

    >>> read_move("<SEARCH>Marie  Curie</SEARCH>")
    Search(query='Marie Curie')
    >>> read_move("Marie Curie").reason
    'Give exactly one tag: <search>words</search> or <answer>text</answer>.'
    """
    match = _MOVE.fullmatch(line)
    if match is None or len(_TAG.findall(line)) != 2:
        return Invalid(f"Give exactly one tag: {_EITHER}.")
    name, text = match[1].lower(), " ".join(match[2].split())
    if not text:
        return Invalid(f"The tag <{name}> is empty.")
    if len(text) > MAX_CHARS:
        return Invalid(f"The tag <{name}> holds at most {MAX_CHARS} characters.")
    return Search(text) if name == "search" else Answer(text)


def read_tag(reply: str) -> Command | Invalid:
    """Reduces a reply to its one tag; what stands inside <think> or a code fence does not count.

    >>> read_tag("<think>Or <answer>Rome</answer>?</think> It must be <answer>Paris</answer>.")
    Command(text='<answer>Paris</answer>')
    >>> read_tag("<answer>Paris").reason
    'The tag <answer> is not closed: end it with </answer>.'
    >>> read_tag("<search>Paris</search><answer>Paris</answer>").reason
    'Your reply holds 2 tags. Give exactly one: <search>words</search> or <answer>text</answer>.'
    """
    text = _ASIDE.sub("", reply)
    tags = list(_TAG.finditer(text))
    opened = [tag[2].lower() for tag in tags if not tag[1]]
    if len(opened) != 1:
        found = f"{len(opened)} tags" if opened else "no tag"
        return Invalid(f"Your reply holds {found}. Give exactly one: {_EITHER}.")
    if [tag[1] + tag[2].lower() for tag in tags] != [opened[0], f"/{opened[0]}"]:
        return Invalid(f"The tag <{opened[0]}> is not closed: end it with </{opened[0]}>.")
    return Command(text[tags[0].start() : tags[1].end()])


def _command(line: str, options: SearchQAOptions) -> Command | Invalid:
    move = read_move(line)
    return move if isinstance(move, Invalid) else Command(str(move))


_ANSWERS = {"once": "ends the episode", "retry": "is judged; a wrong one may be followed by another"}
_REPLY = {
    "react": "You may think first; end with one tag.",
    "bare": "Reply with one tag alone.",
}


def _instruct(options: Any) -> str:
    shown = "the best passage" if options.k == 1 else f"the {options.k} best passages"
    return (
        "Answer the question by looking it up in an encyclopedia. One tag a turn:\n"
        f"<search>words</search> shows {shown} for these words\n"
        f"<answer>text</answer> {_ANSWERS[options.answers]}; give a name, year or word, no sentence\n"
        f"{_REPLY[options.grammar]}"
    )


SCENARIO = Scenario(
    name="searchqa",
    title="SearchQA",
    instruct=_instruct,
    command=_command,
    options=SearchQAOptions,
    read=read_tag,
    write=str,
    max_observation_chars=MAX_K * MAX_PASSAGE_CHARS + 100,
)
