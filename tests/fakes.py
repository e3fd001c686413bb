"""Small worlds for tests, each with one way of behaving; a server process loads `tests.fakes:Name`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from gym_agents.errors import ItemError, SessionUnknown
from gym_agents.scenario import Command, Invalid, Options, Scenario
from servers.world import Episode, Result, World


def _instruct(options: Options) -> str:
    return "Say `add N` to count, `stop` to end."


def _command(line: str, options: Options) -> Command | Invalid:
    return Command(line) if line.split()[0] in ("add", "stop") else Invalid(f"There is no command {line!r}.")


COUNTING = Scenario(name="counting", title="Counting", instruct=_instruct, command=_command)
GOAL = 5
ITEMS = {
    ("Low", "train"): (0, 1, 2, 3),
    ("Low", "eval"): (4,),
    ("High", "train"): (10, 11),
    ("High", "eval"): (),
}


class Counting(Episode):
    """Counts up from the item's number; `stop` ends it, and it is a success at `GOAL` more than the start."""

    def __init__(self, item: int, seed: int) -> None:
        self.start = self.count = item
        self.observation = f"The count is {item}. Reach {item + GOAL}. Seed {seed}."
        self.closed = 0

    @property
    def reached(self) -> float:
        return min((self.count - self.start) / GOAL, 1.0)

    def step(self, command: str) -> Result:
        if command == "stop":
            done = self.reached == 1.0
            return Result("Stopped.", self.reached, terminated=True, success=done)
        self.count += int(command.split()[1])
        return Result(f"The count is {self.count}.", self.reached)

    def expert(self) -> str:
        return "stop" if self.reached == 1.0 else "add 1"

    def actions(self) -> list[str]:
        return ["add 1", "stop"]

    def view(self) -> dict[str, Any]:
        return {"count": self.count}

    def picture(self) -> bytes:
        return b"\x89PNG"

    def close(self) -> None:
        self.closed += 1


class CountingWorld(World):
    """Inline; keeps every episode that it started, so that a test can look at them."""

    scenario = COUNTING
    numbering = "counting"
    backend = "counting 1.0"
    tasks = ("Low", "High")
    inline = True
    episode: type[Counting] = Counting

    def __init__(self) -> None:
        self.started: list[Counting] = []
        self.closed = 0

    def items(self, task: str | None, split: str) -> Sequence[int]:
        return [n for (name, part), ns in ITEMS.items() for n in ns if task in (None, name) and part == split]

    def task_of(self, item: int) -> str | None:
        for (name, _), numbers in ITEMS.items():
            if item in numbers:
                return name
        if item == 99:
            return None
        raise ItemError(f"Counting has no item {item}.")

    def start(self, item: int, seed: int, options: Any) -> Episode:
        episode = self.episode(item, seed)
        self.started.append(episode)
        return episode

    def close(self) -> None:
        self.closed += 1


class Sleeping(Counting):
    """`add N` sleeps N tenths of a second."""

    def step(self, command: str) -> Result:
        if command.startswith("add"):
            time.sleep(int(command.split()[1]) / 10)
        return super().step(command)


class SleepingWorld(CountingWorld):
    """Threaded; its steps wait."""

    inline = False
    episode = Sleeping


class Raising(Counting):
    """`add 3` raises, because of something deeper; starting item 3 raises too."""

    def __init__(self, item: int, seed: int) -> None:
        if item == 3:
            raise OSError("no such simulator")
        super().__init__(item, seed)

    def step(self, command: str) -> Result:
        if command == "add 3":
            try:
                raise ConnectionError("the helper went away \ud800")
            except ConnectionError as error:
                raise RuntimeError("step failed") from error
        return super().step(command)

    def view(self) -> dict[str, Any]:
        raise KeyError("grid")

    def close(self) -> None:
        super().close()
        raise OSError("already gone")


class RaisingWorld(CountingWorld):
    """Raises on one command, on one item, in its view and whenever an episode is closed."""

    episode = Raising


WRONG: dict[str, Any] = {
    "add 1": Result("nan", float("nan")),
    "add 2": Result("inf", float("inf")),
    "add 3": Result("below", -0.1),
    "add 4": Result("above", 1.1),
    "add 5": Result(b"bytes", 0.0),  # type: ignore[arg-type]
    "add 6": Result("early", 1.0, success=True),
    "add 7": Result("info", 0.0, info={"distance": float("nan")}),
    "add 8": Result("info", 0.0, info={"where": object()}),
    "add 9": None,
    "add 10": Result("verdict", 0.0, info={"success": True, "score": 0.9}),
}


class Wrong(Counting):
    """`add N` answers with the N-th thing that no world may answer."""

    def step(self, command: str) -> Result:
        answer: Result = WRONG[command]
        return answer


class NaNWorld(CountingWorld):
    """Answers with what is not finite, not a text, or makes no sense."""

    episode = Wrong


class Posing(Counting):
    """Says which item it is."""

    info = {"item_id": "mine"}  # noqa: RUF012


class PosingWorld(CountingWorld):
    """Its info takes a name that is not the world's."""

    episode = Posing


class SameDict(Counting):
    """Hands out one dict object, nested, and writes into it at every step."""

    def __init__(self, item: int, seed: int) -> None:
        super().__init__(item, seed)
        self.shared: dict[str, Any] = {"count": self.count, "seen": [self.count]}
        self.info = self.shared

    def step(self, command: str) -> Result:
        result = super().step(command)
        self.shared["count"] = self.count
        self.shared["seen"].append(self.count)
        return Result(result.observation, result.score, result.terminated, result.success, info=self.shared)


class SameDictWorld(CountingWorld):
    """Reuses its info."""

    episode = SameDict


STRANGE = "caf\u0065\u0301 \U0001f600 \x00 \ud83d."
STRANGE_SHOWN = "caf\u0065\u0301 \U0001f600 \x00 \ufffd."


class Strange(Counting):
    """Says what is hard to carry; `add 9` says far too much."""

    def __init__(self, item: int, seed: int) -> None:
        super().__init__(item, seed)
        self.observation = STRANGE
        self.info = {STRANGE: STRANGE}

    def step(self, command: str) -> Result:
        observation = "x" * 10_000 if command == "add 9" else STRANGE
        return Result(observation, 0.0, info={"text": [STRANGE]})


class StrangeTextWorld(CountingWorld):
    """Emoji, a combining accent, NUL and a lone surrogate in everything it says."""

    episode = Strange


class Limited(Counting):
    """Has a limit of its own, two steps, and a score that stands above 0 at the start."""

    score = 0.25

    def step(self, command: str) -> Result:
        result = super().step(command)
        score = 0.25 + 0.75 * result.score
        cut = "the world allows two steps" if self.count - self.start >= 2 else None
        return Result(result.observation, score, result.terminated, truncation=cut)


class LimitedWorld(CountingWorld):
    """Cuts its episodes itself."""

    episode = Limited


class Losing(Counting):
    """`add 4` finds that the world has lost the episode."""

    def step(self, command: str) -> Result:
        if command == "add 4":
            raise SessionUnknown("The simulator has died.")
        return super().step(command)


class LosingWorld(CountingWorld):
    """Loses episodes, and has room for two."""

    episode = Losing
    max_sessions = 2


class Fickle(Counting):
    """Says which process it lives in: the same replies give another episode elsewhere."""

    def step(self, command: str) -> Result:
        result = super().step(command)
        return Result(f"{result.observation} Process {os.getpid()}.", result.score)


class FickleWorld(CountingWorld):
    """Claims to be deterministic, and is not."""

    episode = Fickle


class UnrepeatableWorld(FickleWorld):
    """Says that it cannot be replayed."""

    replays = False


class OtherVersionWorld(CountingWorld):
    """The same scenario on another backend."""

    backend = "counting 2.0"


LETTERS = Scenario(
    name="letters",
    title="Letters",
    instruct=lambda options: "Begin with a letter from a to m.",
    command=lambda line, options: Command("early" if "a" <= line.lower()[:1] <= "m" else "late"),
    read=lambda reply: Command(reply.strip()),
)


class Letters(Episode):
    """Three replies, each worth a third of the score if it begins with a letter of the alphabet's first half."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.observation = "go"

    def step(self, command: str) -> Result:
        self.given.append(command)
        good, over = self.given.count("early"), len(self.given) == 3
        return Result(command, good / 3, terminated=over, success=good == 3)

    def expert(self) -> str:
        return "any"


class LettersWorld(World):
    """What a random model, which solves few in a hundred, learns within a minute."""

    scenario = LETTERS
    numbering = "letters"
    backend = "letters 1.0"
    tasks = ("Letters",)
    inline = True

    def items(self, task: str | None, split: str) -> Sequence[int]:
        return range(8) if split == "train" else range(8, 16)

    def task_of(self, item: int) -> str | None:
        return "Letters"

    def start(self, item: int, seed: int, options: Any) -> Episode:
        return Letters()
