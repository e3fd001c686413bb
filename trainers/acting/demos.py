"""Expert episodes, in the words that the agent itself is to use."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from gym_agents.errors import NotOffered
from gym_agents.horizon import HorizonLimit
from gym_agents.trajectory import Generation, Outcome, Trajectory, Turn
from gym_agents.vector import Event
from trainers.acting.agents import Agent, Prompt
from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Completion, Finish
from trainers.acting.sampler import Draw, ItemSampler
from trainers.acting.worlds import make_worlds, training_items
from trainers.config import Config

MAX_TURNS = 200
"""An expert that needs more is no example to follow."""


@dataclass
class _Attempt:
    """An expert's episode under way."""

    draw: Draw
    instruction: str = ""
    task: str | None = None
    item_id: str = ""
    observation: str = ""
    reply: str = ""
    turns: list[Turn] = field(default_factory=list)


def play_expert(envs: HorizonLimit, draws: Sequence[Draw]) -> list[Trajectory]:
    """The expert's episode of each drawn training item, in order; those that it does not solve are left out.

    Replies hold the action alone: no thought is put into an expert's mouth.

    Args:
        envs: on a server that plays the expert.
        draws: what to play.

    Raises:
        EnvironmentFailure: if the environment fails.
        NotOffered: if the expert has no advice for any of them.
    """
    envs.set_horizon(MAX_TURNS)
    waiting = deque(enumerate(draws))
    under_way: dict[int, tuple[int, _Attempt]] = {}
    solved: dict[int, Trajectory] = {}
    refusals: list[NotOffered] = []
    _start(envs, list(range(envs.num_envs)), waiting, under_way)
    while under_way:
        for event in envs.recv():
            number, attempt = under_way[event.index]
            _hear(attempt, event)
            if not (event.terminated or event.truncated) and _play_on(envs, event.index, attempt, refusals):
                continue
            if event.info["success"]:
                solved[number] = _trajectory(attempt, envs, event)
            del under_way[event.index]
            _start(envs, [event.index], waiting, under_way)
    if refusals and not solved:
        raise refusals[-1]
    return [solved[number] for number in sorted(solved)]


def expert_episodes(config: Config) -> list[Trajectory]:
    """The expert's episodes of `warm_start.episodes` draws of training items, from servers of its own.

    Raises:
        NotOffered: a scenario has no expert.
    """
    return list(chain.from_iterable(map(_expert_episodes, config.parts.values())))


def _expert_episodes(config: Config) -> list[Trajectory]:
    envs = make_worlds(config.env, expert=True)
    try:
        sampler = ItemSampler(training_items(envs, config.env), config.run.seed)
        return play_expert(envs, sampler.next(config.warm_start.episodes))
    finally:
        envs.close()


def _play_on(envs: HorizonLimit, index: int, attempt: _Attempt, refusals: list[NotOffered]) -> bool:
    """Sends the expert's next command; `False` where it has none."""
    try:
        attempt.reply = envs.scenario.reply(envs.expert(index), envs.connection.options)
    except NotOffered as refusal:
        refusals.append(refusal)
        return False
    envs.send([index], [attempt.reply])
    return True


def _start(
    envs: HorizonLimit,
    indices: Sequence[int],
    waiting: deque[tuple[int, Draw]],
    under_way: dict[int, tuple[int, _Attempt]],
) -> None:
    for index in indices:
        if waiting:
            number, draw = waiting.popleft()
            under_way[index] = (number, _Attempt(draw))
            envs.send_reset([index], seeds=[draw.seed], items=[draw.item], split="train")


def _hear(attempt: _Attempt, event: Event) -> None:
    if event.error is not None:
        raise event.error
    if event.kind == "reset":
        attempt.instruction, attempt.task = event.info["instruction"], event.info["task"]
        attempt.item_id = event.info["item_id"]
    else:
        attempt.turns.append(
            Turn(
                observation=attempt.observation,
                reply=attempt.reply,
                reward=event.reward,
                score=event.info["score"],
                valid=event.info["valid"],
                command=event.info["command"],
            )
        )
    attempt.observation = event.observation


def _trajectory(attempt: _Attempt, envs: HorizonLimit, last: Event) -> Trajectory:
    return Trajectory(
        scenario=envs.scenario.name,
        task=attempt.task,
        item_id=attempt.item_id,
        seed=attempt.draw.seed,
        options=envs.connection.plain_options,
        instruction=attempt.instruction,
        turns=tuple(attempt.turns),
        final_observation=last.observation,
        outcome=Outcome.SUCCESS,
        score=last.info["score"],
        group=attempt.draw.number,
    )


def as_sampled(episode: Trajectory, agent: Agent, layout: ChatLayout) -> Trajectory:
    """A demonstration with the tokens that the agent would have been given and have sampled to play it.

    The log-probabilities are left out: nobody sampled them. Where the agent asks for a plan or a reflection the
    expert says nothing, so that nothing is learned from it there.
    """
    play = agent.play(episode.instruction, episode.turns[0].observation)
    observations = [*(turn.observation for turn in episode.turns[1:]), episode.final_observation]
    step, turns = next(play), []
    for turn, observation in zip(episode.turns, observations, strict=True):
        generations = []
        while isinstance(step, Prompt):
            ids = layout.supervised(turn.reply) if step.part == "act" else ()
            generations.append(Generation(step.context_ids, ids, (), fresh=step.fresh, part=step.part))
            finish: Finish = "stop" if ids else "length"
            step = play.send(Completion(None, ids, logprobs=(), finish=finish, weight_version=0))
        turns.append(msgspec.structs.replace(turn, generations=tuple(generations)))
        step = play.send(observation)
    return msgspec.structs.replace(episode, turns=tuple(turns))
