"""A text space that holds any Unicode."""

from __future__ import annotations

import string
from typing import Any

import gymnasium

from gym_agents.protocol import clean

_ALPHABET = string.printable[:94] + " \n\u00e9\u00df\u4e16\U0001f600"


class UnicodeText(gymnasium.spaces.Text):
    """All texts of up to `max_length` characters, and of up to so many bytes of UTF-8 where a limit is given.

    Gymnasium's own `Text` knows a fixed character set; observations and replies know none. Samples are
    drawn from a small alphabet that holds blanks, newlines, accents and an emoji.
    """

    def __init__(self, max_length: int, seed: int | None = None, *, max_bytes: int | None = None) -> None:
        super().__init__(max_length=max_length, min_length=0, charset=_ALPHABET, seed=seed)
        self.max_bytes = max_bytes

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A text of up to 64 characters of the small alphabet; masks are not supported."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither a mask nor a probability.")
        length = int(self.np_random.integers(min(self.max_length, 64) + 1))
        picks = self.np_random.integers(len(_ALPHABET), size=length)
        return "".join(_ALPHABET[pick] for pick in picks)

    def contains(self, x: Any) -> bool:
        """True for every text that is not too long."""
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        return self.max_bytes is None or len(clean(x).encode()) <= self.max_bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and self._limits == other._limits

    def __hash__(self) -> int:
        return hash((UnicodeText, self._limits))

    @property
    def _limits(self) -> tuple[int, int | None]:
        return self.max_length, self.max_bytes

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"
