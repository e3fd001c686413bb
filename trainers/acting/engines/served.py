"""What engines whose model answers over HTTP have in common: who has asked, and in which order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from concurrent.futures import FIRST_COMPLETED, Future, wait

from gym_agents import background
from gym_agents.errors import UsageError
from trainers.acting.engines.base import Completion, Request, Usage
from trainers.acting.engines.http import ModelServer


class ServedEngine(ABC):
    """Keeps the ids of every conversation, and has as many requests under way as were queued.

    A request carries its whole conversation; the server's own prefix cache spares it the work. What is sampled
    is a function of the request as far as the server keeps its seeds; what is collected together is not.
    """

    missing: tuple[str, ...]

    def __init__(self, server: ModelServer, max_context: int) -> None:
        self.usage = Usage()
        self.max_context = max_context
        self._server = server
        self._weight_version = 0
        self._ids: dict[Hashable, tuple[int, ...]] = {}
        self._under_way: dict[Hashable, Future[Completion]] = {}

    @abstractmethod
    async def _answer(self, request: Request, ids: tuple[int, ...]) -> Completion:
        """Asks the server to go on after `ids`, which leave room for at least one token."""

    @abstractmethod
    def sync(self, weight_version: int) -> None:
        """Gives the server the policy's weights."""

    def submit(self, request: Request) -> None:
        """Sends a request off.

        Raises:
            UsageError: if the conversation has a request under way, or there is nothing to go on from.
        """
        name = request.conversation
        if name in self._under_way:
            raise UsageError(f"Conversation {name!r} has a request under way.")
        ids = self._ids[name] = (*self._ids.get(name, ()), *request.context_ids)
        if not ids:
            raise UsageError(f"Conversation {name!r} has no token to sample after.")
        self.usage.encoded_tokens += len(request.context_ids)
        self._under_way[name] = background.spawn(self._asked(request, ids))

    def collect(self) -> list[Completion]:
        """Waits for at least one answer; returns all that are there, those that were asked for first first.

        Raises:
            EngineFailure: if the server gave a request no answer.
            EngineRefusal: if it refused one.
        """
        wait(self._under_way.values(), return_when=FIRST_COMPLETED)
        done = [name for name, future in self._under_way.items() if future.done()]
        completions = [self._under_way.pop(name).result() for name in done]
        for completion in completions:
            self._ids[completion.conversation] += completion.sampled_ids
            self.usage.sampled_tokens += len(completion.sampled_ids)
        return completions

    def release(self, conversation: Hashable) -> None:
        """Forgets a conversation, and gives its request up; unknown names are ignored."""
        self._ids.pop(conversation, None)
        if future := self._under_way.pop(conversation, None):
            future.cancel()

    def close(self) -> None:
        """Gives up what is under way, and ends the connections."""
        self._forget()
        background.run(self._server.close())

    def _forget(self) -> None:
        for conversation in [*self._ids]:
            self.release(conversation)

    async def _asked(self, request: Request, ids: tuple[int, ...]) -> Completion:
        if len(ids) >= self.max_context:
            return Completion(request.conversation, (), (), "length", self._weight_version)
        return await self._answer(request, ids)
