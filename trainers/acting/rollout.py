"""Plays jobs: an agent, an engine and a vector of worlds become trajectories.

An event loop between two queues. Worlds that have answered are heard by their agents, which ask the engine or
reply; whatever the engine completes goes back to the agents. An index whose episode is over takes the next job
at once, so that the batch stays full until the jobs run out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym_agents.errors import AgentError, AgentGymError, EnvironmentFailure
from gym_agents.horizon import HorizonLimit
from gym_agents.items import item_id
from gym_agents.trajectory import CUTS, Generation, Outcome, Trajectory, Turn
from gym_agents.vector import Event
from trainers.acting.agents import Agent, Play, Prompt, Reply
from trainers.acting.engines.base import Completion, Engine, Request, Sampling

DRAIN = 5.0
"""Seconds to wait for each answer that is still under way when a rollout is broken off."""


@dataclass(frozen=True)
class Job:
    """One episode to play."""

    item: int
    seed: int
    """Of the environment; with update, item, member and turn also of all that is sampled."""
    group: int
    member: int
    split: str = "train"


def rollout(
    agent: Agent,
    engine: Engine,
    envs: HorizonLimit,
    jobs: Sequence[Job],
    *,
    horizon: int | None,
    sampling: Sampling,
    update: int,
    deterministic: bool,
    retries: int = 1,
    on_episode: Callable[[Trajectory], object] | None = None,
) -> list[Trajectory]:
    """Plays every job once; the trajectories come in the order of the jobs.

    Args:
        agent: turns observations into prompts, and completions into replies.
        engine: samples.
        envs: the worlds; as many episodes are in play at once as it holds.
        jobs: what to play.
        horizon: turn limit.
        sampling: how tokens are drawn.
        update: written into the trajectories, and part of every seed.
        deterministic: hear the worlds in a fixed order, waiting for all of them before each step of the engine,
            so that every batch is a function of the jobs alone; otherwise whoever is ready first goes first.
        retries: how many times an episode that the environment failed is begun anew, with the same seeds.
        on_episode: told of each trajectory as its episode ends.

    Raises:
        UsageError: the jobs or the environment cannot be played as they are.
    """
    run = _Rollout(agent, engine, envs, jobs, sampling, update, retries, on_episode)
    envs.set_horizon(horizon)
    try:
        run.play(deterministic)
    except BaseException:
        run.break_off()
        raise
    return [run.ended[order] for order in range(len(jobs))]


@dataclass
class _Episode:
    """An episode in play."""

    order: int
    """Which job it plays."""
    job: Job
    attempt: int = 0
    task: str | None = None
    instruction: str = ""
    play: Play | None = None
    contexts: int = 0
    """How many contexts were begun; a new one is a new conversation."""
    observation: str = ""
    prompt: Prompt | None = None
    reply: str = ""
    generations: list[Generation] = field(default_factory=list)
    """Of the turn that is under way."""
    turns: list[Turn] = field(default_factory=list)

    @property
    def conversation(self) -> tuple[int, int, int]:
        return (self.order, self.attempt, self.contexts)

    @property
    def score(self) -> float:
        return self.turns[-1].score if self.turns else 0.0


class _Rollout:
    """The state of one rollout."""

    def __init__(
        self,
        agent: Agent,
        engine: Engine,
        envs: HorizonLimit,
        jobs: Sequence[Job],
        sampling: Sampling,
        update: int,
        retries: int,
        on_episode: Callable[[Trajectory], object] | None,
    ) -> None:
        self.ended: dict[int, Trajectory] = {}
        self._agent = agent
        self._engine = engine
        self._envs = envs
        self._sampling = sampling
        self._update = update
        self._retries = retries
        self._on_episode = on_episode
        self._numbering: str = envs.numbering
        self._left = list(enumerate(jobs))[::-1]
        self._episodes: dict[int, _Episode] = {}  # by index
        self._asking: dict[Any, int] = {}  # conversation -> index
        self._resets: list[int] = []  # to be sent
        self._replies: dict[int, str] = {}  # to be sent
        self._awaited: set[int] = set()  # sent, not yet answered

    def play(self, deterministic: bool) -> None:
        """Runs until every job has ended."""
        for index in range(self._envs.num_envs):
            self._take_job(index)
        while self._episodes:
            self._hear_all() if deterministic else self._hear_some()
            for completion in self._engine.collect():
                self._completed(completion)

    def break_off(self) -> None:
        """Leaves engine and worlds usable: nothing is generated or under way any more."""
        for episode in self._episodes.values():
            self._engine.release(episode.conversation)
        while self._awaited and self._receive(DRAIN):
            pass

    # Between the rollout and the worlds.

    def _hear_all(self) -> None:
        """Waits for every answer, and hears them in the order of their indices."""
        self._send()
        while self._awaited:
            events: list[Event] = []
            while self._awaited:
                events += self._receive(None)
            for event in sorted(events, key=lambda event: event.index):
                self._answered(event)
            self._send()

    def _hear_some(self) -> None:
        """Hears the answers that are there; waits for one only where the engine has nothing to do."""
        self._send()
        if self._awaited:
            for event in self._receive(0.0 if self._asking else None):
                self._answered(event)
            self._send()

    def _receive(self, timeout: float | None) -> list[Event]:
        events = self._envs.recv(timeout)
        self._awaited.difference_update(event.index for event in events)
        return events

    def _send(self) -> None:
        """Sends the replies and resets that have gathered, each kind in one call."""
        replies, self._replies = dict(sorted(self._replies.items())), {}
        self._send_replies(replies)
        resets, self._resets = sorted(self._resets), []
        jobs = {index: self._episodes[index].job for index in resets}
        for split in sorted({job.split for job in jobs.values()}):
            chosen = {index: job for index, job in jobs.items() if job.split == split}
            self._envs.send_reset(
                list(chosen),
                seeds=[job.seed for job in chosen.values()],
                items=[job.item for job in chosen.values()],
                split=split,
            )
            self._awaited.update(chosen)

    def _send_replies(self, replies: dict[int, str]) -> None:
        """Sends replies; where one is refused, nothing was sent, and each is sent alone."""
        if not replies:
            return
        try:
            self._envs.send(list(replies), list(replies.values()))
            self._awaited.update(replies)
        except AgentError as error:
            if len(replies) == 1:
                self._refused(next(iter(replies)), error)
            else:
                for index, reply in replies.items():
                    self._send_replies({index: reply})

    def _answered(self, event: Event) -> None:
        episode = self._episodes[event.index]
        if event.error is not None:
            self._failed(event.index, event.error)
        elif event.kind == "reset":
            self._started(event.index, episode, event)
        else:
            self._stepped(event.index, episode, event)

    def _started(self, index: int, episode: _Episode, event: Event) -> None:
        episode.task, episode.instruction = event.info["task"], event.info["instruction"]
        episode.observation = event.observation
        episode.play = self._agent.play(episode.instruction, event.observation)
        self._advance(index, next(episode.play))

    def _stepped(self, index: int, episode: _Episode, event: Event) -> None:
        info = event.info
        self._end_turn(episode, event.reward, info["score"], valid=info["valid"], command=info["command"])
        episode.observation = event.observation
        outcome = _outcome(event)
        if outcome is not None and outcome is not Outcome.HORIZON_CUT:
            self._end(index, outcome)
        elif episode.play is not None:
            step = episode.play.send(event.observation)
            if outcome is None:
                self._advance(index, step)
            else:
                episode.prompt = step if isinstance(step, Prompt) else None
                self._end(index, outcome)

    def _failed(self, index: int, error: AgentGymError) -> None:
        """The environment failed, or refused the reply."""
        episode = self._episodes[index]
        if isinstance(error, AgentError):
            self._refused(index, error)
        elif not isinstance(error, EnvironmentFailure):
            raise error
        elif episode.attempt == self._retries:
            self._end(index, Outcome.ENV_ERROR, error)
        else:
            self._engine.release(episode.conversation)
            self._episodes[index] = _Episode(episode.order, episode.job, episode.attempt + 1)
            self._resets.append(index)

    def _refused(self, index: int, error: AgentError) -> None:
        """The reply never reached the world: a turn that earns nothing, and the end."""
        episode = self._episodes[index]
        self._end_turn(episode, 0.0, episode.score, valid=False, command=None)
        self._end(index, Outcome.FAILURE, error)

    # Between the agents and the engine.

    def _advance(self, index: int, step: Prompt | Reply) -> None:
        episode = self._episodes[index]
        if isinstance(step, Reply):
            episode.reply = self._replies[index] = step.text
        else:
            self._ask(index, episode, step)

    def _ask(self, index: int, episode: _Episode, prompt: Prompt) -> None:
        if prompt.fresh:
            self._engine.release(episode.conversation)
            episode.contexts += 1
        episode.prompt = prompt
        job, turn, part = episode.job, len(episode.turns), len(episode.generations)
        self._asking[episode.conversation] = index
        self._engine.submit(
            Request(
                conversation=episode.conversation,
                context_ids=prompt.context_ids,
                sampling=self._sampling,
                stop_ids=self._agent.stop_ids,
                seed=(job.seed, self._update, job.item, job.member, turn, part),
            )
        )

    def _completed(self, completion: Completion) -> None:
        index = self._asking.pop(completion.conversation)
        episode = self._episodes[index]
        if not completion.sampled_ids:
            self._no_room(index, episode)
        elif episode.play is not None and episode.prompt is not None:
            episode.generations.append(_generation(episode.prompt, completion))
            self._advance(index, episode.play.send(completion))

    def _no_room(self, index: int, episode: _Episode) -> None:
        """No token more; what was sampled for a reply that never came is a turn that earns nothing."""
        if episode.generations:
            episode.reply = ""
            self._end_turn(episode, 0.0, episode.score, valid=False, command=None)
        self._end(index, Outcome.LENGTH_CUT)

    # Beginnings and ends.

    def _take_job(self, index: int) -> None:
        if self._left:
            self._episodes[index] = _Episode(*self._left.pop())
            self._resets.append(index)

    def _end_turn(
        self, episode: _Episode, reward: float, score: float, *, valid: bool, command: str | None
    ) -> None:
        generations, episode.generations = tuple(episode.generations), []
        episode.turns.append(
            Turn(episode.observation, episode.reply, reward, score, valid, command, generations)
        )

    def _end(self, index: int, outcome: Outcome, error: AgentGymError | None = None) -> None:
        episode = self._episodes.pop(index)
        self._engine.release(episode.conversation)
        trajectory = self._trajectory(episode, outcome, error)
        self.ended[episode.order] = trajectory
        self._take_job(index)
        if self._on_episode is not None:
            self._on_episode(trajectory)

    def _trajectory(self, episode: _Episode, outcome: Outcome, error: AgentGymError | None) -> Trajectory:
        envs, job = self._envs, episode.job
        return Trajectory(
            scenario=envs.scenario.name,
            task=episode.task,
            item_id=item_id(self._numbering, job.item),
            seed=job.seed,
            options=dataclasses.asdict(envs.options),
            instruction=episode.instruction,
            turns=tuple(episode.turns),
            final_observation=episode.observation,
            outcome=outcome,
            score=episode.score,
            group=job.group,
            member=job.member,
            horizon=envs.horizon,
            update=self._update,
            final_context_ids=_unanswered(episode) if outcome in CUTS else (),
            error=None if error is None else f"{error.code}: {error}",
        )


def _unanswered(episode: _Episode) -> tuple[int, ...]:
    """What a cut episode's policy would have seen next, where that goes on from what it saw before."""
    prompt = episode.prompt
    goes_on = prompt is not None and not prompt.fresh and not episode.generations
    return tuple(prompt.context_ids) if prompt is not None and goes_on else ()


def _generation(prompt: Prompt, completion: Completion) -> Generation:
    return Generation(
        context_ids=tuple(prompt.context_ids),
        sampled_ids=completion.sampled_ids,
        logprobs=completion.logprobs,
        weight_version=completion.weight_version,
        fresh=prompt.fresh,
        part=prompt.part,
    )


def _outcome(event: Event) -> Outcome | None:
    """How the episode ended with this event; a win on the last allowed turn is a win."""
    if event.terminated or event.truncated:
        if event.info["success"]:
            return Outcome.SUCCESS
        return Outcome.FAILURE if event.terminated else Outcome.HORIZON_CUT
    return None
