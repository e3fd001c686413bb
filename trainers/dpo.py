"""Direct preference optimization on pairs of episodes of one item (arXiv:2305.18290)."""

from __future__ import annotations

from functools import partial
from itertools import chain

from gym_agents import trajectory
from gym_agents.trajectory import Trajectory
from trainers.acting.files import Example, examples
from trainers.acting.groups import play_groups
from trainers.acting.pairs import make_pairs
from trainers.errors import NothingToLearn
from trainers.folder import replace_episodes
from trainers.learning.batch import Row, pack_pair
from trainers.learning.update import dpo_update
from trainers.offline import descend, read_files, to_samples
from trainers.run import Run


def train(run: Run) -> None:
    """Makes the better episode of each pair likelier than the worse one, compared with the reference.

    Raises:
        NothingToLearn: no two episodes of one item are far enough apart, or all pairs are too long.
        BadTrajectories: a file does not fit, or an episode in it has no score.
    """
    config = run.config.dpo
    rows = preference_rows(run, read_files(run, config.files) if config.files else examples(explored(run)))
    update = partial(
        dpo_update,
        run.policy,
        run.optimizer,
        accelerator=run.accelerator,
        config=run.config.rl,
        beta=config.beta,
    )
    descend(run, rows, config, lambda batch: update(run.share(batch)))


def preference_rows(run: Run, found: list[Example]) -> list[Row]:
    """A row for each pair; a pair of which one side is too long is left out."""
    config = run.config.dpo
    pairs = make_pairs(
        found, min_score=config.min_score, min_gap=config.min_gap, per_item=config.pairs_per_item
    )
    if not pairs:
        raise NothingToLearn(
            f"{len(found)} episodes make no pair: for no item does one reach dpo.min_score = {config.min_score:g} "
            f"and another lie dpo.min_gap = {config.min_gap:g} below it."
        )
    sides = iter(to_samples(run, list(chain.from_iterable(pairs))))
    rows = [pack_pair(better, worse) for better, worse in zip(sides, sides, strict=True) if better and worse]
    if not rows:
        raise NothingToLearn(f"None of {len(pairs)} pairs has two sides that can be learned from.")
    run.screen.say(f"{len(rows)} of {len(pairs)} pairs.")
    return rows


def explored(run: Run) -> list[Trajectory]:
    """The policy's own episodes of training items: played once, where the method starts, then read from the folder."""
    config, path = run.config.dpo, run.folder.explored
    if not run.from_main(path.exists):
        [part] = run.parts
        play = run.player(part, run.config.horizon.stages[-1], update=0)
        groups = play_groups(play, run.sampler(part).next(config.items), config.attempts)
        episodes = list(chain.from_iterable(groups))
        if run.is_main:
            replace_episodes(path, episodes)
    return run.from_main(lambda: list(trajectory.read(path)))
