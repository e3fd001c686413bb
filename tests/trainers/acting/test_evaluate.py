"""Success rates over items and their intervals."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest

from trainers.acting.evaluate import Evaluation, ItemResult, bootstrap, gain, success


def evaluation(*sampled: tuple[bool, ...], update: int = 0) -> Evaluation:
    results = [ItemResult(f"x_{at}", None, attempts[:1], attempts, 0) for at, attempts in enumerate(sampled)]
    return Evaluation(update, 4, tuple(results))


def test_the_interval_is_that_of_all_possible_resamples() -> None:
    """Five values have 5^5 resamples; their exact percentiles are what the random ones must approach."""
    values = (0.0, 0.125, 0.5, 0.5, 1.0)
    means = sorted(fmean(resample) for resample in itertools.product(values, repeat=5))
    interval = bootstrap(values)
    assert interval.mean == pytest.approx(0.425)
    assert interval.low == pytest.approx(means[int(0.025 * len(means))], abs=0.026)
    assert interval.high == pytest.approx(means[int(0.975 * len(means))], abs=0.026)


def test_equal_values_leave_nothing_open() -> None:
    assert bootstrap([1.0] * 31) == (1.0, 1.0, 1.0)


def test_no_value_has_no_mean() -> None:
    with pytest.raises(ValueError, match="No item was finished"):
        bootstrap([])


def test_items_count_alike_however_many_attempts_were_finished() -> None:
    mixed = evaluation((True, True, True, True), (False,))
    assert success(mixed, "sampled").mean == 0.5


def test_the_gain_is_paired_by_item() -> None:
    """Items differ widely, but each gains exactly half: the paired interval has no width."""
    before = evaluation((False, False), (True, False), (False, False))
    after = evaluation((True, False), (True, True), (False, True), update=3)
    assert gain(before, after, "sampled") == (0.5, 0.5, 0.5)


def test_an_item_that_one_side_never_finished_is_left_out_of_the_gain() -> None:
    before = evaluation((False,), ())
    after = evaluation((True,), (True,))
    assert gain(before, after, "sampled").mean == 1.0
    assert success(before, "sampled").mean == 0.0
