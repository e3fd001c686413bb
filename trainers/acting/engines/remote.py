"""The engine on a model server: token ids over OpenAI's completions route, as vLLM serves it.

What is asked for goes by the names of vLLM's extensions: `return_token_ids`, `stop_token_ids`, `ignore_eos`. A
server that lacks them is found out at the start, by one request that needs them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gym_agents import background
from gym_agents.errors import near_match
from trainers.acting.engines.base import Completion, Request, Sampling
from trainers.acting.engines.http import ModelServer
from trainers.acting.engines.served import ServedEngine
from trainers.acting.engines.transfer import WeightSync
from trainers.errors import EngineFailure, EngineRefusal, EvaluationOnly

NEUTRAL = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Servers take what a request leaves out from the model's `generation_config.json`: another distribution than
the one that is trained."""


class _Logprobs(msgspec.Struct):
    token_logprobs: tuple[float | None, ...] = ()


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class _Completions(msgspec.Struct):
    choices: tuple[_Choice, ...]


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None
    """The model that it adapts, where it is an adapter."""


class _Models(msgspec.Struct):
    data: tuple[_Model, ...]


@dataclass(frozen=True)
class Offer:
    """What a server was found to give, at its start."""

    model: str
    """Name under which it serves the policy."""
    token_ids: bool
    """It says which ids it sampled."""
    logprobs: bool
    """It says with which log-probability."""


def probe(server: ModelServer, model: str, prompt: Sequence[int], max_context: int) -> Offer:
    """Finds out what a server gives, by asking it to go on after a prompt.

    Args:
        server: the server.
        model: name of the model there; empty, if it serves one alone (with adapters or without).
        prompt: any ids.
        max_context: tokens that a conversation must have room for.

    Raises:
        EngineRefusal: it serves no such model, with less room, or takes no token ids.
        EngineFailure: it gives no usable answer.
    """
    return background.run(_probe(server, model, prompt, max_context))


async def _probe(server: ModelServer, model: str, prompt: Sequence[int], max_context: int) -> Offer:
    served = _choose((await server.get("/models", _Models)).data, model, server.address)
    if served.max_model_len is not None and served.max_model_len < max_context:
        raise EngineRefusal(
            f"{server.address} serves {served.id} with room for {served.max_model_len} tokens, "
            f"but policy.max_context is {max_context}."
        )
    body = _body(served.id, prompt, Sampling(), 2, stop_ids=(), seed=0)
    try:
        choice = _only((await server.post("/completions", body, _Completions)).choices, server.address)
    except EngineRefusal as error:
        raise EngineRefusal(f"A prompt of token ids is refused: {error}") from error
    if choice.prompt_token_ids not in (None, tuple(prompt)):
        raise EngineRefusal(f"{server.address} does not take the ids of a prompt as they are.")
    return Offer(served.id, bool(choice.token_ids), bool(choice.token_ids and _behaviour(choice)))


def _choose(models: Sequence[_Model], asked: str, address: str) -> _Model:
    names = [model.id for model in models]
    whole = [
        model for model in models if model.parent is None
    ]  # adapters may be left of a run that was killed
    if not asked and len(whole) == 1:
        return whole[0]
    if asked not in names:
        near = near_match(asked, names)
        raise EngineRefusal(
            f"{address} serves {', '.join(names) or 'no model'}; engine.model is {asked!r}.{near}"
        )
    return models[names.index(asked)]


class RemoteEngine(ServedEngine):
    """Generates on a model server.

    Attributes:
        missing: what training needs and the server does not give; it is evaluated with nevertheless.

    Args:
        server: the server.
        offer: what it was found to give.
        max_context: most tokens of one conversation.
        encode: ids of a reply and of its end, for a server that says its text alone.
        transfer: gives it the policy's weights; `None` where it takes none.
    """

    def __init__(
        self,
        server: ModelServer,
        offer: Offer,
        *,
        max_context: int,
        encode: Callable[[str], tuple[int, ...]],
        transfer: WeightSync | None,
    ) -> None:
        super().__init__(server, max_context)
        self._offer = offer
        self._model = offer.model
        self._encode = encode
        self._transfer = transfer
        given = {
            "the ids that it sampled": offer.token_ids,
            "their log-probabilities": offer.logprobs,
            "a way to give it new weights": transfer is not None,
        }
        self.missing = tuple(name for name, there in given.items() if not there)

    def sync(self, weight_version: int) -> None:
        """Gives the server the policy's weights, and forgets every conversation.

        Raises:
            EvaluationOnly: it takes none.
            EngineFailure, EngineRefusal: it did not take these.
        """
        if self._transfer is None:
            raise EvaluationOnly(
                f"{self._server.address} takes no new weights: it can be evaluated as it is, and no more."
            )
        self._forget()
        self._model = self._transfer(weight_version)
        self._weight_version = weight_version

    async def _answer(self, request: Request, ids: tuple[int, ...]) -> Completion:
        limit = min(request.sampling.max_new_tokens, self.max_context - len(ids))
        body = _body(self._model, ids, request.sampling, limit, request.stop_ids, _seed(request.seed))
        answer = await self._server.post("/completions", body, _Completions)
        choice = _only(answer.choices, self._server.address)
        sampled = self._sampled(choice, request.stop_ids)
        ended = bool(sampled) and sampled[-1] in request.stop_ids
        return Completion(
            conversation=request.conversation,
            sampled_ids=sampled,
            logprobs=_behaviour(choice) if self._offer.logprobs else (),
            finish="stop" if ended else "length",
            weight_version=self._weight_version,
        )

    def _sampled(self, choice: _Choice, stop_ids: frozenset[int]) -> tuple[int, ...]:
        """The ids that were sampled; of a server that does not say them, those that the text has now."""
        stopped = choice.finish_reason == "stop"
        if not self._offer.token_ids:
            ids = self._encode(choice.text)
            return ids if stopped else ids[:-1]
        if not choice.token_ids or (stopped and choice.token_ids[-1] not in stop_ids):
            raise EngineFailure(
                f"{self._server.address} sampled {choice.token_ids} and ended by {choice.finish_reason!r}: "
                "the token at which it ended is not among them."
            )
        return choice.token_ids


def _body(
    model: str,
    ids: Sequence[int],
    sampling: Sampling,
    limit: int,
    stop_ids: Sequence[int] | frozenset[int],
    seed: int,
) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": seed,
        "stop_token_ids": sorted(stop_ids),
        "ignore_eos": True,  # the stop ids say where a reply ends
        "logprobs": 1,
        "return_token_ids": True,
        "skip_special_tokens": False,
        **NEUTRAL,
    }


def _seed(seed: tuple[int, ...]) -> int:
    """One number of 63 bits for all that names a generation."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)


def _only(choices: Sequence[_Choice], address: str) -> _Choice:
    if len(choices) != 1:
        raise EngineFailure(f"{address} answered one prompt by {len(choices)} choices.")
    return choices[0]


def _behaviour(choice: _Choice) -> tuple[float, ...]:
    """The log-probability of each sampled id; none, where they are not all there."""
    given = choice.logprobs.token_logprobs if choice.logprobs else ()
    finite = tuple(value for value in given if value is not None and math.isfinite(value))
    return finite if len(finite) == len(choice.token_ids or ()) else ()
