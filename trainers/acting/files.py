"""Trajectory files: our own JSON Lines, and AgentGym's JSON of conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from gym_agents import trajectory
from gym_agents.trajectory import Outcome, Trajectory, Turn
from trainers.errors import BadTrajectories

FULL_SCORE = {"sciworld": 100.0}
"""What AgentGym's reward is at most, where that is not 1."""


class Example(NamedTuple):
    """An episode on file."""

    episode: Trajectory
    trained: tuple[bool, ...]
    """Of each turn, whether its reply is to be learned from."""
    scored: bool = True
    """False where the file has no reward for it: then it is a demonstration, neither better nor worse than others."""


def read_examples(paths: Iterable[Path]) -> list[Example]:
    """All episodes of all files; a file that begins with `[` is AgentGym's.

    Raises:
        BadTrajectories: naming the file and the place in it that does not fit.
    """
    return [example for path in paths for example in _read(path)]


def examples(episodes: Iterable[Trajectory]) -> list[Example]:
    """Episodes as examples whose every reply is to be learned from."""
    return [Example(episode, (True,) * len(episode.turns)) for episode in episodes]


def _read(path: Path) -> list[Example]:
    with path.open("rb") as file:
        conversations = file.read(64).lstrip().startswith(b"[")
    try:
        return list(_read_conversations(path)) if conversations else examples(trajectory.read(path))
    except ValueError as error:
        raise BadTrajectories(str(error)) from error


class _Message(msgspec.Struct, frozen=True):
    speaker: Literal["human", "gpt"] = msgspec.field(name="from")
    value: str
    loss: bool | None = None


class _Conversation(msgspec.Struct, frozen=True):
    item_id: str
    conversations: list[_Message]
    reward: float | None = None
    success: bool | int | None = None


def _read_conversations(path: Path) -> Iterator[Example]:
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[_Conversation])
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    for number, row in enumerate(rows):
        try:
            yield _as_example(row)
        except ValueError as error:
            raise ValueError(f"{path}: conversation {number}, {row.item_id}: {error}") from error


def _as_example(row: _Conversation) -> Example:
    """The instruction and its acknowledgement, which is not trained, are no turn: an agent here is told both at once."""
    messages = row.conversations
    opens = len(messages) > 2 and messages[1].loss is False
    instruction, spoken = (messages[0].value, messages[2:]) if opens else ("", messages)
    observations, replies = spoken[::2], spoken[1::2]
    if (
        not replies
        or [message.speaker for message in spoken] != (["human", "gpt"] * len(spoken))[: len(spoken)]
    ):
        raise ValueError("must be human and gpt in turn, with at least one reply of gpt's")
    score = _score(row)
    turns = [
        Turn(said.value, reply.value, reward=0.0, score=0.0, valid=True, command=None)
        for said, reply in zip(observations, replies, strict=False)
    ]
    turns[-1] = msgspec.structs.replace(turns[-1], reward=score or 0.0, score=score or 0.0)
    episode = Trajectory(
        scenario=_numbering(row),
        task=None,
        item_id=row.item_id,
        seed=0,
        options={},
        instruction=instruction,
        turns=tuple(turns),
        final_observation=observations[-1].value if len(observations) > len(replies) else "",
        outcome=Outcome.SUCCESS if row.success or score == 1.0 else Outcome.FAILURE,
        score=score or 0.0,
    )
    return Example(episode, tuple(reply.loss is not False for reply in replies), scored=score is not None)


def _numbering(row: _Conversation) -> str:
    return row.item_id.rpartition("_")[0]


def _score(row: _Conversation) -> float | None:
    """The reward between 0 and 1; a punished end, below 0, scores 0."""
    if row.reward is None:
        return None
    score = max(row.reward / FULL_SCORE.get(_numbering(row), 1.0), 0.0)
    if not score <= 1.0:
        raise ValueError(f"its reward is {row.reward}, above all that can be reached")
    return score


# Sifting.


def worthwhile(found: Iterable[Example], min_score: float) -> list[Example]:
    """Those that succeeded or scored enough, and the demonstrations; never one that the environment failed."""
    return [
        example
        for example in found
        if example.episode.outcome is not Outcome.ENV_ERROR
        and (not example.scored or example.episode.success or example.episode.score >= min_score)
    ]


def best_per_item(found: Sequence[Example]) -> list[Example]:
    """One episode of each item, in order of first appearance: the best, the shortest among equals."""
    best: dict[str, Example] = {}
    for example in found:
        name = example.episode.item_id
        if name not in best or quality(example) > quality(best[name]):
            best[name] = example
    return list(best.values())


def quality(example: Example) -> tuple[bool, float, int]:
    """What sorts episodes of one item: success, then score, then brevity."""
    episode = example.episode
    return (episode.success, episode.score, -len(episode.turns))
