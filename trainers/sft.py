"""Warm start: supervised fine-tuning on expert episodes, until the policy sometimes succeeds by itself."""

from __future__ import annotations

import torch
from accelerate.utils import broadcast_object_list

from gym_agents import trajectory
from gym_agents.trajectory import Trajectory
from trainers.acting.demos import as_sampled, play_expert
from trainers.acting.rollout import Job
from trainers.acting.sampler import ItemSampler
from trainers.acting.worlds import make_worlds
from trainers.folder import replace_episodes
from trainers.learning.batch import Lesson, collect_samples, pack
from trainers.learning.update import sft_update
from trainers.metrics import describe_episodes
from trainers.run import Run


def warm_start(run: Run) -> None:
    """Imitates expert episodes of training items: cross entropy on the tokens of the replies.

    It stops at `warm_start.steps`, or once the policy, sampled on training items, succeeds in a share of
    `warm_start.stop_at`. An interrupted warm start begins anew and comes to the same end.
    """
    config, rank, processes = (
        run.config.warm_start,
        run.accelerator.process_index,
        run.accelerator.num_processes,
    )
    samples, _ = collect_samples(
        as_sampled(episode, run.agent, run.layout) for episode in demonstrations(run)
    )
    lessons = [Lesson(sample) for sample in samples]
    order = ItemSampler(range(len(samples)), run.config.run.seed)
    optimizer = torch.optim.AdamW(run.policy.trainable.values(), lr=config.learning_rate, weight_decay=0.0)
    for step in range(1, config.steps + 1):
        batch = [lessons[draw.item] for draw in order.next(config.batch_size)]
        rows = pack(batch, run.config.rl.tokens_per_batch)
        figures = sft_update(
            run.policy,
            optimizer,
            rows[rank::processes],
            accelerator=run.accelerator,
            config=run.config.rl,
        )
        due = config.stop_at > 0 and step % config.check_every == 0
        success = sampled_success(run) if due else None
        run.screen.warm_start(step, config.steps, figures["loss"], success)
        if success is not None and success >= config.stop_at:
            break
    run.engine.sync(0)
    if run.is_main:
        run.checkpoints.save_warm_start(run.policy)
    run.accelerator.wait_for_everyone()


def demonstrations(run: Run) -> list[Trajectory]:
    """The expert's episodes of training items: played once by the main process, then read from the run folder."""
    path = run.folder.demonstrations
    if run.is_main and not path.exists():
        run.screen.say(f"The expert plays {run.config.warm_start.episodes} training episodes.")
        envs = make_worlds(run.config.env, expert=True)
        replace_episodes(path, play_expert(envs, run.sampler().next(run.config.warm_start.episodes)))
        envs.close()
    episodes: list[Trajectory]
    [episodes] = broadcast_object_list([list(trajectory.read(path)) if run.is_main else None])
    return episodes


def sampled_success(run: Run) -> float:
    """Share of sampled training episodes that succeed; the same episodes at every measurement."""
    run.engine.sync(0)
    draws = run.sampler().next(run.config.warm_start.check_episodes)
    jobs = [Job(item=draw.item, seed=draw.seed, group=draw.number, member=0, split="train") for draw in draws]
    play = run.player(run.config.horizon.stages[-1], update=0)
    return describe_episodes(play(jobs))["success"]
