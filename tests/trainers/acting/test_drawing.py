"""Drawing tokens from logits; expected values by hand."""

from __future__ import annotations

import math

import pytest
import torch

from trainers.acting.engines.base import Sampling
from trainers.acting.engines.drawing import draw, uniforms
from trainers.errors import PolicyError

ALMOST_ONE = math.nextafter(1.0, 0.0)


def drawn(probabilities: list[float], number: float, **how: float) -> tuple[int, float]:
    logits = torch.tensor([probabilities]).log()
    [token], [logprob] = draw(logits, [Sampling(**how)], [number])  # type: ignore[arg-type]
    return token, logprob


def test_the_numbers_of_a_generation_are_a_function_of_its_seed() -> None:
    assert uniforms((1, 2, 3), 8)[:5] == uniforms((1, 2, 3), 5)
    assert uniforms((1, 2, 3), 1) != uniforms((1, 3, 2), 1)
    assert all(0 <= number < 1 for number in uniforms((0,), 100))


@pytest.mark.parametrize(
    ("number", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (ALMOST_ONE, 2)]
)
def test_a_number_falls_on_the_token_that_covers_it(number: float, token: int) -> None:
    """Probabilities 1/2, 1/4, 1/4 cover [0, .5), [.5, .75), [.75, 1)."""
    probabilities = [0.5, 0.25, 0.25]
    assert drawn(probabilities, number) == (token, pytest.approx(math.log(probabilities[token]), abs=1e-6))


def test_the_temperature_sharpens_and_its_logprob_is_told() -> None:
    """Weights 1 : 3 at temperature 1/2 become 1 : 9."""
    assert drawn([0.25, 0.75], 0.09, temperature=0.5) == (0, pytest.approx(math.log(0.1), abs=1e-6))
    assert drawn([0.25, 0.75], 0.11, temperature=0.5) == (1, pytest.approx(math.log(0.9), abs=1e-6))


def test_temperature_zero_takes_the_likeliest_and_tells_its_logprob_at_one() -> None:
    assert drawn([0.25, 0.75], 0.0, temperature=0.0) == (1, pytest.approx(math.log(0.75), abs=1e-6))


def test_top_p_keeps_the_fewest_likeliest_tokens_and_tells_the_whole_distributions_logprob() -> None:
    """Of .2, .5, .3, the first .6 of the mass needs .5 and .3; the next number up falls on the last of these."""
    assert drawn([0.2, 0.5, 0.3], 0.0, top_p=0.6) == (1, pytest.approx(math.log(0.5), abs=1e-6))
    assert drawn([0.2, 0.5, 0.3], ALMOST_ONE, top_p=0.6) == (2, pytest.approx(math.log(0.3), abs=1e-6))
    assert drawn([0.2, 0.5, 0.3], ALMOST_ONE, top_p=0.4) == (1, pytest.approx(math.log(0.5), abs=1e-6))


def test_a_large_vocabulary_is_covered_evenly() -> None:
    """Of 1000 equal tokens, the middle of the k-th thousandth falls on token k, across all shares."""
    logits = torch.zeros(1000, 1000)
    ids, logprobs = draw(logits, [Sampling()] * 1000, [(k + 0.5) / 1000 for k in range(1000)])
    assert ids == list(range(1000))
    assert logprobs == pytest.approx([math.log(1 / 1000)] * 1000, abs=1e-5)


def test_a_token_of_no_weight_is_never_drawn() -> None:
    assert drawn([0.0, 1.0, 0.0], 0.0)[0] == 1
    assert drawn([0.0, 1.0, 0.0], ALMOST_ONE)[0] == 1


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(4, 700, generator=torch.Generator().manual_seed(0))
    samplings = [Sampling(), Sampling(temperature=0), Sampling(temperature=0.5), Sampling(top_p=0.9)]
    numbers = [0.1, 0.6, 0.4, 0.9]
    ids, logprobs = draw(logits, samplings, numbers)
    for row in range(4):
        [token], [logprob] = draw(logits[row : row + 1], [samplings[row]], [numbers[row]])
        assert (token, logprob) == (ids[row], pytest.approx(logprobs[row], abs=1e-5))


def test_logits_that_are_not_finite_are_an_error() -> None:
    for logit in (math.nan, math.inf):
        with pytest.raises(PolicyError, match="not finite"):
            draw(torch.tensor([[0.0, logit]]), [Sampling()], [0.5])
