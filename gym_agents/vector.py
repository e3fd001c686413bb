"""Many episodes at once: `step` for everyone, `send` and `recv` for whoever is ready first."""

from __future__ import annotations

import copy
import queue
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from numbers import Integral
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from gym_agents import background
from gym_agents.client import Client, Job, checked_reply
from gym_agents.connect import DEADLINE, connect
from gym_agents.env import Items, next_seed, start_info, step_info
from gym_agents.errors import AgentGymError, EnvironmentFailure, ResetNeeded, UsageError
from gym_agents.lockstep import Lockstep
from gym_agents.protocol import MAX_REPLY_BYTES, Answer, Hello, Reset, Started, Step, Stepped
from gym_agents.scenario import Options, Scenario
from gym_agents.session import Session
from gym_agents.spaces import UnicodeText


class Event(msgspec.Struct, frozen=True):
    """What became of one index's reset or step."""

    index: int
    kind: Literal["reset", "step"]
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    error: AgentGymError | None = None
    """Set where it failed; the index is then idle and must be reset."""


Arrival = tuple["Lane", Answer | AgentGymError]


class TextVectorEnv(Lockstep):
    """`num_envs` episodes, each with a session of its own; autoreset is disabled.

    The arguments are those of `gym_agents.env.TextEnv`, and `replicas`: how many local servers to start
    where no address is given. An index whose episode is over must be reset before it is stepped again.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        num_envs: int,
        scenario: str,
        task: str | None = None,
        *,
        server: str | None = None,
        token: str | None = None,
        replicas: int = 1,
        split: str = "train",
        items: str | Sequence[str] | None = None,
        deadline: float = DEADLINE,
        expert: bool = False,
        **options: Any,
    ) -> None:
        _demand_count(num_envs)
        self.connection = connect(
            scenario,
            server=server,
            token=token,
            replicas=replicas,
            deadline=deadline,
            expert=expert,
            options=options,
        )
        self.num_envs = num_envs
        self.task = task
        self.single_observation_space = UnicodeText(self.scenario.max_observation_chars + 64)
        self.single_action_space = UnicodeText(MAX_REPLY_BYTES, max_bytes=MAX_REPLY_BYTES)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._items = Items(split, items)
        self._start_anew()

    def _start_anew(self) -> None:
        """Every index idle; answers that are still on their way arrive in a queue that nobody reads."""
        self._lanes = [Lane(index) for index in range(self.num_envs)]
        self._arrivals: queue.SimpleQueue[Arrival | BaseException] = queue.SimpleQueue()

    @property
    def scenario(self) -> Scenario:
        return self.connection.scenario

    @property
    def options(self) -> Options:
        return self.connection.options

    @property
    def client(self) -> Client:
        return self.connection.client

    @property
    def numbering(self) -> str:
        """Name of the numbering of the items."""
        return background.run(self.client.hello()).numbering

    @property
    def backend(self) -> str:
        """Names and versions of the packages behind the episodes."""
        return background.run(self.client.hello()).backend

    def items(self, split: str | None = None, task: str | None = None) -> tuple[int, ...]:
        """The items of a split (default: the environment's own) and task (default: its own)."""
        return background.run(self.client.items(task or self.task, split or self._items.split))

    def send(self, indices: Sequence[int], replies: Sequence[str]) -> None:
        """Starts a step in each index; `recv` gives the results.

        Raises:
            UsageError: if there is no such index, or one is named twice; nothing was sent.
            ResetNeeded: if an index is not in play; nothing was sent.
            ReplyTooLong: if a reply is over the limit; nothing was sent.
        """
        _demand_each_once(indices)
        playing = [self._playing(index) for index in indices]
        texts = [checked_reply(reply) for reply in replies]
        jobs = []
        for (lane, session), text in zip(playing, texts, strict=True):
            lane.kind = "step"
            jobs.append((lane, session.step(text)))
        self._start(jobs)

    def send_reset(
        self,
        indices: Sequence[int],
        *,
        seeds: Sequence[int | None] | None = None,
        items: Sequence[Any] | None = None,
        split: str | None = None,
    ) -> None:
        """Starts an episode in each index; `recv` gives the first observations.

        Args:
            indices: which.
            seeds: one per index named; `None` draws the next of the index's own sequence.
            items: one number or id per index named; `None` lets its seed pick.
            split: `train` or `eval`, instead of the environment's own.

        Raises:
            UsageError: if there is no such index, or one is named twice; nothing was sent.
            ItemError: if an id is malformed or of another numbering; nothing was sent.
        """
        _demand_each_once(indices)
        hello = background.run(self.client.hello())
        seeds = seeds if seeds is not None else [None] * len(indices)
        items = items if items is not None else [None] * len(indices)
        starts = []
        for index, seed, named in zip(indices, seeds, items, strict=True):
            lane = self._idle(index)
            draw = lane.draw(seed)
            starts.append((lane, draw, self._items.choose(hello, draw.seed, named)))
        self._start([(lane, self._begin(lane, draw, item, split)) for lane, draw, item in starts])

    def _begin(self, lane: Lane, draw: Draw, item: int | None, split: str | None) -> Reset:
        """The call that starts an index's next episode, which takes the place of the one in play."""
        lane.kind, lane.rng = "reset", draw.rng
        lane.session = lane.session or self.client.open(self.task, self.connection.plain_options)
        return lane.session.reset(draw.seed, item, split or self._items.split)

    def recv(self, timeout: float | None = None) -> list[Event]:
        """Waits until at least one result is there, and gives all that are; `[]` at the timeout (seconds).

        Raises:
            ResetNeeded: if nothing was sent that could arrive.
        """
        if not any(lane.waiting for lane in self._lanes):
            raise ResetNeeded("Nothing is on its way: send first.")
        events = []
        try:
            events.append(self._taken(self._arrivals.get(timeout=timeout)))
            while True:
                events.append(self._taken(self._arrivals.get_nowait()))
        except queue.Empty:
            return events

    def end(self, index: int) -> None:
        """Says that an index's episode is over, by a limit above this environment."""
        self._lanes[index].playing = False

    def expert(self, index: int) -> str:
        """The expert's next command in an index, where the server plays one."""
        return background.run(self.client.expert(self._playing(index)[1]))

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the sessions."""
        background.run(self.client.leave([lane.session for lane in self._lanes if lane.session]))
        self._start_anew()

    def _idle(self, index: int) -> Lane:
        if index not in range(self.num_envs):
            raise UsageError(f"There is no index {index!r}: they count from 0 to {self.num_envs - 1}.")
        lane = self._lanes[index]
        if lane.waiting:
            raise ResetNeeded(f"Index {index} still waits for an answer: recv it first.")
        return lane

    def _playing(self, index: int) -> tuple[Lane, Session]:
        lane = self._idle(index)
        if not lane.playing or lane.session is None:
            raise ResetNeeded(f"The episode of index {index} has not started or is over: reset it first.")
        return lane, lane.session

    def _start(self, jobs: Sequence[tuple[Lane, Reset | Step]]) -> None:
        """Puts the calls on their way; each answer comes back through the queue of arrivals."""
        by_session = {}
        for lane, call in jobs:
            assert lane.session is not None
            lane.waiting, lane.playing = True, False
            by_session[call.session] = lane
        arrived = self._arrivals.put

        def deliver(job: Job, answer: Answer | AgentGymError) -> None:
            arrived((by_session[job.call.session], answer))

        calls = [Job(lane.session, call) for lane, call in jobs if lane.session]
        background.spawn(self.client.play(calls, deliver)).add_done_callback(self._report_crash)

    def _report_crash(self, future: Future[None]) -> None:
        """An unforeseen error on the way is raised by `recv`, instead of leaving it to wait for ever."""
        if not future.cancelled() and (error := future.exception()) is not None:
            self._arrivals.put(error)

    def _taken(self, arrival: Arrival | BaseException) -> Event:
        if isinstance(arrival, BaseException):
            raise arrival
        lane, answer = arrival
        lane.waiting = False
        if isinstance(answer, Started):
            return lane.started(background.run(self.client.hello()), answer)
        if isinstance(answer, Stepped):
            return lane.stepped(answer)
        assert isinstance(answer, AgentGymError)
        if isinstance(answer, EnvironmentFailure) and lane.session is not None:
            background.spawn(self.client.leave([lane.session]))
            lane.session = None
        return Event(lane.index, lane.kind, "", 0.0, False, False, {}, answer)


def _demand_count(num_envs: Any) -> None:
    if isinstance(num_envs, bool) or not isinstance(num_envs, Integral) or int(num_envs) < 1:
        raise UsageError(f"A vector holds a whole number of environments, at least 1, not {num_envs!r}.")


def _demand_each_once(indices: Sequence[int]) -> None:
    twice = [index for index, times in Counter(indices).items() if times > 1]
    if twice:
        raise UsageError(f"Each index has one episode, but named more than once: {twice}.")


class Draw(NamedTuple):
    """The seed of an index's next episode, and the sequence that the ones after it are drawn from."""

    seed: int
    rng: np.random.Generator


class Lane:
    """What is known of one index."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.session: Session | None = None
        self.playing = False
        self.waiting = False
        self.kind: Literal["reset", "step"] = "reset"
        self.rng, _ = seeding.np_random()
        self._item = ""
        self._task: str | None = None

    def draw(self, seed: int | None) -> Draw:
        """The episode's seed: the one given, which also starts the index's sequence anew, or its next."""
        if seed is None:
            rng = copy.deepcopy(self.rng)  # the index's own moves on when the episode starts
            return Draw(next_seed(rng), rng)
        return Draw(seed, seeding.np_random(seed)[0])

    def started(self, hello: Hello, answer: Started) -> Event:
        info = start_info(hello, answer)
        self.playing, self._item, self._task = True, info["item_id"], answer.task
        return Event(self.index, "reset", answer.observation, 0.0, False, False, info)

    def stepped(self, answer: Stepped) -> Event:
        self.playing = not (answer.terminated or answer.truncated)
        info = step_info(self._item, self._task, answer)
        return Event(
            self.index,
            "step",
            answer.observation,
            answer.reward,
            answer.terminated,
            answer.truncated,
            info,
        )
