"""The text space."""

from __future__ import annotations

import pickle

import pytest

from gym_agents.spaces import UnicodeText


@pytest.mark.parametrize(
    "text", ["", "a b\nc.", "caf\u00e9 e\u0301", "\U0001f600", "nul \x00", "half \ud83d"]
)
def test_any_unicode_is_inside(text: str) -> None:
    """Farama-Foundation/Gymnasium PR 1653, and its default `Text`, which refuses blanks and accents."""
    assert UnicodeText(20).contains(text)


def test_what_is_not_a_text_or_too_long_is_outside() -> None:
    space = UnicodeText(3)
    assert not space.contains("four")
    assert not space.contains(3)


def test_bytes_count_where_a_limit_of_them_is_given() -> None:
    """A reply is limited in bytes of UTF-8: what the space holds, `step` takes."""
    space = UnicodeText(4, max_bytes=4)
    assert space.contains("four")
    assert space.contains("\u00e9\u00e9")
    assert not space.contains("\u00e9\u00e9e")
    assert UnicodeText(4).contains("\u00e9\u00e9e")
    assert space != UnicodeText(4)


def test_a_space_holds_its_own_samples_and_the_same_seed_draws_the_same() -> None:
    for seed in range(100):
        first, second = UnicodeText(500, seed=seed), UnicodeText(500, seed=seed)
        sample = first.sample()
        assert first.contains(sample)
        assert sample == second.sample()
    assert len({UnicodeText(500, seed=seed).sample() for seed in range(20)}) > 15


def test_equality_and_pickling() -> None:
    space = UnicodeText(7)
    assert pickle.loads(pickle.dumps(space)) == space
    assert space == UnicodeText(7)
    assert space != UnicodeText(8)
