"""Trajectories to tensors: the only place that packs, and the only one that shifts by one.

A `Row` is one sequence without padding. Samples that begin with the same prompt lie behind one copy of it:

    prompt A | rest of sample 0 | rest of sample 1 | prompt B | rest of sample 2 | ...

Each token sees its own sample and the prompt of that sample, up to its own position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from gym_agents.trajectory import Generation, Outcome, Trajectory
from trainers.errors import NothingToLearn


@dataclass(frozen=True)
class Sample:
    """One context of an episode as the policy saw it, with what it sampled there; T tokens."""

    ids: tuple[int, ...]
    """Every token, in order [T]."""
    action_mask: tuple[bool, ...]
    """True where the policy sampled the token [T]."""
    logprobs: tuple[float, ...]
    """Of the sampled tokens under the policy that sampled them; 0 elsewhere, NaN where unknown [T]."""
    turns: tuple[int, ...]
    """Index of the turn that each token belongs to [T]."""
    rewards: tuple[float, ...]
    """Of each turn of the whole episode."""
    score: float
    outcome: Outcome
    scenario: str
    group: int
    member: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """What comes before the first sampled token."""
        return self.ids[: self.action_mask.index(True)]

    @property
    def rest(self) -> tuple[int, ...]:
        """What comes after the prompt and still predicts a sampled token."""
        return self.ids[len(self.prompt) : len(self.ids) - 1 - self.action_mask[::-1].index(True)]


def samples(trajectory: Trajectory) -> list[Sample]:
    """The training samples of a trajectory: one, and one more for every `fresh` context after the first.

    Contexts in which nothing was sampled are left out; an `env_error` gives none.

    Raises:
        ValueError: a generation's log-probabilities are not one per sampled token (none at all is "unknown").
    """
    if trajectory.outcome is Outcome.ENV_ERROR:
        return []
    contexts: list[list[tuple[int, Generation]]] = []
    for turn, played in enumerate(trajectory.turns):
        for generation in played.generations:
            if generation.fresh or not contexts:
                contexts.append([])
            contexts[-1].append((turn, generation))
    return [
        _sample(trajectory, context) for context in contexts if any(part.sampled_ids for _, part in context)
    ]


def _sample(trajectory: Trajectory, context: list[tuple[int, Generation]]) -> Sample:
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    turns: list[int] = []
    for turn, part in context:
        given, sampled = len(part.context_ids), len(part.sampled_ids)
        ids += [*part.context_ids, *part.sampled_ids]
        mask += [False] * given + [True] * sampled
        logprobs += [0.0] * given + _behaviour(part)
        turns += [turn] * (given + sampled)
    if mask[0]:
        raise ValueError("A sampled token comes first: nothing stands before it that could predict it.")
    return Sample(
        ids=tuple(ids),
        action_mask=tuple(mask),
        logprobs=tuple(logprobs),
        turns=tuple(turns),
        rewards=tuple(turn.reward for turn in trajectory.turns),
        score=trajectory.score,
        outcome=trajectory.outcome,
        scenario=trajectory.scenario,
        group=trajectory.group,
        member=trajectory.member,
    )


def _behaviour(part: Generation) -> list[float]:
    if not part.logprobs:
        return [float("nan")] * len(part.sampled_ids)
    if len(part.logprobs) != len(part.sampled_ids):
        raise ValueError(f"{len(part.sampled_ids)} sampled ids, but {len(part.logprobs)} log-probabilities.")
    return list(part.logprobs)


def collect_samples(trajectories: Iterable[Trajectory]) -> tuple[list[Sample], list[str]]:
    """The samples of many trajectories, in order, and a line for each trajectory that gave none.

    Raises:
        NothingToLearn: none gave any.
    """
    collected: list[Sample] = []
    skipped: list[str] = []
    for trajectory in trajectories:
        found = samples(trajectory)
        collected += found
        if not found:
            why = "it failed" if trajectory.outcome is Outcome.ENV_ERROR else "no token of it was sampled"
            skipped.append(f"{trajectory.item_id}, member {trajectory.member}: {why}")
    if not collected:
        raise NothingToLearn(f"No trajectory can be learned from. {'; '.join(skipped[:10])}")
    return collected, skipped


@dataclass(frozen=True)
class Row:
    """Samples packed into one sequence of L tokens, A of whose sampled tokens are to be learned from."""

    ids: Tensor
    """[L]"""
    position_ids: Tensor
    """Place of each token in its own sample [L]."""
    segment: Tensor
    """Which piece (a prompt, or a rest) each token lies in [L]."""
    prompt: Tensor
    """The piece that holds the prompt of each token [L]."""
    predict_at: Tensor
    """Where in the row the logits lie that predict each sampled token [A]."""
    target_ids: Tensor
    """The sampled tokens [A]."""
    logprobs: Tensor
    """Under the policy that sampled them [A]."""
    advantages: Tensor
    """[A]"""
    weights: Tensor
    """Share in the update's mean, before it is divided by their sum over the whole update [A]."""
    sample: Tensor
    """Which of the packed samples each sampled token is of [A]."""
    turn: Tensor
    """Turn of each sampled token [A]."""
    tokens_saved: int = 0
    """Tokens of shared prompts that did not have to be repeated."""

    def visible(self) -> Tensor:
        """Which token (last dimension) each token (the one before) sees [1, 1, L, L], True is seen."""
        own = self.segment[:, None] == self.segment
        shared = self.prompt[:, None] == self.segment
        earlier = self.position_ids[:, None] >= self.position_ids
        return ((own | shared) & earlier)[None, None]

    def to(self, device: torch.device) -> Row:
        """The same row on a device."""
        tensors = {
            part.name: getattr(self, part.name) for part in fields(self) if part.name != "tokens_saved"
        }
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


def pack(samples: Sequence[Sample], advantages: Sequence[Tensor] | Tensor, tokens_per_row: int) -> list[Row]:
    """Packs samples into rows, those with the same prompt side by side behind one copy of it.

    Args:
        samples: what to learn from [N].
        advantages: for each sample one number, or one per sampled token.
        tokens_per_row: most tokens of a row; a longer sample has a row to itself.

    Returns:
        Rows whose weights are all 1, which makes the update's loss a mean over tokens.
    """
    return [_row(samples, advantages, chosen) for chosen in _fill_rows(samples, tokens_per_row)]


def _fill_rows(samples: Sequence[Sample], tokens_per_row: int) -> list[list[int]]:
    """Indices of the samples of each row."""
    rows: list[list[int]] = []
    length = 0
    for prompt, together in _by_prompt(samples).items():
        repeated = len(prompt)  # what the next sample of this prompt adds for its prompt
        for index in together:
            rest = len(samples[index].rest)
            if not rows or length + repeated + rest > tokens_per_row:
                rows.append([])
                length, repeated = 0, len(prompt)
            rows[-1].append(index)
            length, repeated = length + repeated + rest, 0
    return rows


def _by_prompt(samples: Sequence[Sample]) -> dict[tuple[int, ...], list[int]]:
    """Indices of the samples of each prompt, both in order of appearance."""
    places: dict[tuple[int, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        places.setdefault(sample.prompt, []).append(index)
    return places


class _Piece(NamedTuple):
    """A run of tokens in a row: a prompt, or what one sample adds to it."""

    ids: tuple[int, ...]
    first: int
    """Position of its first token in the sample."""
    prompt: int
    """Number of the piece that holds its prompt; its own, if it is one."""


def _row(samples: Sequence[Sample], advantages: Sequence[Tensor] | Tensor, chosen: Sequence[int]) -> Row:
    pieces: list[_Piece] = []
    prompts: dict[tuple[int, ...], tuple[int, int]] = {}  # where in the row it starts, and its piece
    flat: list[dict[str, Tensor]] = []
    length = 0
    for index in chosen:
        sample, prompt = samples[index], samples[index].prompt
        if prompt not in prompts:
            prompts[prompt] = (length, len(pieces))
            pieces.append(_Piece(prompt, 0, len(pieces)))
            length += len(prompt)
        start, piece = prompts[prompt]
        rest = _Piece(sample.rest, len(prompt), piece)
        places = [*range(start, start + len(prompt)), *range(length, length + len(rest.ids))]
        flat.append(_targets(index, sample, torch.as_tensor(advantages[index]), torch.tensor(places)))
        pieces.append(rest)
        length += len(rest.ids)
    repeated = sum(len(samples[index].prompt) for index in chosen) - sum(map(len, prompts))
    sizes = torch.tensor([len(piece.ids) for piece in pieces])
    return Row(
        ids=torch.tensor([token for piece in pieces for token in piece.ids]),
        position_ids=torch.cat([torch.arange(len(piece.ids)) + piece.first for piece in pieces]),
        segment=torch.arange(len(pieces)).repeat_interleave(sizes),
        prompt=torch.tensor([piece.prompt for piece in pieces]).repeat_interleave(sizes),
        **{name: torch.cat([part[name] for part in flat]) for name in flat[0]},
        tokens_saved=repeated,
    )


def _targets(index: int, sample: Sample, advantages: Tensor, places: Tensor) -> dict[str, Tensor]:
    """The flat tensors [A] of one sample, whose tokens lie at `places` of the row."""
    at = torch.tensor(sample.action_mask).nonzero().squeeze(1)  # [A]
    return {
        "predict_at": places[at - 1],  # the logits of a token lie where the token before it is
        "target_ids": torch.tensor(sample.ids)[at],
        "logprobs": torch.tensor(sample.logprobs)[at],
        "advantages": advantages.float().expand(len(at)),
        "weights": torch.ones(len(at)),
        "sample": torch.full_like(at, index),
        "turn": torch.tensor(sample.turns)[at],
    }


def minibatches(samples: Sequence[Sample], count: int) -> list[list[int]]:
    """Indices of the samples of each of `count` minibatches: whole groups, in order, nearly equal in number.

    With fewer groups than minibatches the last ones are empty, so that every process makes as many steps.
    """
    groups: dict[int, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(index)
    members = list(groups.values())
    bounds = [-(-len(members) * step // count) for step in range(count + 1)]
    return [[*chain.from_iterable(members[low:high])] for low, high in pairwise(bounds)]
