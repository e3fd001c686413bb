"""What may cross the wire: well-formed Unicode, finite numbers, containers that nobody else holds."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    r"""The text with every lone surrogate replaced by U+FFFD; all else is kept, NUL included.

    >>> clean("caf\u00e9 \x00 \ud83d!") == "caf\u00e9 \x00 \ufffd!"
    True
    """
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


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
