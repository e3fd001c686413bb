"""Where to look next: the move that brings the most unseen cells into view for each turn spent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from minigrid.core.actions import Actions

from servers.babyai.game import Game, Thing
from servers.babyai.moves import Refused, plan
from servers.babyai.sight import DEPTH, SIDE, field_of_view

_MOST = DEPTH * (2 * SIDE + 1)
"""No view holds more cells."""

_PATIENCE = 4
"""Turns to think ahead once any better view is found."""


class _Pose(NamedTuple):
    """Where the agent could stand and look after some turns, and the first move on the way there."""

    turns: int
    move: str
    cell: int
    direction: int


def best_look(game: Game, *, through_doors: bool = True) -> str | None:
    """The first move towards the view that promises the most unseen cells per turn; `None` if none does."""
    best, best_rate = None, 0.0
    for pose in _poses(game, through_doors):
        if best_rate >= _MOST / pose.turns or (best and pose.turns > _PATIENCE):
            break
        rate = _promise(game, pose) / pose.turns
        if rate > best_rate:
            best, best_rate = pose.move, rate
    return best


def _poses(game: Game, through_doors: bool) -> Iterator[_Pose]:
    """Poses in order of the turns they take: single steps from here, and what one long move leads to."""
    queue = deque(_single_steps(game, _Pose(0, "", game.cell, game.direction)))
    queue.extend(pose for thing in game.things.values() if (pose := _long_move(game, thing, through_doors)))
    known = {(game.cell, game.direction)}
    while queue:
        pose = queue.popleft()
        if pose[2:] not in known:
            known.add(pose[2:])
            yield pose
            queue.extend(_single_steps(game, pose))


def _single_steps(game: Game, pose: _Pose) -> Iterator[_Pose]:
    turns, first, cell, direction = pose
    yield _Pose(turns + 1, first or "turn left", cell, (direction - 1) % 4)
    yield _Pose(turns + 1, first or "turn right", cell, (direction + 1) % 4)
    ahead = cell + game.strides[direction]
    if game.is_open(ahead):
        yield _Pose(turns + 1, first or "move forward", ahead, direction)


def _long_move(game: Game, thing: Thing, through_doors: bool) -> _Pose | None:
    """Where `go to` an object or `go through` a door leads."""
    if thing.is_door and not through_doors:
        return None
    move = f"{'go through' if thing.is_door else 'go to'} {thing.name}"
    try:
        actions = plan(game, move)
    except Refused:
        return None
    return _Pose(1, move, *_end(game, actions, thing))


def _end(game: Game, actions: list[Actions], thing: Thing) -> tuple[int, int]:
    """The pose in which the actions leave the agent; an object behind a door stops it in the doorway."""
    cell, direction = game.cell, game.direction
    for action in actions:
        ahead = cell + game.strides[direction]
        if action == Actions.forward and (ahead == thing.cell or not game.seen[ahead] or game.is_open(ahead)):
            cell = ahead
        elif action in (Actions.left, Actions.right):
            direction = (direction + (1 if action == Actions.right else -1)) % 4
    return cell, direction


def _promise(game: Game, pose: _Pose) -> int:
    """How many unseen cells would come into view, if every unseen cell inside a room were empty."""

    def is_clear(cell: int) -> bool:
        if cell == pose.cell:
            return True
        if not game.seen[cell]:
            return not _on_wall_line(game, cell)
        return game.is_clear(cell)

    sights = field_of_view(game.size, pose.cell, pose.direction, is_clear)
    return sum(not game.seen[sight.cell] for sight in sights)


def _on_wall_line(game: Game, cell: int) -> bool:
    """Rooms are squares in a grid, so walls can only stand on its lines."""
    side: int = game.level.room_size - 1
    return cell % game.size[0] % side == 0 or cell // game.size[0] % side == 0
