"""A level being played one low-level action at a time, and what its player has seen of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from minigrid.core.actions import Actions
from minigrid.minigrid_env import MiniGridEnv

from servers.babyai.sight import Sight, field_of_view


@dataclass(eq=False)
class Thing:
    """An object or a door that has been seen; its name is its own for the whole episode."""

    name: str
    body: Any
    """Minigrid's object: `type`, `color`, and for doors `is_open`, `is_locked`."""
    cell: int | None
    """Where it stands; `None` in the agent's hands."""

    @property
    def is_door(self) -> bool:
        """Doors stay where they are; everything else can be carried."""
        return bool(self.body.type == "door")

    def is_key_to(self, door: Thing) -> bool:
        """Whether this is a key that fits the door."""
        return bool(self.body.type == "key" and self.body.color == door.body.color)


class Game:
    """The level, the agent's memory of it, and the verifier's last word."""

    def __init__(self, level: Any) -> None:
        self.level = level
        self.size: tuple[int, int] = (level.width, level.height)
        self.strides = (1, level.width, -1, -level.width)
        """What one step adds to a cell's number, by direction."""
        self.cells: list[Any] = level.grid.grid
        """What stands in each cell of the whole grid."""
        self.seen = bytearray(len(self.cells))
        self.things: dict[str, Thing] = {}
        """Everything seen so far, by name, in the order in which it was first seen."""
        self.status: Literal["continue", "success", "failure"] = "continue"
        self.steps = 0
        self.view: list[Sight] = []
        """The cells in view."""
        self.in_sight: list[tuple[Thing, Sight]] = []
        """The things in view, from near to far."""
        self._by_body: dict[int, Thing] = {}
        self._counts: Counter[str] = Counter()
        if level.carrying:
            self._meet(level.carrying, None)
        self._look()

    @property
    def cell(self) -> int:
        """The cell in which the agent stands."""
        x, y = self.level.agent_pos
        return int(x) + self.size[0] * int(y)

    @property
    def direction(self) -> int:
        """Where the agent looks: 0 right, 1 down, 2 left, 3 up."""
        return int(self.level.agent_dir)

    @property
    def front(self) -> int:
        """The cell right in front of the agent."""
        return self.cell + self.strides[self.direction]

    @property
    def carried(self) -> Thing | None:
        """What the agent holds."""
        return self._by_body[id(self.level.carrying)] if self.level.carrying else None

    @property
    def over(self) -> bool:
        """The verifier has spoken: nothing can be earned any more."""
        return self.status != "continue"

    @property
    def score(self) -> float:
        """1 at once, down to 0.1 at the level's own step limit and after it; 0 without success.

        The formula is Minigrid's `1 - 0.9 * steps / max_steps` with the ratio clamped at 1.
        """
        late = min(1.0, self.steps / self.level.max_steps)
        return 1 - 0.9 * late if self.status == "success" else 0.0

    def is_open(self, cell: int) -> bool:
        """Whether the cell has been seen and can be walked on."""
        body = self.cells[cell]
        return bool(self.seen[cell]) and (body is None or body.can_overlap())

    def is_clear(self, cell: int) -> bool:
        """Whether light passes through the cell."""
        body = self.cells[cell]
        return body is None or bool(body.see_behind())

    def bars(self, door: Thing) -> bool:
        """Whether the door is locked and the agent holds no key to it."""
        return bool(door.body.is_locked) and not (self.carried and self.carried.is_key_to(door))

    def thing_at(self, cell: int) -> Thing | None:
        """The thing in a cell, if it has been seen."""
        return self._by_body.get(id(self.cells[cell]))

    def act(self, action: Actions) -> None:
        """Plays one low-level action, verifies the mission and looks around.

        It does what the level's own `step` does, but keeps the verifier's word, which `step` folds into a
        reward, and leaves out the level's step limit.
        """
        touched = self.thing_at(self.front) if action == Actions.toggle else None
        MiniGridEnv.step(self.level, action)
        if action == Actions.drop:
            self.level.update_objs_poss()
        self.status = self.level.instrs.verify(action)
        self.steps = self.level.step_count
        if touched and self.cells[self.front] is not touched.body:
            self._forget(touched)
        self._look()

    def _look(self) -> None:
        """Marks what is in view as seen; new things are named from near to far."""
        self.view = field_of_view(self.size, self.cell, self.direction, self.is_clear)
        for sight in self.view:
            self.seen[sight.cell] = 1
        if self.level.carrying:
            self._meet(self.level.carrying, None)
        stands = [sight for sight in self.view if getattr(self.cells[sight.cell], "type", "wall") != "wall"]
        self.in_sight = [
            (self._meet(self.cells[sight.cell], sight.cell), sight) for sight in sorted(stands, key=_nearness)
        ]

    def _meet(self, body: Any, cell: int | None) -> Thing:
        """Notes where a thing is, and names it when it is new."""
        thing = self._by_body.get(id(body))
        if thing is None:
            kind = f"{body.color} {body.type}"
            self._counts[kind] += 1
            thing = Thing(f"{kind} {self._counts[kind]}", body, cell)
            self._by_body[id(body)] = self.things[thing.name] = thing
        thing.cell = cell
        return thing

    def _forget(self, thing: Thing) -> None:
        """A box that was opened is gone; its name is not given again."""
        del self._by_body[id(thing.body)], self.things[thing.name]


def _nearness(sight: Sight) -> tuple[int, int, int]:
    """Order from near to far: by steps, then by depth, then from left to right."""
    return sight.ahead + abs(sight.right), sight.ahead, sight.right
