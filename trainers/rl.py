"""Reinforcement learning over groups of episodes, under a turn limit that grows (ScalingInter-RL)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean

from gym_agents.trajectory import Trajectory
from trainers.acting.curriculum import advance, horizon_at
from trainers.acting.groups import harvest
from trainers.checkpoint import State
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
    config = run.config.rl
    sampler = run.sampler()
    for update in range(run.state.update + 1, config.updates + 1):
        run.start_lap()
        horizon = horizon_at(run.config.horizon, update, run.state.progress)
        with run.watch("acting"):
            groups = harvest(run.player(horizon, update), sampler, config)
        with run.watch("learning"):
            figures = learn(run, list(chain.from_iterable(groups.usable)), update)
            run.engine.sync(update)
        row = run.record(update, horizon, groups, figures)
        run.advance(following(run, row, sampler.drawn))


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


def following(run: Run, row: Mapping[str, float], drawn: int) -> State:
    """The state after an update, from its figures."""
    config, state = run.config, run.state
    progress = advance(config.horizon, state.progress, success=row["success"], cut=row["horizon_cut"])
    scale = state.kl_scale
    if config.rl.kl_target and "kl" in row:
        scale = adapted_kl_scale(scale, row["kl"], config.rl.kl_target)
    return State(int(row["update"]), drawn, progress, scale)


def learning_rate_at(config: RLConfig, update: int) -> float:
    """Linear warm-up over `warmup_updates`, never 0 at the first, then constant: a function of the update alone."""
    return config.learning_rate * min(1.0, update / max(1, config.warmup_updates))


def _means(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each figure's mean over the optimizer steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: fmean(step[name] for step in steps if name in step) for name in names}
