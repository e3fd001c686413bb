"""One simulator: a ScienceWorld of its own inside the shared Java process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from scienceworld.constants import JAR_PATH

from gym_agents.errors import SessionUnknown, WorldFailure
from servers.sciworld.jvm import Jvm

UNKNOWN = "No known action matches that input."
"""How the simulator's answer to a command that it cannot read starts; nothing has changed then."""

_CONSOLE = ("help", "objects", "task")
"""Words that the simulator's Python interface answers itself, in front of the world: no time passes."""
_NOTHING_SAID = (
    "Unknown action.  Type 'help' for a list of actions, "
    "and 'objects' for a list of possible object referents. "
)
"""What that interface says where the world said nothing: when a question was not answered with a number."""


class Variation(NamedTuple):
    """One of the simulator's own task instances."""

    task: str
    """The simulator's name of the task: `find-animal`."""
    number: int
    """Which of the task's variations, from 0; it seeds the simulator, too."""


class Outcome(NamedTuple):
    """What a command did."""

    observation: str
    score: int
    """Where the simulator's score stands, from -100 to 100."""
    completed: bool
    """The simulator's word that the task is solved."""
    moves: int
    """How many units of time have passed since the start."""


class Simulator:
    """A ScienceWorld with a class loader of its own, used by one caller at a time.

    The simulator keeps its random generator, its counter of objects and its simplifications in global
    variables. Under a class loader of its own each copy has its own; loading one takes 1 to 2 s and 30 MB.

    Every method raises what `Jvm.watched` raises.
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._gateway = jvm.connect()
        self.fit = True
        """False once a call has failed: what the simulator holds is then unknown."""
        with self._calls():
            self._loader = self._class_loader()
            self._interface = self._instance("scienceworld.runtime.pythonapi.PythonInterface")
        self._agent: Any = None
        self._last = Outcome("", 0, False, 0)

    def _class_loader(self) -> Any:
        java = self._gateway.jvm.java
        urls = self._gateway.new_array(java.net.URL, 1)
        urls[0] = java.io.File(JAR_PATH).toURI().toURL()
        return java.net.URLClassLoader(urls)

    def _instance(self, name: str) -> Any:
        lang = self._gateway.jvm.java.lang
        constructor = self._loader.loadClass(name).getDeclaredConstructor(
            self._gateway.new_array(lang.Class, 0)
        )
        return constructor.newInstance(self._gateway.new_array(lang.Object, 0))

    @property
    def usable(self) -> bool:
        """Whether it can be loaded again."""
        return self.fit and self._jvm.alive

    @contextmanager
    def _calls(self) -> Iterator[None]:
        try:
            with self._jvm.watched():
                yield
        except BaseException:
            self.fit = False
            raise

    def load(self, variation: Variation, simplifications: str) -> Outcome:
        """Starts the variation afresh and looks around; simplifications are named with commas between them."""
        self._load(variation, simplifications, gold=False)
        return self.step("look around")

    def _load(self, variation: Variation, simplifications: str, *, gold: bool) -> None:
        with self._calls():
            if self._agent is not None:
                self._gateway.detach(self._agent)
            problem = self._interface.load(variation.task, variation.number, simplifications, gold)
            if problem:
                raise WorldFailure(f"The simulator cannot load {variation}: {problem}")
            self._agent = self._interface.agentInterface().get()

    def describe(self) -> str:
        """The task, in the simulator's words."""
        with self._calls():
            return str(self._interface.getTaskDescription())

    def step(self, command: str) -> Outcome:
        """Plays a command.

        It goes past the interface to the agent: the interface would also describe the room twice and name
        every thing in it, for a history and a log that nobody reads.
        """
        with self._calls():
            if command in _CONSOLE:
                self._last = self._last._replace(observation=self._interface.step(command))
            else:
                self._last = self._step(command)
        return self._last

    def _step(self, command: str) -> Outcome:
        triple = self._agent.step(command)
        observation, score, completed = triple.toString()[1:-1].rsplit(",", 2)
        self._gateway.detach(triple)
        if self._agent.isInErrorState():
            raise WorldFailure(f"The simulator failed: {self._agent.getErrorStateMessage()}")
        return Outcome(
            observation=observation or _NOTHING_SAID,
            score=round(100 * float(score)),
            completed=completed == "true",
            moves=int(self._agent.getCurIterations()),
        )

    def actions(self) -> list[str]:
        """Every command that would do something now, in alphabetical order; takes about 0.1 s."""
        with self._calls():
            listing = json.loads(self._interface.getValidActionObjectCombinationsJSON())
        return sorted({action["action"] for action in listing["validActions"]})

    def look(self) -> str:
        """The room, without spending time."""
        with self._calls():
            return str(self._interface.freeActionLook())

    def inventory(self) -> str:
        """What is held, without spending time."""
        with self._calls():
            return str(self._interface.freeActionInventory())

    def object_tree(self) -> dict[str, Any]:
        """All things, each inside what holds it."""
        with tempfile.TemporaryDirectory() as folder:
            with self._calls():
                self._interface.getObjectTree(folder)
            tree: dict[str, Any] = json.loads((Path(folder) / "objectTree.json").read_text("utf-8"))
        return tree

    def gold_path(self, variation: Variation, simplifications: str) -> list[str]:
        """The commands by which the simulator would solve the variation; takes up to seconds."""
        self._load(variation, simplifications, gold=True)
        with self._calls():
            return [str(action) for action in self._interface.getGoldActionSequence()]

    def variations(self, task: str) -> dict[str, list[int]]:
        """The task's variations in the simulator's own three sets."""
        with self._calls():
            getattr(self._interface, "taskStr_$eq")(task)
            sets = {
                "train": self._interface.getVariationsTrain(),
                "dev": self._interface.getVariationsDev(),
                "test": self._interface.getVariationsTest(),
            }
            return {name: [int(number) for number in numbers] for name, numbers in sets.items()}

    def close(self) -> None:
        """Lets go of what it holds, in Java as far as that still runs."""
        with suppress(SessionUnknown), self._calls():
            for held in (self._agent, self._interface):
                if held is not None:
                    self._gateway.detach(held)
            self._loader.close()
        self._gateway.close(keep_callback_server=True)
