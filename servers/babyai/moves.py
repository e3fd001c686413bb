"""The moves: each is a walk over what has been seen, and at most a touch at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from minigrid.core.actions import Actions

from servers.babyai.game import Game, Thing

Goal = Callable[[int, int], bool]
"""Whether a walk may end in a cell, looking at the cell in front of it: `(cell, front)`."""

_Pose = tuple[int, int]
"""A cell and a direction."""
_Came = dict[_Pose, tuple[_Pose, Actions] | None]
"""For each pose that has been reached: from where, and how."""


class Refused(Exception):
    """The move cannot be made now; its text is what the agent is told, and nothing has changed."""


def play(game: Game, command: str) -> None:
    """Makes one move, stopping early when the mission ends.

    Raises:
        Refused: if the move is impossible from here.
    """
    for action in plan(game, command):
        if game.over or (action == Actions.forward and not game.is_open(game.front)):
            break
        game.act(action)


def plan(game: Game, command: str) -> list[Actions]:
    """The low-level actions that make up a move.

    Raises:
        Refused: if the move is impossible from here.
    """
    if command in _ALONE:
        return _ALONE[command](game)
    verb, name = next((verb, command[len(verb) + 1 :]) for verb in _ON_THING if command.startswith(verb))
    return _ON_THING[verb](game, find(game, name))


def find(game: Game, name: str) -> Thing:
    """The thing with this name; the number may be left out where only one is known.

    Raises:
        Refused: if none or several fit.
    """
    if name in game.things:
        return game.things[name]
    fitting = [known for known in game.things if known.rpartition(" ")[0] == name]
    if len(fitting) > 1:
        raise Refused(f"Which one: {', '.join(fitting)}?")
    if not fitting:
        raise Refused(f"You have not seen {name}.")
    return game.things[fitting[0]]


def valid_moves(game: Game) -> list[str]:
    """Every move that is possible now."""
    named = [f"{verb} {name}" for name in game.things for verb in _ON_THING]
    return [move for move in (*_ALONE, *named) if _is_possible(game, move)]


def _is_possible(game: Game, move: str) -> bool:
    try:
        plan(game, move)
    except Refused:
        return False
    return True


def walk(game: Game, goal: Goal) -> list[Actions] | None:
    """The shortest walk, turns counted, over open cells that have been seen; `None` if there is none."""
    start = (game.cell, game.direction)
    came: _Came = {start: None}
    for cell, direction in _spread(game, came):
        if goal(cell, cell + game.strides[direction]):
            return _trace(came, (cell, direction))
    return None


def _spread(game: Game, came: _Came) -> Iterator[_Pose]:
    """The poses that can be reached, breadth first, noted in `came` as they are found."""
    queue = deque(came)
    while queue:
        pose = cell, direction = queue.popleft()
        yield pose
        ahead = cell + game.strides[direction]
        steps = [(Actions.forward, (ahead, direction))] if game.is_open(ahead) else []
        steps += [(Actions.left, (cell, (direction - 1) % 4)), (Actions.right, (cell, (direction + 1) % 4))]
        for action, following in steps:
            if following not in came:
                came[following] = (pose, action)
                queue.append(following)


def _trace(came: _Came, pose: _Pose) -> list[Actions]:
    actions: list[Actions] = []
    while (step := came[pose]) is not None:
        pose, action = step
        actions.append(action)
    return actions[::-1]


def _approach(game: Game, thing: Thing) -> list[Actions]:
    if thing.cell is None:
        raise Refused(f"You carry {thing.name}.")
    actions = walk(game, lambda cell, front: front == thing.cell)
    if actions is None:
        raise Refused(f"There is no free path to {thing.name}.")
    return actions


def _forward(game: Game) -> list[Actions]:
    if not game.is_open(game.front):
        thing = game.thing_at(game.front)
        raise Refused(f"{thing.name if thing else 'A wall'} is in the way.")
    return [Actions.forward]


def _drop(game: Game) -> list[Actions]:
    if game.carried is None:
        raise Refused("You carry nothing.")
    if game.cells[game.front] is not None:
        raise Refused("The cell in front of you is taken.")
    return [Actions.drop]


def _toggle(game: Game) -> list[Actions]:
    thing = game.thing_at(game.front)
    if thing is None or thing.body.type not in ("door", "box"):
        raise Refused("There is no door or box right in front of you.")
    _check_lock(game, thing)
    return [Actions.toggle]


def _go_to(game: Game, thing: Thing) -> list[Actions]:
    actions = _approach(game, thing)
    if not actions:
        raise Refused(f"You already stand in front of {thing.name}.")
    return actions


def _pick_up(game: Game, thing: Thing) -> list[Actions]:
    if thing.is_door:
        raise Refused("A door cannot be picked up.")
    if game.carried:
        raise Refused(f"You carry {game.carried.name}; drop it first.")
    return [*_approach(game, thing), Actions.pickup]


def _open(game: Game, thing: Thing) -> list[Actions]:
    if thing.body.type not in ("door", "box"):
        raise Refused(f"{thing.name} cannot be opened.")
    if thing.is_door and thing.body.is_open:
        raise Refused(f"{thing.name} is open.")
    _check_lock(game, thing)
    return [*_approach(game, thing), Actions.toggle]


def _go_through(game: Game, thing: Thing) -> list[Actions]:
    if not thing.is_door:
        raise Refused(f"{thing.name} is not a door.")
    _check_lock(game, thing)
    touch = [] if thing.body.is_open else [Actions.toggle]
    return [*_approach(game, thing), *touch, Actions.forward, Actions.forward]


def _check_lock(game: Game, thing: Thing) -> None:
    if thing.is_door and game.bars(thing):
        raise Refused(f"{thing.name} is locked; you need a {thing.body.color} key in hand.")


_ALONE: dict[str, Callable[[Game], list[Actions]]] = {
    "turn left": lambda game: [Actions.left],
    "turn right": lambda game: [Actions.right],
    "move forward": _forward,
    "drop": _drop,
    "toggle": _toggle,
}
_ON_THING: dict[str, Callable[[Game, Thing], list[Actions]]] = {
    "go to": _go_to,
    "pick up": _pick_up,
    "open": _open,
    "go through": _go_through,
}
