"""Learning from episodes that were played before: into training samples, and update after update through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from trainers.acting.files import Example, read_examples
from trainers.acting.replay import in_own_tokens, withheld
from trainers.acting.sampler import ItemSampler
from trainers.checkpoint import Place, State
from trainers.config import DPOConfig, SFTConfig
from trainers.errors import NothingToLearn
from trainers.learning.batch import Sample, samples
from trainers.run import Run

Unit = TypeVar("Unit")


def read_files(run: Run, files: Sequence[str]) -> list[Example]:
    """The episodes of trajectory files, read by the main process for all."""
    return run.from_main(lambda: read_examples(map(Path, files)))


def to_samples(run: Run, found: Sequence[Example]) -> list[list[Sample]]:
    """The training samples of each episode, in its place; none where nothing can be learned from it.

    Ids that this policy's agent sampled stay as they are; an episode of another tokenizer, template or agent, or one
    of texts alone, is laid out anew. One that has more tokens than `policy.max_context` is left out whole: its end,
    which made its outcome, would be what is cut.

    Raises:
        NothingToLearn: no episode gives any.
    """
    longest = run.config.policy.max_context
    given = [_samples(run, example) for example in found]
    fitting = [made if all(len(sample.ids) <= longest for sample in made) else [] for made in given]
    long = sum(bool(made) for made in given) - sum(map(bool, fitting))
    empty = sum(not made for made in given)
    told = f"{len(found) - long - empty} of {len(found)} episodes"
    told += f", {long} are longer than {longest} tokens" * bool(long)
    told += f", {empty} hold no reply to learn from" * bool(empty)
    if not any(fitting):
        raise NothingToLearn(f"Nothing can be learned: {told}.")
    run.screen.say(f"Learning from {told}.")
    return fitting


def _samples(run: Run, example: Example) -> list[Sample]:
    if not example.episode.turns:
        return []
    episode = in_own_tokens(example.episode, run.agent, run.layout)
    return samples(withheld(episode, example.trained))


def descend(
    run: Run,
    units: Sequence[Unit],
    config: SFTConfig | DPOConfig,
    step: Callable[[list[Unit]], dict[str, float]],
) -> None:
    """Update after update, from where the run stands: a batch of units, in an order of its own each epoch, and a step."""
    order = ItemSampler(range(len(units)), run.config.run.seed, run.state.place().drawn)
    run.optimizer.param_groups[0]["lr"] = config.learning_rate
    for update in range(run.state.update + 1, config.updates + 1):
        run.start_lap()
        batch = [units[draw.item] for draw in order.next(config.batch_size)]
        with run.watch("learning"):
            figures = step(batch)
        if run.evaluates_at(update):
            run.engine.sync(update)
        run.record_step(update, figures)
        run.advance(State(update, {"": Place(order.drawn)}))
