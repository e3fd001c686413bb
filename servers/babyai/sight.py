"""What an agent sees: Minigrid's rule of light, on the whole grid's cells instead of a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

DEPTH = 7
"""Rows of cells in view, the agent's own included."""
SIDE = 3
"""Columns in view on each side."""
VECTORS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""What one step changes in (x, y), by direction: right, down, left, up."""


class Sight(NamedTuple):
    """One cell in view. Cells are counted row by row: `x + width * y`."""

    cell: int
    ahead: int
    right: int
    """Negative to the left."""


def field_of_view(
    size: tuple[int, int], cell: int, direction: int, is_clear: Callable[[int], bool]
) -> list[Sight]:
    """The cells seen from `cell`, nearest row first.

    Light starts at the agent and spreads row by row, sideways and ahead, through cells that are clear; a
    cell that is not is seen itself but shuts off the light.
    """
    sights: list[Sight] = []
    lit = [right == 0 for right in range(-SIDE, SIDE + 1)]
    for ahead in range(DEPTH):
        row = _row(size, cell, direction, ahead)
        lit, next_lit = _spread(lit, [at >= 0 and is_clear(at) for at in row])
        sights += [
            Sight(at, ahead, column - SIDE) for column, at in enumerate(row) if lit[column] and at >= 0
        ]
        lit = next_lit
    return sights


def _row(size: tuple[int, int], cell: int, direction: int, ahead: int) -> list[int]:
    """The row's cells from left to right; -1 outside the grid."""
    width, height = size
    (fx, fy), (rx, ry) = VECTORS[direction], VECTORS[(direction + 1) % 4]
    x, y = cell % width + fx * ahead, cell // width + fy * ahead
    places = [(x + rx * right, y + ry * right) for right in range(-SIDE, SIDE + 1)]
    return [i + width * j if 0 <= i < width and 0 <= j < height else -1 for i, j in places]


def _spread(lit: list[bool], clear: list[bool]) -> tuple[list[bool], list[bool]]:
    """The row's light after it went sideways, and the light that it hands to the next row."""
    lit, onward = lit[:], [False] * len(lit)
    for columns, side in ((range(len(lit) - 1), 1), (range(len(lit) - 1, 0, -1), -1)):
        for column in columns:
            if lit[column] and clear[column]:
                lit[column + side] = onward[column + side] = onward[column] = True
    return lit, onward
