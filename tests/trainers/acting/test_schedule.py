"""Which turn limit and which items an update gets."""

from __future__ import annotations

from collections import Counter

import pytest

from trainers.acting.curriculum import Progress, horizon_at
from trainers.acting.sampler import ItemSampler
from trainers.config import HorizonConfig


def test_stages_change_after_every_so_many_updates_and_the_last_stays() -> None:
    config = HorizonConfig("stepwise", stages=(10, 20, 30), every=100)
    assert [horizon_at(config, update, Progress()) for update in (1, 100, 101, 200, 201, 300, 301, 5000)] == [
        *(10, 10, 20, 20, 30, 30, 30, 30),
    ]


def test_fixed_is_the_last_stage_throughout() -> None:
    config = HorizonConfig("fixed", stages=(10, 30), every=1)
    assert {horizon_at(config, update, Progress()) for update in range(1, 9)} == {30}


@pytest.mark.parametrize("count", [1, 3, 7])
def test_each_item_comes_once_an_epoch_in_an_order_that_changes(count: int) -> None:
    sampler = ItemSampler(range(100, 120), seed=3)
    drawn = [draw.item for _ in range(60) for draw in sampler.next(count)][:60]
    epochs = [drawn[start : start + 20] for start in (0, 20, 40)]
    for epoch in epochs:
        assert Counter(epoch) == Counter(range(100, 120))
    assert epochs[0] != epochs[1] != epochs[2]


def test_draws_go_on_from_the_number_drawn() -> None:
    """A resumed run must see the data that an undisturbed one sees: huggingface/accelerate #2823, #3996."""
    whole = ItemSampler(range(10), seed=5).next(27)
    first = ItemSampler(range(10), seed=5)
    head = first.next(13)
    assert head + ItemSampler(range(10), seed=5, drawn=first.drawn).next(14) == whole


def test_seeds_differ_between_draws_and_between_runs() -> None:
    draws = ItemSampler(range(4), seed=0).next(400)
    assert len({draw.seed for draw in draws}) == 400
    assert draws != ItemSampler(range(4), seed=1).next(400)
