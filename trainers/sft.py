"""Supervised fine-tuning: on expert episodes, as a warm start, or on trajectory files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

import torch
from torch.optim import Optimizer

from gym_agents import trajectory
from gym_agents.trajectory import Trajectory
from trainers.acting.demos import expert_episodes
from trainers.acting.files import examples, worthwhile
from trainers.acting.groups import play_groups
from trainers.acting.sampler import ItemSampler
from trainers.folder import replace_episodes
from trainers.learning.batch import Lesson, Sample, pack
from trainers.learning.update import sft_update
from trainers.metrics import describe_episodes
from trainers.offline import descend, read_files, to_samples
from trainers.run import Run


def train(run: Run) -> None:
    """Imitates the episodes of `sft.files`, or the expert's, as `sft.min_score` sifts them.

    Raises:
        NothingToLearn: no episode holds a reply to learn from.
        BadTrajectories: a file does not fit.
    """
    config = run.config.sft
    found = read_files(run, config.files) if config.files else examples(demonstrations(run))
    lessons = [made for made in to_samples(run, worthwhile(found, config.min_score)) if made]
    descend(run, lessons, config, partial(imitate, run, run.optimizer))


def imitate(run: Run, optimizer: Optimizer, batch: Sequence[Sequence[Sample]]) -> dict[str, float]:
    """One step down the cross entropy of the batch's trained tokens, each of which weighs the same."""
    lessons = [Lesson(sample) for sample in chain.from_iterable(batch)]
    rows = pack(lessons, run.config.rl.tokens_per_batch)
    return sft_update(
        run.policy, optimizer, run.share(rows), accelerator=run.accelerator, config=run.config.rl
    )


def warm_start(run: Run) -> None:
    """Imitates expert episodes of training items: cross entropy on the tokens of the replies.

    It stops at `warm_start.steps`, or once the policy, sampled on training items, succeeds in a share of
    `warm_start.stop_at`. An interrupted warm start begins anew and comes to the same end.
    """
    config = run.config.warm_start
    lessons = [made for made in to_samples(run, examples(demonstrations(run))) if made]
    order = ItemSampler(range(len(lessons)), run.config.run.seed)
    optimizer = torch.optim.AdamW(run.policy.trainable.values(), lr=config.learning_rate, weight_decay=0.0)
    for step in range(1, config.steps + 1):
        batch = [lessons[draw.item] for draw in order.next(config.batch_size)]
        figures = imitate(run, optimizer, batch)
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

    def play_or_read() -> list[Trajectory]:
        path = run.folder.demonstrations
        if not path.exists():
            run.screen.say(f"The expert plays {run.config.warm_start.episodes} training episodes.")
            replace_episodes(path, expert_episodes(run.config))
        return list(trajectory.read(path))

    return run.from_main(play_or_read)


def sampled_success(run: Run) -> float:
    """Share of sampled training episodes that succeed; the same episodes at every measurement."""
    run.engine.sync(0)
    episodes: list[Trajectory] = []
    for part in run.parts:
        draws = run.sampler(part).next(part.config.warm_start.check_episodes)
        play = run.player(part, part.config.horizon.stages[-1], update=0)
        episodes += chain.from_iterable(play_groups(play, draws, 1))
    return describe_episodes(episodes)["success"]
