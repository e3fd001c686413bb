"""Dense retrieval: E5 embeddings in a FAISS index; its packages are imported when it is used."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gym_agents.errors import BackendMissing
from servers.searchqa.passages import Passage, PassageStore
from servers.searchqa.retrieval import Retriever

KIND = "dense"
MODEL = "intfloat/e5-base-v2"
"""The encoder of the published runs (arXiv 2212.03533)."""
_INDEX = "vectors.faiss"


class Encoder(Protocol):
    """Texts to vectors of length 1, one row each, in float32."""

    def __call__(self, texts: Sequence[str]) -> Any: ...


class E5(Encoder):
    """The encoder, by its name or folder.

    Raises:
        BackendMissing: if sentence-transformers is not installed.
    """

    def __init__(self, model: str = MODEL) -> None:
        self._model = _imported("sentence_transformers").SentenceTransformer(model)

    def __call__(self, texts: Sequence[str]) -> Any:
        """The vectors of texts that already begin with `query: ` or `passage: `."""
        return self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise BackendMissing(
            f"Dense retrieval needs the package {error.name!r}, which is not installed: "
            "pip install 'gym-agents[searchqa-dense]'."
        ) from error


class Dense(Retriever):
    """Finds passages by the inner product of embeddings, exactly (a flat index).

    Args:
        folder: the index.
        encode: the encoder with which it was built.
    """

    def __init__(self, folder: Path, encode: Encoder | None = None) -> None:
        faiss = _imported("faiss")
        self._index = faiss.read_index(str(folder / _INDEX), faiss.IO_FLAG_MMAP)
        self._passages = PassageStore(folder)
        self._encode = encode or E5()
        self._encoding = threading.Lock()
        self.name = f"{MODEL} with faiss {faiss.__version__} over {len(self._passages)} passages"

    def search(self, query: str, k: int) -> list[Passage]:
        """The passages whose embeddings are nearest to the query's."""
        with self._encoding:
            vectors = self._encode([f"query: {query}"])
        _, numbers = self._index.search(np.asarray(vectors, np.float32), k)
        return [self._passages[int(number)] for number in numbers[0] if number >= 0]


# Building.


def write_vectors(path: Path, passages: Sequence[Passage], encode: Encoder) -> None:
    """Writes the embeddings of a shard."""
    aside = path.with_suffix(".partial.npy")
    vectors = encode([f"passage: {passage.title}\n{passage.text}" for passage in passages])
    np.save(aside, np.asarray(vectors, np.float32))
    aside.rename(path)


def write_index(folder: Path, shards: Sequence[Path]) -> None:
    """Writes the index of the shards that `write_vectors` wrote."""
    faiss = _imported("faiss")
    index = None
    for path in shards:
        vectors = np.load(path)
        index = index or faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
    faiss.write_index(index, str(folder / _INDEX))
