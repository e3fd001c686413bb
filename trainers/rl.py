"""Reinforcement learning over groups of episodes, under a turn limit that grows (ScalingInter-RL)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from statistics import fmean

from gym_agents.trajectory import Trajectory
from trainers.acting.curriculum import advance, horizon_at
from trainers.acting.groups import Harvest, harvest
from trainers.acting.sampler import ItemSampler
from trainers.acting.worlds import Part
from trainers.checkpoint import Place, State
from trainers.config import RLConfig
from trainers.learning.algorithms import make_lessons
from trainers.learning.batch import collect_samples, minibatches, pack
from trainers.learning.fingerprints import Fingerprints, fingerprints
from trainers.learning.losses import adapted_kl_scale
from trainers.learning.scoring import describe_scores, score
from trainers.learning.update import rl_update
from trainers.run import Run


def train(run: Run) -> None:
    """Collects, then learns, update after update, from where the run stands.

    Raises:
        TooManyEnvErrors: if the environment fails more often than `env.max_error_rate`.
        UnsoundUpdate: if a step must not be made; the message names the files that hold its batch.
    """
    samplers = {part.name: run.sampler(part) for part in run.parts}
    for update in range(run.state.update + 1, run.config.rl.updates + 1):
        run.start_lap()
        with run.watch("acting"):
            harvests = {part.name: collect(run, part, samplers[part.name], update) for part in run.parts}
        with run.watch("learning"):
            figures = learn(run, usable_episodes(harvests), update)
            run.engine.sync(update)
        row = run.record(update, harvests, figures)
        run.advance(following(run, row, samplers))


def collect(run: Run, part: Part, sampler: ItemSampler, update: int) -> Harvest:
    """Plays a scenario's groups of an update, under the turn limit that is its turn."""
    horizon = horizon_at(part.config.horizon, update, run.state.place(part.name).progress)
    return harvest(run.player(part, horizon, update), sampler, part.config.rl, horizon)


def usable_episodes(harvests: Mapping[str, Harvest]) -> list[Trajectory]:
    """The episodes to learn from, a group of each scenario in turn, so that every minibatch holds some of each."""
    in_turn = zip_longest(*(harvest.usable for harvest in harvests.values()), fillvalue=())
    return [episode for groups in in_turn for group in groups for episode in group]


def learn(run: Run, episodes: Sequence[Trajectory], update: int) -> dict[str, float]:
    """One update from its episodes: advantages, rows, and `epochs` x `minibatches` optimizer steps.

    Every process sees all episodes and takes every n-th row of a minibatch as its share.
    """
    config, kl_coef = run.config.rl, run.config.rl.kl_coef * run.state.kl_scale
    samples, _ = collect_samples(episodes)
    scored = score(run.policy, samples, run.config, run.accelerator)
    lessons = make_lessons(samples, scored, config, kl_coef=kl_coef)
    run.optimizer.param_groups[0]["lr"] = learning_rate_at(config, update)
    trained: Fingerprints = {}
    steps = []
    for chosen in minibatches(lessons, config.minibatches) * config.epochs:
        rows = pack(chosen, config.tokens_per_batch)
        trained |= fingerprints(chosen, rows)
        share = rows[run.accelerator.process_index :: run.accelerator.num_processes]
        with run.kept_if_unsound(update, episodes, share):
            figures = rl_update(
                run.policy,
                run.optimizer,
                share,
                accelerator=run.accelerator,
                temperature=run.config.sampling.temperature,
                config=config,
                kl_coef=kl_coef,
            )
        steps.append(figures)
    if run.is_main:
        run.folder.write_fingerprints(update, trained)
    known = {"learning_rate": learning_rate_at(config, update), "kl_coef": kl_coef}
    return known | describe_scores(scored, config) | _means(steps)


def following(run: Run, row: Mapping[str, float], samplers: Mapping[str, ItemSampler]) -> State:
    """The state after an update, from its figures."""
    config, scale = run.config.rl, run.state.kl_scale
    if config.kl_target and "kl" in row:
        scale = adapted_kl_scale(scale, row["kl"], config.kl_target)
    places = {part.name: _next_place(run, part, row, samplers[part.name].drawn) for part in run.parts}
    return State(int(row["update"]), places, scale)


def _next_place(run: Run, part: Part, row: Mapping[str, float], drawn: int) -> Place:
    own = f"/{part.name}" if part.name else ""
    success, cut = row[f"success{own}"], row[f"horizon_cut{own}"]
    progress = run.state.place(part.name).progress
    return Place(drawn, advance(part.config.horizon, progress, success=success, cut=cut))


def learning_rate_at(config: RLConfig, update: int) -> float:
    """Linear warm-up over `warmup_updates`, never 0 at the first, then constant: a function of the update alone."""
    return config.learning_rate * min(1.0, update / max(1, config.warmup_updates))


def _means(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each figure's mean over the optimizer steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: fmean(step[name] for step in steps if name in step) for name in names}
