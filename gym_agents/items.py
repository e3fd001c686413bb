"""Items: one task instance each, a scenario's numbering and a number, written `sciworld_123`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gym_agents.errors import ItemError


def item_id(numbering: str, item: int) -> str:
    """The item's name; the number follows the last underscore.

    >>> item_id("textcraft-sorted", 12)
    'textcraft-sorted_12'
    """
    return f"{numbering}_{item}"


def item_number(name: str, numbering: str) -> int:
    """The number in an item's name.

    Raises:
        ItemError: if the name is not of this numbering or does not end in a number.

    >>> item_number("babyai_16", "babyai")
    16
    """
    stem, _, number = name.rpartition("_")
    if not (number.isascii() and number.isdigit()):
        raise ItemError(f"{name!r} is not an item id: it must end in '_' and a number.")
    if stem != numbering:
        raise ItemError(
            f"{name!r} is in the numbering {stem!r}, but this world counts in {numbering!r}: "
            "the same number would mean another task."
        )
    return int(number)


def load_items(source: str | Path | Sequence[str], numbering: str) -> tuple[int, ...]:
    """Item numbers from a list of ids, or from a JSON file of ids in upstream's form.

    The file holds a list of names or of objects with an `item_id`.

    Raises:
        ItemError: naming every id that does not fit, or the file where it cannot be read.
    """
    names = read_ids(Path(source)) if isinstance(source, (str, Path)) else source
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ItemError(
            f"Items are a list of ids such as {item_id(numbering, 12)!r}, or a file of them, not {names!r}."
        )
    numbers, problems = [], []
    for name in names:
        try:
            numbers.append(item_number(name, numbering))
        except ItemError as error:
            problems.append(error.message)
    if problems:
        raise ItemError("\n".join(problems))
    if not numbers:
        raise ItemError("The list of items is empty.")
    return tuple(numbers)


def read_ids(path: Path) -> list[str]:
    """The ids in a JSON file, whatever their numbering.

    Raises:
        ItemError: if it cannot be read, or is no list of ids.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [row if isinstance(row, str) else row["item_id"] for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ItemError(f"{path} is not a JSON list of item ids: {error!r}") from error


def pick(items: Sequence[int], seed: int) -> int:
    """The item that a seed picks: uniform over `items`, and a function of the two alone."""
    return items[int(np.random.default_rng(seed).integers(len(items)))]
