"""Plays an episode again from what was kept of it, and compares the tokens."""

from __future__ import annotations

import msgspec

from gym_agents.trajectory import Generation, Trajectory
from trainers.acting.agents import Agent, Prompt, Reply
from trainers.acting.chat import ChatLayout
from trainers.acting.demos import as_sampled
from trainers.acting.engines.base import Completion


def drifts(episode: Trajectory, agent: Agent) -> list[str]:
    """Where an episode's tokens are not those of its texts, a line each; none for tokens that are right.

    The agent is given the observations and the sampled ids that were kept. It must ask with exactly the ids that
    were kept as context, and what it then tells the world must be exactly the reply that was kept.
    """
    if not episode.turns:
        return []
    found: list[str] = []
    play = agent.play(episode.instruction, episode.turns[0].observation)
    step = next(play)
    for number, turn in enumerate(episode.turns):
        if number:
            step = play.send(turn.observation)
        for generation in turn.generations:
            if not isinstance(step, Prompt):
                return [*found, f"turn {number}: more was sampled than the agent asks for"]
            if (step.context_ids, step.fresh) != (generation.context_ids, generation.fresh):
                found.append(f"turn {number}: the ids before the reply are not those that the agent gives")
            step = play.send(_completion(generation, agent.stop_ids))
        if not isinstance(step, Reply):
            return [*found, f"turn {number}: less was sampled than the agent asks for"]
        if step.text != turn.reply:
            found.append(f"turn {number}: the sampled ids do not say the reply")
    return found


def _completion(generation: Generation, stop_ids: frozenset[int]) -> Completion:
    ids = generation.sampled_ids
    stopped = bool(ids) and ids[-1] in stop_ids
    return Completion(
        None, ids, generation.logprobs, "stop" if stopped else "length", generation.weight_version
    )


def in_own_tokens(episode: Trajectory, agent: Agent, layout: ChatLayout) -> Trajectory:
    """The episode as it was sampled, if this agent and tokenizer sampled it; else laid out anew from its texts."""
    sampled = all(turn.generations for turn in episode.turns)
    return episode if sampled and not drifts(episode, agent) else as_sampled(episode, agent, layout)


def withheld(episode: Trajectory, trained: tuple[bool, ...]) -> Trajectory:
    """The episode with the replies that are not to be learned from as context, where nothing was sampled."""
    turns = [
        turn
        if learned
        else msgspec.structs.replace(turn, generations=tuple(map(_as_context, turn.generations)))
        for turn, learned in zip(episode.turns, trained, strict=True)
    ]
    return msgspec.structs.replace(episode, turns=tuple(turns))


def _as_context(generation: Generation) -> Generation:
    context_ids = (*generation.context_ids, *generation.sampled_ids)
    return msgspec.structs.replace(generation, context_ids=context_ids, sampled_ids=(), logprobs=())
