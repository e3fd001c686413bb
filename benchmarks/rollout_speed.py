"""What it saves to encode each token once: the in-process engine beside two ways that encode anew every turn.

    python -m benchmarks.rollout_speed
    python -m benchmarks.rollout_speed --episodes 16 --threads 1

All rows generate for the same made-up episodes: prompts of a group are equal, all prompts share the
instruction, observations and replies differ in length. `engine` keeps each conversation's cache; `engine,
re-encoding` is handed the whole conversation as a new one at each turn; `transformers generate` is the batched,
left-padded call of the library, which must run until the longest reply of its batch. Rates are of one run on
one machine: compare the rows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from trainers.acting.engines.base import Request, Sampling
from trainers.acting.engines.hf import HFEngine
from trainers.config import PolicyConfig
from trainers.models import load_policy


@dataclass(frozen=True)
class Settings:
    """What to measure."""

    model: str = "smollm2"
    """Hugging Face name or path, or an embedded model."""
    episodes: int = 64
    """Episodes in play at once."""
    group_size: int = 8
    """Episodes that share a prompt."""
    turns: int = 3
    """Turns of each episode."""
    prompt: int = 90
    """Tokens of a prompt."""
    instruction: int = 40
    """Tokens at its beginning that all prompts share."""
    observation: tuple[int, int] = (10, 20)
    """Shortest and longest observation."""
    reply: tuple[int, int] = (8, 16)
    """Shortest and longest reply."""
    threads: int = 2
    """Threads that torch may use."""


@dataclass(frozen=True)
class Episode:
    """Ids to be fed before each reply, and how long the reply is."""

    contexts: list[list[int]]
    replies: list[int]


@dataclass(frozen=True)
class Measured:
    """What one way of generating took."""

    seconds: float
    cpu_seconds: float
    """Of all threads together; steadier than the clock on a shared machine."""
    encoded: int
    """Tokens fed, but for a sampled one on its way into the cache."""
    sampled: int
    """Tokens of replies; what a row goes on for until its batch is done is not counted."""


def main(settings: Settings) -> None:
    """Measures and prints the tables."""
    torch.set_num_threads(settings.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policy = load_policy(PolicyConfig(model=settings.model), device)
    engine = HFEngine(policy.model, max_batch=settings.episodes)
    episodes = make_episodes(settings, policy.model.config.vocab_size)
    ways: dict[str, Callable[[Sequence[Episode]], int]] = {
        "engine": partial(play, engine),
        "engine, re-encoding": partial(play, engine, anew=True),
        "transformers generate": partial(generate, policy.model),
    }
    for way in ways.values():
        way(episodes[:2])  # the first call of each is slower
    console = Console()
    console.print(f"{policy.describe()}; {settings.episodes} episodes, {settings.threads} threads.")
    console.print(comparison({name: measure(engine, way, episodes) for name, way in ways.items()}))
    console.print(steps(engine, episodes))


def make_episodes(settings: Settings, vocabulary: int) -> list[Episode]:
    """Episodes of random ids, the same in every run."""
    rng = np.random.default_rng(0)

    def ids(count: int) -> list[int]:
        drawn: list[int] = rng.integers(vocabulary, size=count).tolist()
        return drawn

    def between(bounds: tuple[int, int]) -> int:
        return int(rng.integers(*bounds, endpoint=True))

    instruction = ids(settings.instruction)
    groups = -(-settings.episodes // settings.group_size)
    prompts = [instruction + ids(settings.prompt - settings.instruction) for _ in range(groups)]
    return [
        Episode(
            [prompts[number // settings.group_size]]
            + [ids(between(settings.observation)) for _ in range(settings.turns - 1)],
            [between(settings.reply) for _ in range(settings.turns)],
        )
        for number in range(settings.episodes)
    ]


def measure(
    engine: HFEngine, way: Callable[[Sequence[Episode]], int], episodes: Sequence[Episode]
) -> Measured:
    """Times one way, the preparation after a change of the weights included."""
    engine.sync(0)
    start, cpu_start = time.perf_counter(), time.process_time()
    encoded = way(episodes)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return Measured(seconds, cpu_seconds, encoded, sum(sum(episode.replies) for episode in episodes))


def ask(engine: HFEngine, name: Hashable, ids: Sequence[int], length: int) -> None:
    """Asks for a reply of exactly so many tokens."""
    engine.submit(Request(name, ids, Sampling(max_new_tokens=length), frozenset(), (0,)))


def play(engine: HFEngine, episodes: Sequence[Episode], *, anew: bool = False) -> int:
    """Plays the episodes, each at its own pace; returns the tokens encoded.

    Each turn extends its conversation; or, `anew`, is a new one that holds all before it, behind an id of its own
    so that nothing is shared.
    """
    before, heads = engine.usage.encoded_tokens, itertools.count()
    said: dict[Hashable, list[int]] = {number: [] for number in range(len(episodes))}
    turns = dict.fromkeys(said, 0)
    by_name = dict(zip(said, episodes, strict=True))

    def ask_next(name: Hashable) -> None:
        episode, turn = by_name[name], turns[name]
        said[name] += episode.contexts[turn]
        ask(
            engine,
            name,
            [next(heads), *said[name]] if anew else episode.contexts[turn],
            episode.replies[turn],
        )

    for name in said:
        ask_next(name)
    while done := engine.collect():
        for completion in done:
            name = completion.conversation
            said[name] += completion.sampled_ids
            turns[name] += 1
            over = turns[name] == len(by_name[name].replies)
            if over or anew:
                engine.release(name)
            if not over:
                ask_next(name)
    return engine.usage.encoded_tokens - before


@torch.inference_mode()
def generate(model: Any, episodes: Sequence[Episode]) -> int:
    """The library's own call, once a turn for the whole batch, padded on the left."""
    histories: list[list[int]] = [[] for _ in episodes]
    encoded = 0
    for turn in range(len(episodes[0].replies)):
        for history, episode in zip(histories, episodes, strict=True):
            history += episode.contexts[turn]
        width = max(map(len, histories))
        ids = torch.tensor([[0] * (width - len(history)) + history for history in histories])
        mask = torch.tensor([[0] * (width - len(history)) + [1] * len(history) for history in histories])
        output = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            do_sample=True,
            max_new_tokens=max(episode.replies[turn] for episode in episodes),
            eos_token_id=None,
            pad_token_id=0,
        )
        encoded += sum(map(len, histories))
        for history, episode, row in zip(histories, episodes, output.tolist(), strict=True):
            history += row[width : width + episode.replies[turn]]
    return encoded


def comparison(measured: Mapping[str, Measured]) -> Table:
    """The three ways beside each other; the ratio is of CPU seconds."""
    table = Table("way", "seconds", "CPU seconds", "times the first's", "tokens encoded", "sampled tokens/s")
    first = next(iter(measured.values())).cpu_seconds
    for name, way in measured.items():
        table.add_row(
            name,
            f"{way.seconds:.1f}",
            f"{way.cpu_seconds:.1f}",
            f"{way.cpu_seconds / first:.2f}",
            str(way.encoded),
            f"{way.sampled / way.seconds:.0f}",
        )
    return table


def steps(engine: HFEngine, episodes: Sequence[Episode], length: int = 12) -> Table:
    """What a step of decoding costs at growing batches."""
    table = Table("rows", "ms a step", "CPU ms a step", "tokens/s", title="decoding")
    rows = len(episodes)
    for count in sorted({max(1, rows // 16), max(1, rows // 4), rows}):
        engine.sync(0)
        for number, episode in enumerate(episodes[:count]):
            ask(engine, number, episode.contexts[0], 1)
        while engine.collect():
            pass
        for number in range(count):
            ask(engine, number, [], length)
        start, cpu_start = time.perf_counter(), time.process_time()
        while engine.collect():
            pass
        seconds = (time.perf_counter() - start) / length
        cpu_seconds = (time.process_time() - cpu_start) / length
        table.add_row(
            str(count), f"{1000 * seconds:.0f}", f"{1000 * cpu_seconds:.0f}", f"{count / seconds:.0f}"
        )
    return table


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
