"""SciWorld: what the agent is told, its options, and the little grammar before the simulator's own."""

from __future__ import annotations

from dataclasses import dataclass

from gym_agents.errors import near_match
from gym_agents.scenario import Command, Invalid, Options, Scenario

MAX_COMMAND_CHARS = 200
"""Longer command lines are refused unread; the longest useful one has about 100 characters."""

SIMPLIFICATIONS = (
    "teleportAction",
    "selfWateringFlowerPots",
    "openContainers",
    "openDoors",
    "noElectricalAction",
)
"""The simulator's own names, in its own order; `easy` stands for all of them."""


@dataclass(frozen=True)
class SciWorldOptions(Options):
    """What a user may set for SciWorld.

    Raises:
        ValueError: if a simplification is unknown, or the step limit is not positive.
    """

    simplifications: tuple[str, ...] = ()
    """What the simulator makes easier, in any order: see `SIMPLIFICATIONS`."""
    step_limit: int = 100
    """The world's own limit: the episode is truncated once the simulator has counted more moves than this.
    A move is not a turn: `wait` takes ten, a look at the inventory none."""

    def __post_init__(self) -> None:
        known = (*SIMPLIFICATIONS, "easy")
        unknown = [name for name in self.simplifications if name not in known]
        if unknown:
            raise ValueError(
                f"unknown simplification {unknown[0]!r}.{near_match(unknown[0], known)} Known: {', '.join(known)}"
            )
        if self.step_limit < 1:
            raise ValueError(f"option 'step_limit' is {self.step_limit}, but must be 1 or more")

    @property
    def simplified(self) -> tuple[str, ...]:
        """The simplifications in the simulator's order, each once, `easy` spelt out."""
        if "easy" in self.simplifications:
            return SIMPLIFICATIONS
        return tuple(name for name in SIMPLIFICATIONS if name in self.simplifications)


_COMMANDS = (
    "look around, look at X, look in X, inventory, task",
    "go to PLACE{teleport}, open X, close X, pick up X, put down X, move X to Y",
    "activate X, deactivate X, use X on Y, read X, eat X, flush X",
    "pour X into Y, dunk X into Y, mix X{connect}",
    "wait (ten steps), wait1 (one step)",
    "focus on X (only on what the task asks for: a wrong thing ends the episode)",
    "0, 1, ... (where you are asked which one you mean)",
)

_REPLY = {
    "react": "You may think first; end with one line\nAction: <command>",
    "bare": "Reply with one command alone.",
}


def instruct(options: SciWorldOptions) -> str:
    """The instruction, told once; it names the commands that the simplifications leave."""
    simplified = options.simplified
    commands = "\n".join(_COMMANDS).format(
        teleport=", teleport to PLACE" if "teleportAction" in simplified else "",
        connect="" if "noElectricalAction" in simplified else ", connect X to Y, disconnect X",
    )
    return f"Do the science task, one command a turn:\n{commands}\n{_REPLY[options.grammar]}"


def command(line: str, options: SciWorldOptions) -> Command | Invalid:
    """Reads one command line: small letters, single blanks, no full stop. The simulator does the rest.

    >>> command("Open  the door to the kitchen.", SciWorldOptions())
    Command(text='open the door to the kitchen')
    >>> command("öffne die Tür", SciWorldOptions()).reason
    'A command has at most 200 characters, all of them ASCII.'
    """
    text = " ".join(line.lower().split()).removesuffix(".").rstrip()
    if len(text) > MAX_COMMAND_CHARS or not text.isascii():
        return Invalid(f"A command has at most {MAX_COMMAND_CHARS} characters, all of them ASCII.")
    return Command(text) if text else Invalid("Write one command.")


SCENARIO = Scenario(
    name="sciworld", title="SciWorld", instruct=instruct, command=command, options=SciWorldOptions
)
