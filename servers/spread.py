"""Held-out items, spread over a list in which neighbours are alike."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence


def spread(items: Sequence[int], count: int, rng: random.Random) -> tuple[int, ...]:
    """One item, drawn by `rng`, from each of `count` runs of nearly equal length that make up the list."""
    edges = [run * len(items) // count for run in range(count + 1)]
    return tuple(items[rng.randrange(low, high)] for low, high in itertools.pairwise(edges))
