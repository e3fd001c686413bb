"""Reinforcement learning over groups of episodes, under a turn limit that grows (ScalingInter-RL)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import fmean

from gym_agents.trajectory import Trajectory
from trainers.acting.curriculum import horizon_at
from trainers.acting.groups import harvest
from trainers.checkpoint import State
from trainers.config import RLConfig
from trainers.learning.algorithms import ALGORITHMS, with_signal
from trainers.learning.batch import collect_samples, minibatches, pack
from trainers.learning.update import rl_update
from trainers.run import Run


def train(run: Run) -> None:
    """Collects, then learns, update after update, from where the run stands.

    Raises:
        TooManyEnvErrors: if the environment fails more often than `env.max_error_rate`.
    """
    config = run.config.rl
    sampler = run.sampler()
    for update in range(run.state.update + 1, config.updates + 1):
        run.start_lap()
        horizon = horizon_at(run.config.horizon, update)
        with run.watch("acting"):
            groups = harvest(run.player(horizon, update), sampler, config)
        with run.watch("learning"):
            figures = learn(run, list(chain.from_iterable(groups.usable)), update)
            run.engine.sync(update)
        run.record(update, horizon, groups, figures)
        run.advance(State(update, sampler.drawn))


def learn(run: Run, episodes: Sequence[Trajectory], update: int) -> dict[str, float]:
    """One update from its episodes: advantages, rows, and `epochs` x `minibatches` optimizer steps.

    Every process sees all episodes and takes every n-th row of a minibatch as its share.
    """
    config = run.config.rl
    samples, _ = collect_samples(episodes)
    advantages = ALGORITHMS[config.algorithm].advantages(samples, config)
    if not (config.kl_coef or config.entropy_coef):
        samples, advantages = with_signal(samples, advantages)
    for parameters in run.optimizer.param_groups:
        parameters["lr"] = learning_rate_at(config, update)
    steps = []
    for chosen in minibatches(samples, config.minibatches) * config.epochs:
        rows = pack(
            [samples[at] for at in chosen], [advantages[at] for at in chosen], config.tokens_per_batch
        )
        steps.append(
            rl_update(
                run.policy,
                run.optimizer,
                rows[run.accelerator.process_index :: run.accelerator.num_processes],
                accelerator=run.accelerator,
                temperature=run.config.sampling.temperature,
                clip_range=config.clip_range,
                kl_coef=config.kl_coef,
                entropy_coef=config.entropy_coef,
                grad_clip=config.grad_clip,
            )
        )
    return {"learning_rate": learning_rate_at(config, update), **_means(steps)}


def learning_rate_at(config: RLConfig, update: int) -> float:
    """Linear warm-up over `warmup_updates`, never 0 at the first, then constant: a function of the update alone."""
    return config.learning_rate * min(1.0, update / max(1, config.warmup_updates))


def _means(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each figure's mean over the optimizer steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)
    return {name: fmean(step[name] for step in steps if name in step) for name in names}
