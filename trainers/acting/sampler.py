"""Which items come next: epochs over a shuffle, each a function of the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np


@dataclass(frozen=True)
class Draw:
    """One item drawn for a group of episodes."""

    number: int
    """How many were drawn before it; with several samplers, a number that none of the others gives."""
    item: int
    seed: int
    """Of the environment, shared by the group."""


class ItemSampler:
    """Endless draws without replacement: each item once an epoch, in an order that changes with the epoch.

    Its whole state is `drawn`, the number of draws made.

    Args:
        items: what is drawn from.
        seed: of the order, and of the seeds that are drawn with the items.
        drawn: how many draws were made before.
        turn: its place, from 0, among `turns` samplers whose draws need numbers of their own.
    """

    def __init__(
        self, items: Sequence[int], seed: int, drawn: int = 0, *, turn: int = 0, turns: int = 1
    ) -> None:
        self.items = tuple(items)
        self.seed = seed
        self.drawn = drawn
        self._turn = turn
        self._turns = turns

    def next(self, count: int) -> list[Draw]:
        """The next `count` draws."""
        numbers = range(self.drawn, self.drawn + count)
        self.drawn += count
        return [self._draw(number) for number in numbers]

    def _draw(self, number: int) -> Draw:
        epoch, position = divmod(number, len(self.items))
        item = self.items[_shuffle(len(self.items), self.seed, epoch)[position]]
        own = number * self._turns + self._turn
        seed = int(np.random.SeedSequence([self.seed, own]).generate_state(1)[0])
        return Draw(own, item, seed)


@lru_cache(maxsize=4)
def _shuffle(count: int, seed: int, epoch: int) -> list[int]:
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(count).tolist()
    return order
