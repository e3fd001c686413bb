"""Plain data of what a world hands out: finite numbers, whole Unicode, copies that nobody else holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from gym_agents.protocol import clean


def plain(value: Any) -> Any:
    """A deep copy of `value` in JSON's own types, so that later changes of the original do not show.

    Raises:
        ValueError: if a number is not finite.
        TypeError: if a value has no JSON form.

    >>> plain({"counts": (1, 2.5), "name": None})
    {'counts': [1, 2.5], 'name': None}
    """
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _finite(float(value))
    if isinstance(value, Mapping):
        return {clean(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    raise TypeError(f"{value!r} is a {type(value).__name__}, which has no JSON form")


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{number} is not a finite number")
    return number
