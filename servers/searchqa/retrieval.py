"""What a retriever is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from servers.searchqa.passages import Passage


class Retriever(ABC):
    """Finds passages; one serves all sessions of a server, from any of its threads."""

    name: str
    """What it is and what it searches, for the handshake: the same episode depends on it."""
    instant = False
    """True where a search takes so little time that a thread for it would cost more."""

    @abstractmethod
    def search(self, query: str, k: int) -> list[Passage]:
        """The `k` best passages, best first; fewer where no more have anything in common with the query.

        Raises:
            RetrieverFailure: if it cannot be asked.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Frees what it holds."""
