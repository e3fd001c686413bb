"""The engine on an API model: any OpenAI-compatible chat endpoint, for evaluation alone."""

from __future__ import annotations

import sys

import msgspec

from trainers.acting.characters import CharacterLayout
from trainers.acting.engines.base import Completion, Request
from trainers.acting.engines.http import ModelServer
from trainers.acting.engines.served import ServedEngine
from trainers.errors import EngineFailure, EngineRefusal, EvaluationOnly


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Chat(msgspec.Struct):
    choices: tuple[_Choice, ...]


class ApiEngine(ServedEngine):
    """Has a chat model say the replies; its ids are the characters of a `CharacterLayout`.

    The server draws as it likes: a seed is not part of what all such servers understand.
    """

    missing: tuple[str, ...] = (
        "the ids that it sampled",
        "their log-probabilities",
        "a way to give it new weights",
    )

    def __init__(self, server: ModelServer, model: str, layout: CharacterLayout) -> None:
        super().__init__(server, max_context=sys.maxsize)
        self._model = model
        self._layout = layout

    def sync(self, weight_version: int) -> None:
        """Never possible.

        Raises:
            EvaluationOnly: always.
        """
        raise EvaluationOnly(
            f"The weights of {self._model} lie behind an API: it can be evaluated, and no more."
        )

    async def _answer(self, request: Request, ids: tuple[int, ...]) -> Completion:
        body = {
            "model": self._model,
            "messages": self._layout.messages(ids),
            "temperature": request.sampling.temperature,
            "top_p": request.sampling.top_p,
            "max_tokens": request.sampling.max_new_tokens,
        }
        try:
            choices = (await self._server.post("/chat/completions", body, _Chat)).choices
        except EngineRefusal as error:
            if "context_length_exceeded" not in error.message:
                raise
            return Completion(request.conversation, (), (), "length", weight_version=0)
        if len(choices) != 1:
            raise EngineFailure(f"{self._server.address} answered by {len(choices)} choices.")
        ended = choices[0].finish_reason != "length"
        said = self._layout.reply(choices[0].message.content or "", ended=ended)
        return Completion(request.conversation, said, (), "stop" if ended else "length", weight_version=0)
