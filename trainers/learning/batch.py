"""Trajectories to tensors: the only place that packs, and the only one that shifts by one.

A `Row` is one sequence without padding. What samples begin with in common lies before them once: the stem of
all (the scenario's instruction), then the prompt of each group:

    stem | prompt A | rest of sample 0 | rest of sample 1 | prompt B | rest of sample 2 | ...

Each token sees its own sample, the prompt of that sample and the stem, up to its own position.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

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
    def episode(self) -> tuple[int, int]:
        """Which episode it is of; a windowed history gives several samples of one."""
        return self.group, self.member

    @property
    def sampled(self) -> int:
        """How many of its tokens were sampled, A."""
        return sum(self.action_mask)

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
    if contexts:
        contexts[-1].append((len(trajectory.turns), Generation(trajectory.final_context_ids, (), ())))
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


def with_last_state(sample: Sample, max_context: int) -> Sample:
    """The sample and one token more, as if sampled in its last state, so that a pass over it meets that state too.

    What of the last state is beyond `max_context` tokens is left out.
    """
    length = min(len(sample.ids), max_context)
    return replace(
        sample,
        ids=(*sample.ids[:length], 0),
        action_mask=(*sample.action_mask[:length], True),
        logprobs=(*sample.logprobs[:length], 0.0),
        turns=(*sample.turns[:length], len(sample.rewards)),
    )


def with_logprobs(sample: Sample, logprobs: Tensor) -> Sample:
    """The sample with other log-probabilities of its sampled tokens [A]."""
    values = iter(logprobs.tolist())
    return replace(sample, logprobs=tuple(next(values) if acted else 0.0 for acted in sample.action_mask))


_NOTHING = torch.zeros(())

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Lesson:
    """A sample, and what is to be learned from it."""

    sample: Sample
    advantages: Tensor = _NOTHING
    """One number [], or one per sampled token [A]."""
    returns: Tensor = _NOTHING
    """What the critic should have said; likewise."""
    weight: float = 1.0
    """Of each of its sampled tokens in the update's mean."""


@dataclass(frozen=True)
class Row:
    """Samples packed into one sequence of L tokens, A of whose sampled tokens are to be learned from."""

    ids: Tensor
    """[L]"""
    position_ids: Tensor
    """Place of each token in its own sample [L]."""
    segment: Tensor
    """Which piece (the stem, which is 0, a prompt, or a rest) each token lies in [L]."""
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
    returns: Tensor
    """What the critic should say of the state that each was sampled in [A]."""
    weights: Tensor
    """Share in the update's mean, before it is divided by their sum over the whole update [A]."""
    sample: Tensor
    """Which of the packed samples each sampled token is of [A]."""
    turn: Tensor
    """Turn of each sampled token [A]."""
    tokens_saved: int = 0
    """Tokens of shared beginnings that did not have to be repeated."""

    def visible(self) -> Tensor:
        """Which token (last dimension) each token (the one before) sees [1, 1, L, L], True is seen."""
        own = self.segment[:, None] == self.segment
        shared = self.prompt[:, None] == self.segment
        earlier = self.position_ids[:, None] >= self.position_ids
        stem = self.segment == 0
        return ((own | shared | stem) & earlier)[None, None]

    def to(self, device: torch.device) -> Row:
        """The same row on a device."""
        tensors = {
            part.name: getattr(self, part.name) for part in fields(self) if part.name != "tokens_saved"
        }
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


def pack(lessons: Sequence[Lesson], tokens_per_row: int) -> list[Row]:
    """Packs the samples of each scenario into rows, those with the same prompt side by side behind one copy of it.

    Args:
        lessons: what to learn from [N].
        tokens_per_row: most tokens of a row; a longer sample has a row to itself.
    """
    samples = [lesson.sample for lesson in lessons]
    rows: list[Row] = []
    for places in _places(samples, lambda sample: sample.scenario).values():
        stem = _common_beginning([samples[at].prompt for at in places])
        filled = _fill_rows(samples, places, len(stem), tokens_per_row)
        rows += [_row(lessons, chosen, stem) for chosen in filled]
    return rows


def _common_beginning(prompts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The ids that all prompts begin with."""
    if not prompts:
        return ()
    first, last = min(prompts), max(prompts)  # in order of ids, all others lie between them
    differ = (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return first[: next(differ, len(first))]


def _fill_rows(
    samples: Sequence[Sample], places: Sequence[int], stem: int, tokens_per_row: int
) -> list[list[int]]:
    """Indices of the samples of each row, which begins with a stem of so many tokens."""
    rows: list[list[int]] = []
    length = 0
    chosen = [samples[at] for at in places]
    for prompt, together in _places(chosen, lambda sample: sample.prompt).items():
        repeated = len(prompt) - stem  # what the next sample of this prompt adds for its prompt
        for index in (places[at] for at in together):
            rest = len(samples[index].rest)
            if not rows or length + repeated + rest > tokens_per_row:
                rows.append([])
                length, repeated = stem, len(prompt) - stem
            rows[-1].append(index)
            length, repeated = length + repeated + rest, 0
    return rows


def _places(samples: Sequence[Sample], key: Callable[[Sample], Key]) -> dict[Key, list[int]]:
    """Indices of the samples that have something in common, both in order of appearance."""
    places: dict[Key, list[int]] = {}
    for index, sample in enumerate(samples):
        places.setdefault(key(sample), []).append(index)
    return places


class _Piece(NamedTuple):
    """A run of tokens in a row: the stem, what a prompt adds to it, or what a sample adds to its prompt."""

    ids: tuple[int, ...]
    start: int
    """Where in the row it lies."""
    first: int
    """Position of its first token in the sample."""
    number: int
    prompt: int
    """Number of the piece that holds its prompt; its own, if it is one."""

    @property
    def places(self) -> range:
        """Where in the row its tokens lie."""
        return range(self.start, self.start + len(self.ids))


def _row(lessons: Sequence[Lesson], chosen: Sequence[int], stem: tuple[int, ...]) -> Row:
    pieces = [_Piece(stem, start=0, first=0, number=0, prompt=0)]

    def lay(ids: tuple[int, ...], first: int, prompt: int | None = None) -> _Piece:
        number = len(pieces)
        pieces.append(
            _Piece(ids, pieces[-1].places.stop, first, number, number if prompt is None else prompt)
        )
        return pieces[-1]

    prompts: dict[tuple[int, ...], _Piece] = {}
    flat: list[dict[str, Tensor]] = []
    for index in chosen:
        sample = lessons[index].sample
        if sample.prompt not in prompts:
            prompts[sample.prompt] = lay(sample.prompt[len(stem) :], first=len(stem))
        prompt = prompts[sample.prompt]
        rest = lay(sample.rest, first=len(sample.prompt), prompt=prompt.number)
        places = torch.tensor([*pieces[0].places, *prompt.places, *rest.places])
        flat.append(_targets(index, lessons[index], places))
    sizes = torch.tensor([len(piece.ids) for piece in pieces])
    alone = sum(len(sample.prompt) + len(sample.rest) for sample in (lessons[at].sample for at in chosen))
    return Row(
        ids=torch.tensor([token for piece in pieces for token in piece.ids]),
        position_ids=torch.cat([torch.arange(len(piece.ids)) + piece.first for piece in pieces]),
        segment=torch.arange(len(pieces)).repeat_interleave(sizes),
        prompt=torch.tensor([piece.prompt for piece in pieces]).repeat_interleave(sizes),
        **{name: torch.cat([part[name] for part in flat]) for name in flat[0]},
        tokens_saved=alone - pieces[-1].places.stop,
    )


def _targets(index: int, lesson: Lesson, places: Tensor) -> dict[str, Tensor]:
    """The flat tensors [A] of one sample, whose tokens lie at `places` of the row."""
    sample = lesson.sample
    at = torch.tensor(sample.action_mask).nonzero().squeeze(1)  # [A]
    return {
        "predict_at": places[at - 1],  # the logits of a token lie where the token before it is
        "target_ids": torch.tensor(sample.ids)[at],
        "logprobs": torch.tensor(sample.logprobs)[at],
        "advantages": lesson.advantages.float().expand(len(at)),
        "returns": lesson.returns.float().expand(len(at)),
        "weights": torch.full((len(at),), lesson.weight),
        "sample": torch.full_like(at, index),
        "turn": torch.tensor(sample.turns)[at],
    }


def minibatches(lessons: Sequence[Lesson], count: int) -> list[list[Lesson]]:
    """The lessons of each of `count` minibatches: whole groups, in order, nearly equal in number.

    With fewer groups than minibatches the last ones are empty, so that every process makes as many steps.
    """
    groups: dict[int, list[Lesson]] = {}
    for lesson in lessons:
        groups.setdefault(lesson.sample.group, []).append(lesson)
    members = list(groups.values())
    bounds = [-(-len(members) * step // count) for step in range(count + 1)]
    return [[*chain.from_iterable(members[low:high])] for low, high in pairwise(bounds)]


def pack_pair(better: Sequence[Sample], worse: Sequence[Sample]) -> Row:
    """Both sides of a pair in one row, what they begin with in common once.

    `advantages` tells the sides apart: 1 on the better one's tokens, -1 on the worse one's. The weights sum to 1, so
    that every pair of an update weighs the same.
    """
    sides = [(sample, 1.0) for sample in better] + [(sample, -1.0) for sample in worse]
    weight = 1 / sum(sum(sample.action_mask) for sample, _ in sides)
    [row] = pack([Lesson(sample, torch.tensor(side), weight=weight) for sample, side in sides], sys.maxsize)
    return row
