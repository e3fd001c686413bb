"""BM25 over a memory-mapped index."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from bm25s.stopwords import STOPWORDS_EN

from servers.searchqa.passages import Passage, PassageStore
from servers.searchqa.retrieval import Retriever

KIND = "bm25"
TITLE_WEIGHT = 3
"""A word of the title counts like so many of the text, so that an article is found by its name."""
_WORD = re.compile(r"\w\w+")
_STOP = frozenset(STOPWORDS_EN)
INSTANT = 50_000
"""Up to so many passages a search is over in a millisecond or less."""


def words(text: str, stemmer: Any) -> list[str]:
    """The stemmed words of a text, without one-letter words and English stop words."""
    found: list[str] = stemmer.stemWords([word for word in _WORD.findall(text.lower()) if word not in _STOP])
    return found


class BM25(Retriever):
    """Finds passages by their words (Robertson and Zaragoza, 2009, in Lucene's form), ties by number."""

    def __init__(self, folder: Path) -> None:
        self._index = bm25s.BM25.load(folder, mmap=True)
        self._passages = PassageStore(folder)
        self._stemmer = Stemmer.Stemmer("english")
        self._stemming = threading.Lock()
        self.name = f"bm25s {bm25s.__version__} over {len(self._passages)} passages"
        self.instant = len(self._passages) <= INSTANT

    def search(self, query: str, k: int) -> list[Passage]:
        """The best passages by their scores."""
        with self._stemming:  # a stemmer is not to be used by two threads at once
            ids = self._index.get_tokens_ids(words(query, self._stemmer))
        if not ids:
            return []
        return [self._passages[int(number)] for number in _best(self._index.get_scores_from_ids(ids), k)]


def _best(scores: Any, k: int) -> Any:
    """The numbers of the `k` highest scores above 0, highest first, equal ones in order of their number."""
    found = np.flatnonzero(scores)
    if len(found) > k:
        least = np.partition(scores[found], -k)[-k]
        found = found[scores[found] >= least]
    return found[np.argsort(-scores[found], kind="stable")][:k]


# Building.


def write_terms(path: Path, passages: Sequence[Passage]) -> None:
    """Writes the words of a shard: its vocabulary, all words by their place in it, and each text's number of words."""
    stemmer = Stemmer.Stemmer("english")
    texts = [words(" ".join((*(p.title,) * TITLE_WEIGHT, p.text)), stemmer) for p in passages]
    vocabulary = {word: place for place, word in enumerate(dict.fromkeys(w for text in texts for w in text))}
    aside = path.with_suffix(".partial.npz")
    np.savez(
        aside,
        vocabulary=np.array(list(vocabulary), np.str_),
        ids=np.array([vocabulary[word] for text in texts for word in text], np.int32),
        lengths=np.array([len(text) for text in texts], np.int32),
    )
    aside.rename(path)


def write_index(folder: Path, shards: Sequence[Path]) -> None:
    """Writes the index of the shards whose words `write_terms` wrote."""
    vocabulary: dict[str, int] = {}
    documents = [ids for path in shards for ids in _documents(path, vocabulary)]
    index = bm25s.BM25()
    index.index((documents, vocabulary), show_progress=False)
    index.save(folder)


def _documents(path: Path, vocabulary: dict[str, int]) -> Iterable[Any]:
    """The words of each text of a shard, by their place in the vocabulary of all shards, which grows."""
    with np.load(path) as terms:
        places = [vocabulary.setdefault(word, len(vocabulary)) for word in terms["vocabulary"].tolist()]
        ids = np.array(places, np.int32)[terms["ids"]]
        return np.split(ids, np.cumsum(terms["lengths"])[:-1])
