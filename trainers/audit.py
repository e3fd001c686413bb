"""Proves of a run that the ids that were sampled are the ids that were trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gym_agents import trajectory
from gym_agents.trajectory import Generation, Trajectory
from trainers.acting.agents import Agent, make_agent
from trainers.acting.chat import ChatLayout
from trainers.acting.replay import drifts
from trainers.errors import BadTrajectories, TokenDrift
from trainers.folder import RunFolder
from trainers.learning.fingerprints import fingerprint
from trainers.models import load_tokenizer
from trainers.screen import Screen
from trainers.settings import load

SHOWN = 20
"""Most drifted episodes that are named."""


@dataclass
class Audit:
    """What was looked at, and which episodes hold other ids than were sampled, or were trained on other ids."""

    episodes: int = 0
    trained: int = 0
    """Episodes that an update was made from."""
    tokens: int = 0
    """Sampled ones."""
    drifted: dict[str, list[str]] = field(default_factory=dict)
    """Episode -> what is wrong with it."""

    def __str__(self) -> str:
        lines = [f"\n{name}: {'; '.join(what)}" for name, what in list(self.drifted.items())[:SHOWN]]
        return (
            f"{self.episodes} episodes, of which {self.trained} were trained on, and {self.tokens} sampled tokens: "
            f"{len(self.drifted)} episodes drifted.{''.join(lines)}"
        )


def demand_no_drift(folder: Path) -> None:
    """Says what an audit of the run has found.

    Raises:
        TokenDrift: naming the episodes that drifted, if there are any.
        BadTrajectories: as for `audit`.
    """
    found = audit(folder)
    if found.drifted:
        raise TokenDrift(str(found))
    Screen().say(str(found))


def audit(folder: Path) -> Audit:
    """Looks at every episode that a run has kept.

    Each is played again from its texts and sampled ids, and compared with what the update noted of the rows that it
    was made from.

    Raises:
        ConfigError: there is no run in the folder.
        BadTrajectories: the run has kept no episode.
    """
    run = RunFolder(folder)
    config = load([f"@{run.config}"])
    layout = ChatLayout(load_tokenizer(config.policy.model), config.agent.instruction)
    agent, found = make_agent(config.agent, layout), Audit()
    for path in [*sorted(run.trajectories.glob("*.jsonl")), *sorted(run.evaluations.glob("*.jsonl"))]:
        trained = run.read_fingerprints(path.stem)
        for episode in trajectory.read(path):
            _look_at(
                found, f"{path.stem}, {episode.item_id}, member {episode.member}", episode, agent, trained
            )
    if not found.episodes:
        raise BadTrajectories(f"{folder} has kept no episode that could be audited.")
    return found


def _look_at(
    found: Audit, name: str, episode: Trajectory, agent: Agent, trained: Mapping[str, list[int]]
) -> None:
    noted = trained.get(f"{episode.group}/{episode.member}")
    wrong = drifts(episode, agent)
    if noted is not None and noted != list(_fingerprints(episode)):
        wrong.append("it was trained on other ids than it holds")
    found.episodes += 1
    found.trained += noted is not None
    found.tokens += sum(len(part.sampled_ids) for turn in episode.turns for part in turn.generations)
    if wrong:
        found.drifted[name] = wrong


def _fingerprints(episode: Trajectory) -> Iterator[int]:
    """Of each context in which something was sampled, from what is on file alone."""
    for context in _contexts(episode):
        ids: list[int] = []
        sampled_at: list[int] = []
        for generation in context:
            ids += generation.context_ids
            sampled_at += range(len(ids), len(ids) + len(generation.sampled_ids))
            ids += generation.sampled_ids
        if sampled_at:
            yield fingerprint(ids[: sampled_at[-1] + 1], sampled_at)


def _contexts(episode: Trajectory) -> list[list[Generation]]:
    contexts: list[list[Generation]] = []
    for turn in episode.turns:
        for generation in turn.generations:
            if generation.fresh or not contexts:
                contexts.append([])
            contexts[-1].append(generation)
    return contexts
