"""Which turn limit and which items an update gets."""

from __future__ import annotations

from collections import Counter

import pytest

from trainers.acting.curriculum import Progress, advance, horizon_at
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


ADAPTIVE = HorizonConfig(
    "adaptive", stages=(4, 8, 16), every=5, window=2, raise_at_success=0.5, raise_at_cut=0.6
)


def walked(*figures: tuple[float, float]) -> list[int]:
    """The limit of each update, and of the one after the last, from success and share of cut episodes."""
    progress, limits = Progress(), []
    for update, (success, cut) in enumerate(figures, start=1):
        limits.append(horizon_at(ADAPTIVE, update, progress))
        progress = advance(ADAPTIVE, progress, success=success, cut=cut)
    return [*limits, horizon_at(ADAPTIVE, len(figures) + 1, progress)]


def test_the_limit_grows_once_what_is_within_it_is_learned() -> None:
    """Means over two updates: .3, .45, then .55; in the new stage .6 and .7 once two are there."""
    assert walked((0.2, 0), (0.4, 0), (0.5, 0), (0.6, 0), (0.6, 0), (0.8, 0)) == [4, 4, 4, 4, 8, 8, 16]


def test_the_limit_grows_where_it_stops_the_policy_but_not_before_its_time() -> None:
    assert walked(*[(0.1, 0.7)] * 6) == [4, 4, 4, 4, 4, 8, 8]
    assert walked(*[(0.1, 0.5)] * 6) == [4] * 7


def test_the_last_stage_stays() -> None:
    assert walked(*[(1.0, 0.0)] * 8)[4:] == [16] * 5


def test_other_schedules_need_no_progress() -> None:
    stepwise = HorizonConfig("stepwise", stages=(4, 8), every=1)
    assert advance(stepwise, Progress(), success=1.0, cut=1.0) == Progress()


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
