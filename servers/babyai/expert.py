"""An expert that plans in moves and knows only what the agent has seen.

It reads the mission from the verifier's own tree, takes the first part that is still to be done, and
goes for the nearest thing that fits. What stands in the way comes first: a closed door is gone through,
a locked one sends it for the key, an object is carried off. Where nothing known fits, it explores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrid.core.actions import Actions
from minigrid.envs.babyai.core import verifier

from gym_agents.errors import NotOffered
from servers.babyai.explore import best_look
from servers.babyai.game import Game, Thing
from servers.babyai.moves import Goal, walk
from servers.babyai.paths import first_obstacle, way

_STEPS = {Actions.left: "turn left", Actions.right: "turn right", Actions.forward: "move forward"}
_Avoid = frozenset[int]
"""Locked doors for whose keys the expert is looking already: no way to a key leads through them."""


def next_move(game: Game) -> str:
    """The expert's move from here.

    Raises:
        NotOffered: where its plan ends: nothing is left to explore, or to put down what it carries.
    """
    part = pending(game.level.instrs)
    if isinstance(part, verifier.GoToInstr):
        return _go_to(game, part)
    if isinstance(part, verifier.OpenInstr):
        return _open(game, part)
    if isinstance(part, verifier.PickupInstr):
        return _pick_up(game, part)
    return _put_next(game, part)


def pending(instr: Any) -> Any:
    """The part of the mission that has to be done next.

    "a, then b" begins with a, "a after you b" with b; "a and b" may be done in any order.
    """
    if isinstance(instr, verifier.ActionInstr):
        return instr
    parts = [(instr.instr_a, instr.a_done), (instr.instr_b, instr.b_done)]
    if isinstance(instr, verifier.AfterInstr):
        parts.reverse()
    return pending(next(part for part, done in parts if done != "success"))


def _go_to(game: Game, part: verifier.GoToInstr) -> str:
    if game.carried and _fits(game.carried, part.desc):
        return _put_down(game)  # what is put down is faced
    return _reach(game, _known(game, part.desc), "go to")


def _open(game: Game, part: verifier.OpenInstr) -> str:
    doors = _known(game, part.desc)
    closed = [door for door in doors if not door.body.is_open]
    if closed:
        return _reach(game, closed, "open")
    if not doors and part.strict:
        return _explore(game, through_doors=False)  # any other door that is opened fails the mission
    # Opening is what counts: a door that stands open already is closed first.
    facing = any(door.cell == game.front for door in doors)
    return "toggle" if facing else _reach(game, doors, "go to")


def _pick_up(game: Game, part: verifier.PickupInstr) -> str:
    if game.carried and _fits(game.carried, part.desc):
        return _put_down(game)  # picking up is what counts: an object in hand is put down first
    return _reach(game, _known(game, part.desc), "pick up")


def _put_next(game: Game, part: verifier.PutNextInstr) -> str:
    fixed = _known(game, part.desc_fixed)
    if not fixed:
        return _explore(game)
    if game.carried and _fits(game.carried, part.desc_move):
        return _bring(game, fixed)
    movable = _known(game, part.desc_move)
    path = way(game, _cells(fixed)) or []
    obstacle = first_obstacle(game, path)
    if movable and obstacle and obstacle not in movable:
        return _clear(game, obstacle, path)  # both hands may be needed for it, so it comes first
    if game.carried:
        return _put_down(game, path)
    return _reach(game, movable, "pick up")


def _bring(game: Game, fixed: Sequence[Thing]) -> str:
    """One move towards dropping what is carried next to one of the things."""
    beside = {cell + stride for cell in _cells(fixed) for stride in game.strides}
    if move := _place(game, lambda cell, front: front in beside):
        return move
    path = way(game, _cells(fixed)) or []
    obstacle = first_obstacle(game, path)
    return _clear(game, obstacle, path) if obstacle else _explore(game)


def _put_down(game: Game, path: Sequence[int] = ()) -> str:
    """One move towards dropping what is carried off the path, and where it parts nothing if possible."""

    def parts_nothing(cell: int, front: int) -> bool:
        return front not in path and not _is_passage(game, front)

    move = _place(game, parts_nothing) or _place(game, lambda cell, front: front not in path)
    if move is None:
        raise NotOffered("The expert finds no place to put down what it carries.")
    return move


def _is_passage(game: Game, cell: int) -> bool:
    """Whether an object in the cell would bar a door or part the open cells around it."""
    if any((thing := game.thing_at(cell + stride)) and thing.is_door for stride in game.strides):
        return True
    width = game.size[0]
    ring = (1, width + 1, width, width - 1, -1, -width - 1, -width, 1 - width)
    is_open = [game.is_open(cell + offset) for offset in ring]
    return sum(is_open[i] != is_open[i - 1] for i in range(len(ring))) > 2


def _place(game: Game, goal: Goal) -> str | None:
    """One move towards dropping what is carried in front of a pose that fits; `None` if there is none."""

    def is_empty(front: int) -> bool:
        return bool(game.seen[front]) and game.cells[front] is None

    actions = walk(game, lambda cell, front: is_empty(front) and goal(cell, front))
    if actions is None:
        return None
    return _STEPS[actions[0]] if actions else "drop"


def _reach(game: Game, targets: Sequence[Thing], verb: str, avoid: _Avoid = frozenset()) -> str:
    """One move towards the nearest target; `verb` on it where the way is free."""
    path = way(game, _cells(targets), avoid)
    if path is None:
        return _explore(game, avoid)
    if obstacle := first_obstacle(game, path):
        return _clear(game, obstacle, path, avoid)
    target = next(thing for thing in targets if thing.cell == path[-1])
    if verb == "open" and game.bars(target):
        return _clear(game, target, path, avoid)
    if verb == "pick up" and game.carried:
        return _put_down(game, path)
    return f"{verb} {target.name}"


def _clear(game: Game, obstacle: Thing, path: Sequence[int], avoid: _Avoid = frozenset()) -> str:
    """One move towards getting the path's obstacle out of the way."""
    assert obstacle.cell is not None
    if not obstacle.is_door:
        # A free way may be found by looking around the room before anything is moved.
        look = best_look(game, through_doors=False)
        return look or (_put_down(game, path) if game.carried else f"pick up {obstacle.name}")
    if not game.bars(obstacle):
        return f"go through {obstacle.name}"
    keys = [thing for thing in game.things.values() if thing.cell and thing.is_key_to(obstacle)]
    return _reach(game, keys, "pick up", avoid | {obstacle.cell})


def _explore(game: Game, avoid: _Avoid = frozenset(), *, through_doors: bool = True) -> str:
    """One move towards seeing more, by clearing an obstacle where no free way leads to a better view."""
    if move := best_look(game, through_doors=through_doors):
        return move
    unseen = {cell for cell, seen in enumerate(game.seen) if not seen}
    path = way(game, unseen, avoid)
    obstacle = first_obstacle(game, path) if path else None
    if path is None or obstacle is None:
        raise NotOffered("The expert has nothing left to explore.")
    return _clear(game, obstacle, path, avoid)


def _known(game: Game, desc: verifier.ObjDesc) -> list[Thing]:
    """The things that fit the description, have been seen, and are not in hand."""
    return [thing for thing in game.things.values() if thing.cell is not None and _fits(thing, desc)]


def _fits(thing: Thing, desc: verifier.ObjDesc) -> bool:
    return any(thing.body is body for body in desc.obj_set)


def _cells(things: Sequence[Thing]) -> set[int]:
    return {thing.cell for thing in things if thing.cell is not None}
