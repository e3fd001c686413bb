"""Ways over what has been seen, obstacles included, and what stands in them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from servers.babyai.game import Game, Thing

_CLOSED_DOOR, _OBJECT, _LOCKED_DOOR = 2, 12, 30
"""What an obstacle costs, in steps: about the moves that it takes to clear it, made a little dearer."""


def way(game: Game, targets: Collection[int], avoid: frozenset[int] = frozenset()) -> list[int] | None:
    """The cheapest cells from the agent's own to one of the targets, which need not be open themselves.

    Closed doors, locked doors and objects may be crossed at a cost, but none in `avoid`.
    """
    queue = [(0, game.cell)]
    costs, came = {game.cell: 0}, {game.cell: game.cell}
    while queue:
        cost, cell = heapq.heappop(queue)
        if cell in targets and cell != game.cell:
            return _trace(came, cell)
        if cost > costs[cell] or not game.seen[cell]:
            continue
        for neighbour, price in _neighbours(game, cell, targets):
            total = cost + price
            if neighbour not in avoid and total < costs.get(neighbour, 1 << 30):
                costs[neighbour], came[neighbour] = total, cell
                heapq.heappush(queue, (total, neighbour))
    return None


def first_obstacle(game: Game, path: list[int]) -> Thing | None:
    """The first thing that bars the path before its last cell."""
    return next((game.thing_at(cell) for cell in path[1:-1] if not game.is_open(cell)), None)


def _neighbours(game: Game, cell: int, targets: Collection[int]) -> Iterator[tuple[int, int]]:
    """The cells that border on `cell`, each with the price of stepping onto it."""
    for stride in game.strides:
        neighbour = cell + stride
        if neighbour in targets or game.is_open(neighbour):
            yield neighbour, 1
        elif game.seen[neighbour] and (thing := game.thing_at(neighbour)):
            yield neighbour, _price(game, thing)


def _price(game: Game, thing: Thing) -> int:
    if not thing.is_door:
        return _OBJECT
    return _LOCKED_DOOR if game.bars(thing) else _CLOSED_DOOR


def _trace(came: dict[int, int], cell: int) -> list[int]:
    path = [cell]
    while came[path[-1]] != path[-1]:
        path.append(came[path[-1]])
    return path[::-1]
