"""A text space that holds any Unicode."""

from __future__ import annotations

import string
from typing import Any

import gymnasium

_ALPHABET = string.printable[:94] + " \n\u00e9\u00df\u4e16\U0001f600"


class UnicodeText(gymnasium.spaces.Text):
    """All texts of up to `max_length` characters.

    Gymnasium's own `Text` knows a fixed character set; observations and replies know none. Samples are
    drawn from a small alphabet that holds blanks, newlines, accents and an emoji.
    """

    def __init__(self, max_length: int, seed: int | None = None) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=_ALPHABET, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A text of up to 64 characters of the small alphabet; masks are not supported."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither a mask nor a probability.")
        length = int(self.np_random.integers(min(self.max_length, 64) + 1))
        picks = self.np_random.integers(len(_ALPHABET), size=length)
        return "".join(_ALPHABET[pick] for pick in picks)

    def contains(self, x: Any) -> bool:
        """True for every text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"
