"""Where the in-process engine keeps keys and values, and how its rows attend to them.

One forward pass takes the new tokens of all rows as ONE packed sequence, so no linear layer ever sees
padding. Each row's tokens are written behind what its slot holds already, and attention then runs block by
block: neighbouring slots that are fed equally many tokens attend in one call, on views of the cache. Nothing
is gathered, repeated for grouped heads, or computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import AttentionInterface

from gym_agents.errors import UsageError

ATTENTION = "gym_agents_ragged"
"""Name under which `ragged_attention` is registered with transformers."""


class KVCache:
    """Keys and values by layer, each `[slots, capacity, kv_heads, head_dim]`; both leading sizes grow by doubling."""

    def __init__(self, slots: int, capacity: int = 64) -> None:
        self.slots = slots
        self.capacity = capacity
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def reserve(self, slots: int, tokens: int) -> None:
        """Makes room for `slots` rows of `tokens` tokens; what is held stays."""
        if slots <= self.slots and tokens <= self.capacity:
            return
        self.slots, self.capacity = _doubled(self.slots, slots), _doubled(self.capacity, tokens)
        self._layers = {layer: (self._grown(k), self._grown(v)) for layer, (k, v) in self._layers.items()}

    def write(self, layer: int, places: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores `[tokens, kv_heads, head_dim]` at flat `places` (slot * capacity + position); returns the whole layer."""
        if layer not in self._layers:
            self._layers[layer] = (self._new(key), self._new(value))
        keys, values = self._layers[layer]
        keys.flatten(0, 1).index_copy_(0, places, key)
        values.flatten(0, 1).index_copy_(0, places, value)
        return keys, values

    def copy_prefix(self, source: int, target: int, tokens: int) -> None:
        """Copies the first `tokens` tokens of a slot to another."""
        for keys, values in self._layers.values():
            keys[target, :tokens] = keys[source, :tokens]
            values[target, :tokens] = values[source, :tokens]

    def _new(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.slots, self.capacity, *like.shape[1:])

    def _grown(self, old: Tensor) -> Tensor:
        new = self._new(old[0])
        new[: old.shape[0], : old.shape[1]] = old
        return new


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size


@dataclass(frozen=True)
class Row:
    """One slot's part in a forward pass: it holds `start` tokens and is fed `count` more."""

    slot: int
    start: int
    count: int


@dataclass(frozen=True)
class Block:
    """Neighbouring slots that are fed equally many tokens."""

    slots: slice
    tokens: slice
    """Their tokens in the packed sequence."""
    length: int
    """Most keys that one of them sees."""
    mask: Tensor
    """Added to the scores, `[rows, 1, queries, length]`: 0 where the key is seen, -inf elsewhere."""

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
        """Attention of `query` `[tokens, heads, head_dim]`; the heads that share a key head are queries of one call."""
        rows, kv_heads = self.mask.shape[0], keys.shape[2]
        groups = query.shape[1] // kv_heads
        packed = query[self.tokens].unflatten(0, (rows, -1)).unflatten(2, (kv_heads, groups))
        queries = packed.shape[1]
        attended = F.scaled_dot_product_attention(
            packed.transpose(1, 2).flatten(2, 3),  # [rows, kv_heads, queries * groups, head_dim]
            keys[self.slots, : self.length].transpose(1, 2),
            values[self.slots, : self.length].transpose(1, 2),
            attn_mask=self.mask if queries == 1 else self.mask.repeat_interleave(groups, dim=2),
            scale=scaling,
        )
        by_token: Tensor = (
            attended.unflatten(2, (queries, groups)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        )
        return by_token


@dataclass(frozen=True)
class Pass:
    """What `ragged_attention` must know of one forward pass."""

    cache: KVCache
    places: Tensor
    """Where each packed token's key and value are kept, `[tokens]`."""
    positions: Tensor
    """Position of each packed token in its row, `[1, tokens]`."""
    last: Tensor
    """Index of each row's last token, `[rows]`."""
    blocks: tuple[Block, ...]


def plan(cache: KVCache, rows: Sequence[Row], device: torch.device, dtype: torch.dtype) -> Pass:
    """Lays out one forward pass over `rows`, which must stand in order of their slots."""
    cache.reserve(rows[-1].slot + 1, max(row.start + row.count for row in rows))
    positions = torch.cat([torch.arange(row.start, row.start + row.count) for row in rows])
    counts = torch.tensor([row.count for row in rows])
    offsets = torch.tensor([row.slot * cache.capacity for row in rows])
    return Pass(
        cache=cache,
        places=(positions + offsets.repeat_interleave(counts)).to(device),
        positions=positions[None].to(device),
        last=(counts.cumsum(0) - 1).to(device),
        blocks=tuple(_blocks(rows, device, dtype)),
    )


def _blocks(rows: Sequence[Row], device: torch.device, dtype: torch.dtype) -> Iterator[Block]:
    first, token = 0, 0
    for end in range(1, len(rows) + 1):
        if (
            end < len(rows)
            and rows[end].slot == rows[end - 1].slot + 1
            and rows[end].count == rows[first].count
        ):
            continue
        members = rows[first:end]
        tokens = sum(row.count for row in members)
        length = max(row.start + row.count for row in members)
        yield Block(
            slots=slice(members[0].slot, members[-1].slot + 1),
            tokens=slice(token, token + tokens),
            length=length,
            mask=_mask(members, length).to(device, dtype),
        )
        first, token = end, token + tokens


def _mask(rows: Sequence[Row], length: int) -> Tensor:
    starts = torch.tensor([row.start for row in rows])
    positions = starts[:, None] + torch.arange(rows[0].count)  # [rows, queries]
    seen = torch.arange(length) <= positions[..., None]  # [rows, queries, length]
    return torch.zeros(seen.shape).masked_fill_(~seen, float("-inf"))[:, None]


def ragged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    ragged: Pass,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: `[1, heads, tokens, head_dim]` in, `[1, tokens, heads, head_dim]` out.

    Raises:
        UsageError: if the model wants attention that this does not compute.
    """
    unknown = [
        name
        for name in ("softcap", "s_aux", "position_bias", "sliding_window")
        if kwargs.get(name) is not None
    ]
    if unknown:
        raise UsageError(f"The in-process engine cannot run attention with {', '.join(unknown)}.")
    layer: int = module.layer_idx  # type: ignore[assignment]
    keys, values = ragged.cache.write(layer, ragged.places, key[0].transpose(0, 1), value[0].transpose(0, 1))
    by_token = query[0].transpose(0, 1)
    attended = [block.attend(by_token, keys, values, scaling) for block in ragged.blocks]
    return (attended[0] if len(attended) == 1 else torch.cat(attended))[None], None


AttentionInterface.register(ATTENTION, ragged_attention)
