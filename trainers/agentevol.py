"""AgentEvol: explore, keep what went well, imitate it, and again (arXiv:2406.04151)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch

from trainers.acting.curriculum import horizon_at
from trainers.acting.files import Example, best_per_item, examples, worthwhile
from trainers.acting.groups import Harvest, play_groups
from trainers.acting.sampler import ItemSampler
from trainers.offline import to_samples
from trainers.rl import following
from trainers.run import Run
from trainers.sft import demonstrations, imitate


def train(run: Run) -> None:
    """Explores training items with the policy, and fits it anew to what went well so far, update after update.

    What it learns from are the demonstrations of the warm start, if there was one, and the best episode of each item
    that an update of this run has kept. Each fit begins where the method started, and not at the policy that explored
    (algorithm 1 of the paper), so that no mistake of an earlier fit stays. Where nothing went well yet, nothing is
    learned and the policy stays.
    """
    config = run.config.evolve
    [part] = run.parts
    sampler = run.sampler(part)
    given = examples(demonstrations(run)) if run.config.warm_start.steps else []
    kept = worthwhile(examples(run.from_main(run.folder.read_trajectories)), config.min_score)
    for update in range(run.state.update + 1, config.updates + 1):
        run.start_lap()
        horizon = horizon_at(run.config.horizon, update, run.state.place().progress)
        with run.watch("acting"):
            play = run.player(part, horizon, update)
            explored = Harvest(play_groups(play, sampler.next(config.items), config.attempts), horizon)
        kept = best_per_item([*kept, *worthwhile(examples(explored.episodes), config.min_score)])
        with run.watch("learning"):
            figures = fit(run, [*given, *kept], update)
            run.engine.sync(update)
        row = run.record(update, {part.name: explored}, {"kept": len(kept), **figures})
        run.advance(following(run, row, {part.name: sampler}))


def fit(run: Run, found: Sequence[Example], update: int) -> dict[str, float]:
    """Imitates episodes for `evolve.steps` steps, beginning at the reference; gives the steps' mean figures."""
    config = run.config.evolve
    if not found:
        return {"skipped": 1.0}
    lessons = [made for made in to_samples(run, found) if made]
    run.policy.return_to_reference()
    optimizer = torch.optim.AdamW(run.policy.trainable.values(), lr=config.learning_rate, weight_decay=0.0)
    order = ItemSampler(range(len(lessons)), run.config.run.seed + update)
    steps = [
        imitate(run, optimizer, [lessons[draw.item] for draw in order.next(config.batch_size)])
        for _ in range(config.steps)
    ]
    return {name: fmean(step[name] for step in steps) for name in steps[0]}
