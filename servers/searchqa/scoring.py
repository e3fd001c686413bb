"""When an answer is right: SQuAD's exact match and F1, over all accepted answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and spare blanks, as in SQuAD (arXiv 1606.05250, section 6.1).

    Nothing else is done to Unicode: a dash is not a hyphen, and two forms of an accent are two letters.

    >>> normalize("The U.S.A.,  a country")
    'usa country'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Sequence[str]) -> bool:
    """Whether the answer equals any of the accepted ones, once both are normalized."""
    return normalize(answer) in {normalize(gold) for gold in accepted}


def f1(answer: str, accepted: Sequence[str]) -> float:
    """The best F1 of the answer's words against those of an accepted answer, within [0, 1].

    >>> f1("Marie Curie", ["Curie"])
    0.6666666666666666
    """
    return max(_f1(normalize(answer).split(), normalize(gold).split()) for gold in accepted)


def _f1(answer: list[str], gold: list[str]) -> float:
    """2 * precision * recall / (precision + recall), which is 2 * shared / (all words of both)."""
    if not answer or not gold:
        return float(answer == gold)
    return 2 * (Counter(answer) & Counter(gold)).total() / (len(answer) + len(gold))
