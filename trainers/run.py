"""What the phases of a run share: its parts, where it stands, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from gym_agents.errors import UsageError
from gym_agents.trajectory import Trajectory
from trainers.acting.agents import Agent
from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Sampling
from trainers.acting.evaluate import WAYS, Evaluation, ItemResult, Way, evaluate, success
from trainers.acting.groups import Harvest
from trainers.acting.health import ErrorBudget
from trainers.acting.rollout import Job, rollout
from trainers.acting.sampler import ItemSampler
from trainers.acting.worlds import Part, training_items
from trainers.checkpoint import BEST, Checkpoints, State, restore
from trainers.config import Config
from trainers.errors import UnsoundUpdate
from trainers.folder import RunFolder, replace_episodes
from trainers.learning.batch import Row
from trainers.metrics import Stopwatch, TimedEngine, describe_harvests
from trainers.models import Policy
from trainers.screen import Screen

Value = TypeVar("Value")


@dataclass(kw_only=True)
class Evaluator:
    """What plays and evaluates: an agent, an engine and worlds, and the folder that keeps what they show."""

    config: Config
    folder: RunFolder
    accelerator: Accelerator
    agent: Agent
    engine: TimedEngine
    parts: tuple[Part, ...]
    """The scenario, or those of the mix."""
    screen: Screen
    watch: Stopwatch
    state: State = field(default_factory=State)

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return bool(self.accelerator.is_main_process)

    @property
    def deterministic(self) -> bool:
        """Whether the order of episodes inside a batch is fixed: on a CPU, unless said otherwise."""
        asked = self.config.run.deterministic
        return self.accelerator.device.type == "cpu" if asked is None else asked

    def weights(self) -> str:
        """The fingerprint of the weights that act; a model behind an API has none that could change."""
        return ""

    def from_main(self, make: Callable[[], Value]) -> Value:
        """What the main process makes, on every process."""
        [made] = broadcast_object_list([make() if self.is_main else None])
        value: Value = made
        return value

    def play(
        self, part: Part, jobs: Sequence[Job], *, horizon: int | None, sampling: Sampling, update: int = 0
    ) -> list[Trajectory]:
        """Plays jobs, each process its share of the groups; every process gets all episodes, in the jobs' order.

        Raises:
            TooManyEnvErrors: as soon as more than `env.max_error_rate` of a process's share has failed.
        """
        processes, mine = self.accelerator.num_processes, self.accelerator.process_index
        turns = {group: turn for turn, group in enumerate(dict.fromkeys(job.group for job in jobs))}
        share = [job for job in jobs if turns[job.group] % processes == mine]
        budget = ErrorBudget(self.config.env, len(share))
        with self.screen.episodes(len(share)) as show:

            def finished(episode: Trajectory) -> None:
                show(episode)
                budget.spend(episode)

            episodes = rollout(
                self.agent,
                self.engine,
                part.envs,
                share,
                horizon=horizon,
                sampling=sampling,
                update=update,
                deterministic=self.deterministic,
                on_episode=finished,
            )
        if processes == 1:
            return episodes
        places = {(job.group, job.member): place for place, job in enumerate(jobs)}
        everyone: list[Trajectory] = gather_object(episodes)
        return sorted(everyone, key=lambda episode: places[episode.group, episode.member])

    def evaluation(self, update: int) -> Evaluation:
        """What the policy after so many updates makes of the held-out items: as the folder has it, or played now.

        Evaluations draw as update 0 does, so that equal weights give equal episodes.

        Raises:
            UsageError: if it is neither in the folder nor of the policy as it stands.
        """
        known = self.from_main(partial(self._known_evaluation, update))
        if known is not None:
            return known
        if update != self.state.update:
            raise UsageError(
                f"{self.folder.path} has lost its evaluation of update {update}: start a new run."
            )
        results: list[ItemResult] = []
        episodes: dict[Way, list[Trajectory]] = {}
        for part in self.parts:
            found, played = self._evaluate(part)
            results += found
            episodes = {way: [*episodes.get(way, []), *more] for way, more in played.items()}
        horizon = max((part.horizon for part in self.parts if part.horizon), default=None)
        evaluation = Evaluation(update, horizon, tuple(results), self.weights())
        if self.is_main:
            self.folder.write_evaluation(evaluation, episodes)
        self.screen.evaluation(evaluation)
        self.track({f"held_out/{way}": success(evaluation, way).mean for way in WAYS}, update)
        return evaluation

    def _evaluate(self, part: Part) -> tuple[list[ItemResult], dict[Way, list[Trajectory]]]:
        """Plays the held-out items of a scenario."""
        items = part.evaluation_items()
        what = f"{len(items)} held-out items of {part.envs.numbering}"
        self.screen.say(f"Evaluating {what}, at most {part.horizon} turns each.")
        return evaluate(
            partial(self.play, part, horizon=part.horizon),
            items,
            attempts=self.config.eval.attempts,
            max_new_tokens=self.config.sampling.max_new_tokens,
            seed=self.config.run.seed,
        )

    def _known_evaluation(self, update: int) -> Evaluation | None:
        """The folder's, if it is of the weights as they stand, or of an update that has gone by."""
        known = self.folder.read_evaluation(update)
        stands = update == self.state.update
        return None if known and stands and known.weights != self.weights() else known

    def track(self, figures: Mapping[str, float], update: int) -> None:
        """Sends figures to the trackers, as far as there are any."""
        self.accelerator.log(dict(figures), step=update)

    def close(self) -> None:
        """Ends the worlds' sessions and the trackers, once all is done; what is interrupted leaves them to their leases."""
        for part in self.parts:
            part.envs.close()
        self.accelerator.end_training()


@dataclass(kw_only=True)
class Run(Evaluator):
    """A run of the trainer: an evaluator whose policy learns."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    layout: ChatLayout

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder.checkpoints)

    def weights(self) -> str:
        """The fingerprint of the policy as it stands."""
        return self.policy.fingerprint()

    def share(self, rows: list[Value]) -> list[Value]:
        """This process's share: every n-th."""
        return rows[self.accelerator.process_index :: self.accelerator.num_processes]

    def sampler(self, part: Part) -> ItemSampler:
        """The training items of a scenario, from where the run stands."""
        items = training_items(part.envs, part.config.env)
        drawn = self.state.place(part.name).drawn
        return ItemSampler(items, self.config.run.seed, drawn, turn=part.place, turns=len(self.parts))

    def resume(self) -> bool:
        """Goes to the newest checkpoint; `False` if there is none.

        What was noted of updates after it is dropped: they will be played again.
        """
        newest = self.checkpoints.newest()
        if newest is not None:
            self.state = restore(newest, self.policy, self.optimizer)
            self.engine.sync(self.state.update)
            self.screen.say(f"Going on from {newest}.")
        if self.is_main:
            self.folder.forget_after(self.state.update)
        return newest is not None

    def player(self, part: Part, horizon: int, update: int) -> Callable[[list[Job]], list[Trajectory]]:
        """How an update's jobs are played."""
        how = self.config.sampling
        sampling = Sampling(how.temperature, how.top_p, how.max_new_tokens)
        return partial(self.play, part, horizon=horizon, sampling=sampling, update=update)

    # Telling.

    def start_lap(self) -> None:
        """What is timed and counted from here on belongs to the next update."""
        self.watch.lap()
        self.engine.lap()

    def record(
        self, update: int, harvests: Mapping[str, Harvest], figures: dict[str, float]
    ) -> dict[str, Any]:
        """Notes what an update did, in `metrics.jsonl`, in its trajectories and on the screen; gives the line."""
        row: dict[str, Any] = {
            "update": update,
            **describe_harvests(harvests),
            **figures,
            **self.engine.lap(),
            "seconds": self.watch.lap(),
        }
        if self.is_main:
            everything = chain.from_iterable(harvest.episodes for harvest in harvests.values())
            self.folder.write_trajectories(update, everything)
            self.folder.append_metrics(row)
        self.screen.update(row, self.config.updates)
        self._track_row(row)
        return row

    def record_step(self, update: int, figures: dict[str, float]) -> None:
        """Notes what an update did that played nothing."""
        row = {"update": update, **figures, "seconds": self.watch.lap()}
        if self.is_main:
            self.folder.append_metrics(row)
        self.screen.step(row, self.config.updates)
        self._track_row(row)

    def _track_row(self, row: dict[str, Any]) -> None:
        times = {f"seconds/{part}": seconds for part, seconds in row["seconds"].items()}
        self.track({key: value for key, value in row.items() if key != "seconds"} | times, row["update"])

    def evaluates_at(self, update: int) -> bool:
        """Whether the held-out items are played after this update."""
        every = self.config.eval.every
        return update == self.config.updates or bool(every and update % every == 0)

    @contextmanager
    def kept_if_unsound(
        self, update: int, episodes: Sequence[Trajectory], rows: Sequence[Row]
    ) -> Iterator[None]:
        """Where a step must not be made, keeps what it would have been made from, and says where."""
        try:
            yield
        except UnsoundUpdate as error:
            path = self.folder.unsound(update, self.accelerator.process_index)
            replace_episodes(path.with_suffix(".jsonl"), episodes)
            torch.save([vars(row) for row in rows], path)
            raise type(error)(f"{error}. Its rows are in {path}, its episodes beside them.") from error

    def advance(self, state: State) -> None:
        """Moves on to a new state, and keeps it where a checkpoint is due."""
        self.state = state
        due = state.update % self.config.run.checkpoint_every == 0 or state.update == self.config.updates
        if self.is_main and due:
            self.checkpoints.save(state, self.policy, self.optimizer, keep=self.config.run.keep_checkpoints)
        self.accelerator.wait_for_everyone()
        if self.evaluates_at(state.update):
            self.judge(state.update)

    def judge(self, update: int) -> Evaluation:
        """Evaluates the policy as it stands, and keeps it where no evaluation before was better."""
        evaluation = self.evaluation(update)
        stands = update == self.state.update
        if self.is_main and stands and self.folder.best_update() == update != self.checkpoints.best():
            self.checkpoints.save_best(self.state, self.policy)
            if update:
                self.screen.say(f"The best so far on held-out items: {self.checkpoints.folder / BEST}.")
        self.accelerator.wait_for_everyone()
        return evaluation
