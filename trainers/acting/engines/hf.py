"""The in-process engine: a transformers model that generates for many conversations at once.

Every conversation keeps its keys and values from turn to turn, so that a token is encoded once in its life.
Each step is one forward pass over whatever the rows need: one token of a row that is decoding, a whole
observation of a row that comes back from its world, a prompt of one that is new. A row that is done leaves
at once, and a waiting one takes part from the next step on. A new conversation copies the longest beginning
that any slot holds already (its group's prompt, the scenario's instruction) instead of encoding it again.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from gym_agents.errors import UsageError
from trainers.acting.engines.base import Completion, Finish, Request, Usage
from trainers.acting.engines.cache import KVCache, Row, plan
from trainers.acting.engines.drawing import draw, uniforms
from trainers.acting.engines.weights import DecodingForm

WORTH_WAITING = 16
"""A new conversation waits for another one's prompt to be encoded if they share this many further tokens."""


@dataclass
class _Generation:
    """The reply being sampled for a request."""

    request: Request
    numbers: list[float]
    """One uniform number for each token that may be sampled."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def finish(self) -> Finish | None:
        if self.ids and self.ids[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.ids) == len(self.numbers) else None


@dataclass(eq=False)
class _Conversation:
    """A conversation and the slot that holds its keys and values."""

    name: Hashable
    slot: int = -1
    """-1 until it first takes part."""
    held: list[int] = field(default_factory=list)
    """Ids whose keys and values the slot holds."""
    pending: list[int] = field(default_factory=list)
    """Ids still to be fed; between two turns, the last sampled one."""
    generation: _Generation | None = None


class HFEngine:
    """Generates with a transformers causal language model (or a peft model around one) in this process.

    `usage.encoded_tokens` counts what was fed: a shared beginning once, and the last token of a prompt that is
    shared as a whole once per conversation, since the first reply token is sampled there.

    Args:
        model: the policy; its weights are read where they are. Call `sync` after every change to them.
        max_batch: most conversations that generate at the same time; others wait.
        max_context: most tokens of one conversation.
        max_tokens: token budget of one forward pass; longer prompts take several.

    Raises:
        UsageError: if the model keeps anything but plain keys and values (sliding windows, recurrent states,
            an encoder), or computes attention in a way of its own.
    """

    missing: tuple[str, ...] = ()

    def __init__(
        self, model: Any, *, max_batch: int = 64, max_context: int = 2048, max_tokens: int = 4096
    ) -> None:
        self.usage = Usage()
        self.max_context = max_context
        self._model = model.get_base_model() if hasattr(model, "get_base_model") else model
        _refuse_unless_plain(self._model)
        self._form = DecodingForm(self._model)
        self._max_batch = max_batch
        self._max_tokens = max_tokens
        self._weight_version = 0
        self._cache = KVCache(max_batch)
        self._conversations: dict[Hashable, _Conversation] = {}
        self._waiting: list[_Conversation] = []
        self._active: list[_Conversation] = []
        self._done: list[Completion] = []
        self._free: list[int] = []
        self._slots: list[list[int]] = []  # which ids each slot holds, also after its release

    def submit(self, request: Request) -> None:
        """Queues a request.

        Raises:
            UsageError: if the conversation has a request under way, or nothing would be fed to the model.
        """
        conversation = self._conversations.setdefault(
            request.conversation, _Conversation(request.conversation)
        )
        if conversation.generation is not None:
            raise UsageError(f"Conversation {request.conversation!r} has a request under way.")
        conversation.pending = [*conversation.pending, *request.context_ids]
        if not conversation.pending:
            raise UsageError(f"Conversation {request.conversation!r} has no token to sample after.")
        room = self.max_context - len(conversation.held) - len(conversation.pending)
        if room <= 0:
            self._done.append(Completion(request.conversation, (), (), "length", self._weight_version))
            return
        limit = min(request.sampling.max_new_tokens, room)
        conversation.generation = _Generation(request, uniforms(request.seed, limit))
        self.usage.encoded_tokens += len(request.context_ids)
        self._waiting.append(conversation)

    def collect(self) -> list[Completion]:
        """Runs until at least one queued request is complete; returns all that are, or `[]` if none is queued."""
        if not self._done and (self._active or self._waiting):
            with self._form.entered(), torch.inference_mode():
                while not self._done:
                    self._step()
        done, self._done = self._done, []
        return done

    def release(self, conversation: Hashable) -> None:
        """Forgets a conversation and frees its slot; unknown names are ignored."""
        known = self._conversations.pop(conversation, None)
        if known is None:
            return
        self._active = [other for other in self._active if other is not known]
        self._waiting = [other for other in self._waiting if other is not known]
        self._done = [completion for completion in self._done if completion.conversation != conversation]
        if known.slot >= 0:
            heapq.heappush(self._free, known.slot)

    def sync(self, weight_version: int) -> None:
        """The policy's weights changed: forget every conversation and whatever was computed from them."""
        self._weight_version = weight_version
        self._form.weights_changed()
        self._forget()

    def close(self) -> None:
        """Frees every conversation and the memory of their keys and values."""
        self._forget()
        self._form.weights_changed()
        self._cache = KVCache(self._max_batch)

    def _forget(self) -> None:
        for queue in (self._conversations, self._waiting, self._active, self._done, self._free, self._slots):
            queue.clear()

    def _step(self) -> None:
        """Admits waiting rows, feeds every row what it has pending, draws where a row has nothing left."""
        self._admit()
        fed = self._within_budget()
        ready = [at for at, (conversation, row) in enumerate(fed) if row.count == len(conversation.pending)]
        logits = self._forward(fed, ready)
        for conversation, row in fed:
            conversation.held += conversation.pending[: row.count]
            conversation.pending = conversation.pending[row.count :]
        self._draw(logits, [fed[at][0] for at in ready])

    def _admit(self) -> None:
        waiting, self._waiting = self._waiting, []
        for conversation in waiting:
            if len(self._active) < self._max_batch and (conversation.slot >= 0 or self._seat(conversation)):
                self._active.append(conversation)
            else:
                self._waiting.append(conversation)

    def _seat(self, conversation: _Conversation) -> bool:
        """Gives a new conversation a slot, and in it the longest beginning that any slot holds.

        False if a longer one is just being encoded, so that waiting for it is cheaper.
        """
        ids = conversation.pending
        source, shared = max(
            ((slot, _shared(ids, held)) for slot, held in enumerate(self._slots)),
            key=lambda found: found[1],
            default=(0, 0),
        )
        coming = max((_shared(ids, [*row.held, *row.pending]) for row in self._active), default=0)
        if coming >= shared + WORTH_WAITING:
            return False
        conversation.slot = heapq.heappop(self._free) if self._free else len(self._slots)
        self._cache.reserve(conversation.slot + 1, shared)
        if source != conversation.slot:
            self._cache.copy_prefix(source, conversation.slot, shared)
        conversation.held, conversation.pending = ids[:shared], ids[shared:]
        self._slots[conversation.slot : conversation.slot + 1] = [conversation.held]
        self.usage.encoded_tokens -= shared
        return True

    def _within_budget(self) -> list[tuple[_Conversation, Row]]:
        """Which rows are fed in this step, and how many tokens each, in order of their slots."""
        left, fed = self._max_tokens, []
        for conversation in sorted(self._active, key=lambda row: row.slot):
            count = min(left, len(conversation.pending))
            if count:
                fed.append((conversation, Row(conversation.slot, len(conversation.held), count)))
                left -= count
        return fed

    def _forward(self, fed: list[tuple[_Conversation, Row]], ready: list[int]) -> torch.Tensor:
        """Logits `[ready rows, vocabulary]` after the last token of each row that is ready for its next one."""
        device = self._model.device
        ragged = plan(self._cache, [row for _, row in fed], device, self._model.dtype)
        ids = [token for conversation, row in fed for token in conversation.pending[: row.count]]
        output = self._model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=ragged.positions,
            use_cache=False,
            logits_to_keep=ragged.last[ready],
            ragged=ragged,
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def _draw(self, logits: torch.Tensor, ready: list[_Conversation]) -> None:
        """Appends one token to each ready row's generation, and completes those that it ends."""
        generations = [row.generation for row in ready if row.generation is not None]
        numbers = [generation.numbers[len(generation.ids)] for generation in generations]
        ids, logprobs = draw(logits, [generation.request.sampling for generation in generations], numbers)
        for row, generation, token, logprob in zip(ready, generations, ids, logprobs, strict=True):
            generation.ids.append(token)
            generation.logprobs.append(logprob)
            row.pending = [token]
            if finish := generation.finish:
                self._complete(row, generation, finish)
        self.usage.decode_steps += 1
        self.usage.decode_rows += len(ready)
        self.usage.sampled_tokens += len(ready)

    def _complete(self, row: _Conversation, generation: _Generation, finish: Finish) -> None:
        row.generation = None
        self._active.remove(row)
        self._done.append(
            Completion(row.name, (*generation.ids,), (*generation.logprobs,), finish, self._weight_version)
        )


def _shared(ids: Sequence[int], held: Sequence[int]) -> int:
    """How many tokens of `ids` need not be encoded, given the ids that are held; the last one always must."""
    alike, most = 0, min(len(ids) - 1, len(held))
    while alike < most:
        middle = (alike + most + 1) // 2
        if ids[alike:middle] == held[alike:middle]:
            alike = middle
        else:
            most = middle - 1
    return alike


def _refuse_unless_plain(model: PreTrainedModel) -> None:
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    reasons = [f"has layers of kind {kind}" for kind in sorted(kinds)]
    if not getattr(config, "layer_types", None) and getattr(config, "sliding_window", None):
        reasons.append("attends within a sliding window")
    if config.is_encoder_decoder:
        reasons.append("has an encoder")
    if getattr(model, "_is_stateful", False):
        reasons.append("keeps a recurrent state")
    if not getattr(model, "_supports_attention_backend", False):
        reasons.append("computes attention in a way of its own")
    if reasons:
        raise UsageError(
            f"The in-process engine cannot run {type(model).__name__}: it {', and '.join(reasons)}."
        )
