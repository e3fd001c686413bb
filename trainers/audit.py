"""Proves of a run that the ids that were sampled are the ids that were trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from gym_agents import trajectory
from gym_agents.trajectory import Generation, Trajectory
from trainers.acting.agents import Agent, make_agent
from trainers.acting.chat import ChatLayout
from trainers.acting.replay import drifts
from trainers.errors import BadTrajectories, TokenDrift
from trainers.folder import RunFolder
from trainers.learning.batch import Lesson, Row, pack, samples
from trainers.models import load_tokenizer
from trainers.screen import Screen
from trainers.settings import load


@dataclass
class Audit:
    """What was looked at, and where something else was found than was sampled."""

    episodes: int
    tokens: int
    """Sampled ones."""
    drifts: list[str]

    def __str__(self) -> str:
        shown = "".join(f"\n{drift}" for drift in self.drifts[:20])
        return (
            f"{self.episodes} episodes, {self.tokens} sampled tokens: {len(self.drifts)} drifts between what was "
            f"sampled and what is trained on.{shown}"
        )


def demand_no_drift(folder: Path) -> None:
    """Says what an audit of the run has found.

    Raises:
        TokenDrift: with a line for each, if there is any.
        BadTrajectories: as for `audit`.
    """
    found = audit(folder)
    if found.drifts:
        raise TokenDrift(str(found))
    Screen().say(str(found))


def audit(folder: Path) -> Audit:
    """Looks at every episode that a run has kept.

    Each is played again from its texts and its sampled ids, and packed as for an update.

    Raises:
        ConfigError: there is no run in the folder.
        BadTrajectories: the run has kept no episode.
    """
    run = RunFolder(folder)
    config = load([f"@{run.config}"])
    agent = make_agent(
        config.agent, ChatLayout(load_tokenizer(config.policy.model), config.agent.instruction)
    )
    paths = [*sorted(run.trajectories.glob("*.jsonl")), *sorted(run.evaluations.glob("*.jsonl"))]
    files = {path: list(trajectory.read(path)) for path in paths}
    episodes = list(chain.from_iterable(files.values()))
    if not episodes:
        raise BadTrajectories(f"{folder} has kept no episode that could be audited.")
    found = [
        f"{path.name}: {line}"
        for path, played in files.items()
        for line in _lines(played, agent, config.rl.tokens_per_batch)
    ]
    return Audit(len(episodes), sum(len(ids) for episode in episodes for ids in _sampled(episode)), found)


def _lines(episodes: Sequence[Trajectory], agent: Agent, tokens_per_row: int) -> Iterator[str]:
    for episode in episodes:
        name = f"{episode.item_id}, member {episode.member}"
        yield from (f"{name}: {drift}" for drift in drifts(episode, agent))
    yield from trained_otherwise(episodes, tokens_per_row)


def trained_otherwise(episodes: Sequence[Trajectory], tokens_per_row: int) -> list[str]:
    """Where the rows made of episodes would train on other ids, or after others, than were sampled; a line a sample."""
    made = [sample for episode in episodes for sample in samples(episode)]
    expected = [steps for episode in episodes for steps in _steps(episode)]
    if len(made) != len(expected):
        return [f"{len(expected)} contexts were sampled in, but {len(made)} are trained"]
    trained: list[list[tuple[int, ...]]] = [[] for _ in made]
    for row in pack([Lesson(sample) for sample in made], tokens_per_row):
        for at, index in enumerate(row.sample.tolist()):
            trained[index].append((*_seen(row, int(row.predict_at[at])), int(row.target_ids[at])))
    return [
        f"sample {index}: its row trains on other ids than were sampled"
        for index, (steps, rows) in enumerate(zip(expected, trained, strict=True))
        if steps != rows
    ]


def _seen(row: Row, place: int) -> list[int]:
    """The ids that a place of a row sees, in the order of their positions."""
    seen = row.visible()[0, 0, place].nonzero().squeeze(1)
    ids: list[int] = row.ids[seen[torch.argsort(row.position_ids[seen])]].tolist()
    return ids


def _steps(episode: Trajectory) -> list[list[tuple[int, ...]]]:
    """For each context of an episode, everything up to and with each sampled id."""
    contexts: list[list[tuple[int, ...]]] = []
    fed: tuple[int, ...] = ()
    for generation in _generations(episode):
        if generation.fresh or not contexts:
            contexts.append([])
            fed = ()
        fed += generation.context_ids
        for sampled in generation.sampled_ids:
            fed += (sampled,)
            contexts[-1].append(fed)
    return [steps for steps in contexts if steps]


def _sampled(episode: Trajectory) -> list[tuple[int, ...]]:
    return [generation.sampled_ids for generation in _generations(episode)]


def _generations(episode: Trajectory) -> list[Generation]:
    return [generation for turn in episode.turns for generation in turn.generations]
