"""Exact match and F1 against what SQuAD's published script gives, worked out by hand."""

from __future__ import annotations

import unicodedata

import pytest

from servers.searchqa.scoring import exact_match, f1, normalize


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles", "beatles"),
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("A", ""),
        ("THE", ""),
        ("U.S.A.", "usa"),
        ("1914-1918", "19141918"),
        ("1914\u20131918", "1914\u20131918"),
        ("$1,000", "1000"),
        ("10%", "10"),
        ("rock-and-roll", "rockandroll"),
        ("  New \n York\t", "new york"),
        ("don't", "dont"),
        ("don\u2019t", "don\u2019t"),
        ("", ""),
        ("...", ""),
        ("a.b", "ab"),
        ("a-the", "athe"),
        ("\u00c9mile", "\u00e9mile"),
        ("yes", "yes"),
        ("Yes, it did", "yes it did"),
    ],
)
def test_normal_form(text: str, normal: str) -> None:
    """deepset-ai/haystack PR 2508: SQuAD's normaliser leaves an en dash where it is."""
    assert normalize(text) == normal


@pytest.mark.parametrize(
    ("answer", "accepted", "right"),
    [
        ("paris", ["Paris"], True),
        ("The Paris.", ["Paris"], True),
        ("Paris, France", ["Paris"], False),
        ("1000", ["$1,000"], True),
        ("10", ["10%"], True),
        ("1914-1918", ["1914\u20131918"], False),
        ("rock and roll", ["rock-and-roll"], False),
        ("yes", ["Yes, it did"], False),
        ("no", ["yes"], False),
        ("NYC", ["New York", "nyc"], True),
        ("", ["the"], True),
        ("", ["x"], False),
        ("ten", ["10"], False),
        (unicodedata.normalize("NFD", "\u00c9mile"), [unicodedata.normalize("NFC", "\u00c9mile")], False),
    ],
)
def test_exact_match_over_all_aliases(answer: str, accepted: list[str], right: bool) -> None:
    assert exact_match(answer, accepted) is right


@pytest.mark.parametrize(
    ("answer", "accepted", "score"),
    [
        ("Marie Curie", ["Marie Curie"], 1.0),
        ("Marie Sk\u0142odowska Curie", ["Marie Curie"], 4 / 5),
        ("Curie", ["Marie Curie", "the Curie"], 1.0),
        ("Pierre", ["Marie Curie"], 0.0),
        ("", ["Marie"], 0.0),
        ("the", ["a"], 1.0),
        ("x x y", ["y y z"], 1 / 3),
        ("new new york", ["new york"], 4 / 5),
    ],
)
def test_f1_is_the_best_over_all_aliases(answer: str, accepted: list[str], score: float) -> None:
    assert f1(answer, accepted) == pytest.approx(score)
