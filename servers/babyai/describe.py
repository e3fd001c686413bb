"""The scene in words and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servers.babyai.game import Game, Thing
from servers.babyai.sight import Sight


def describe(game: Game, passed: Sequence[Thing] = ()) -> str:
    """What is in view, one thing a line from near to far, what is carried, and what was first seen in passing.

    Distances are in steps: `1 ahead` is right in front of the agent, `1 left` right beside it.
    """
    lines = [f"{_label(thing)}: {_place(sight)}" for thing, sight in game.in_sight if sight.cell != game.cell]
    lines += _wall_ahead(game)
    if game.carried:
        lines.append(f"You carry {game.carried.name}")
    if passed:
        lines.append(f"On the way you saw {'; '.join(map(_label, passed))}")
    return "\n".join(lines) or "You see only floor"


def view(game: Game) -> dict[str, Any]:
    """The whole state as plain data, for a page to draw; `seen` tells what the agent knows of it."""
    width, height = game.size
    cells = [
        {"kind": body.type, "colour": body.color, **_door_state(body)} if body else None
        for body in game.cells
    ]
    return {
        "mission": game.level.mission,
        "width": width,
        "height": height,
        "cells": cells,
        "seen": list(map(bool, game.seen)),
        "in_view": [sight.cell for sight in game.view],
        "names": {thing.name: thing.cell for thing in game.things.values()},
        "agent": {"cell": game.cell, "direction": game.direction},
        "carried": game.carried.name if game.carried else None,
        "steps": game.steps,
        "max_steps": game.level.max_steps,
    }


def _label(thing: Thing) -> str:
    return ", ".join((thing.name, *_door_state(thing.body).values()))


def _door_state(body: Any) -> dict[str, str]:
    if body.type != "door":
        return {}
    return {"state": "open" if body.is_open else "locked" if body.is_locked else "closed"}


def _place(sight: Sight) -> str:
    side = f"{abs(sight.right)} {'right' if sight.right > 0 else 'left'}" if sight.right else ""
    ahead = f"{sight.ahead} ahead" if sight.ahead else ""
    return f"{ahead} {side}".strip()


def _wall_ahead(game: Game) -> list[str]:
    """The wall straight ahead, where nothing stands before it."""
    for sight in game.view:
        body = game.cells[sight.cell] if sight.right == 0 and sight.ahead else None
        if body is not None:
            return [f"wall: {sight.ahead} ahead"] if body.type == "wall" else []
    return []
