"""BabyAI: what the agent is told, and the grammar of its moves."""

from __future__ import annotations

import re

from gym_agents.scenario import Command, Invalid, Options, Scenario

COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
KINDS = ("ball", "box", "key", "door")

_MOVES = "turn left, turn right, move forward, go to X, pick up X, drop, open X, go through X, toggle"
_INSTRUCTION = f"""\
Reach the goal in few moves: {_MOVES}.
X is a thing you have seen, such as red ball 1. A locked door needs a key of its colour in hand.
"""
_REACT = """\
You may think first; end with one line
Action: go to red ball 1"""
_BARE = "Reply with one move alone, such as: go to red ball 1"

_ALONE = re.compile(r"turn left|turn right|move forward|drop|toggle")
_ON_THING = re.compile(
    r"(go to|pick ?up|open|go through) "
    rf"(?:(?:the|an?) )?((?:{'|'.join(COLOURS)}) (?:{'|'.join(KINDS)})(?: [1-9][0-9]{{0,3}})?)"
)


def instruct(options: Options) -> str:
    """The instruction, told once."""
    return _INSTRUCTION + (_BARE if options.grammar == "bare" else _REACT)


def command(line: str, options: Options) -> Command | Invalid:
    """Reads one move. Which things there are is the world's to say, not the grammar's.

    The number of a thing may be left out; the world takes it if it knows only one that fits.

    >>> command("Go to  the red ball 1.", Options())
    Command(text='go to red ball 1')
    >>> command("pickup grey key", Options())
    Command(text='pick up grey key')
    >>> command("dance", Options()).reason
    'There is no such move. Moves: turn left, turn right, move forward, go to X, pick up X, drop, open X, \
go through X, toggle, with X a name such as red ball 1.'
    """
    text = " ".join(line.lower().split()).removesuffix(".")
    if _ALONE.fullmatch(text):
        return Command(text)
    match = _ON_THING.fullmatch(text)
    if match is None:
        return Invalid(f"There is no such move. Moves: {_MOVES}, with X a name such as red ball 1.")
    return Command(f"{match[1].replace('pickup', 'pick up')} {match[2]}")


SCENARIO = Scenario(name="babyai", title="BabyAI", instruct=instruct, command=command, draws=True)
