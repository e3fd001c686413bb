"""Sessions that share a Java process do not notice each other."""

from __future__ import annotations

import pytest

from tests.servers.sciworld_sessions import STATEFUL, WALK, alone, side_by_side


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_side_by_side_is_the_session_alone_in_a_fresh_process() -> None:
    """Simplifications, random numbers and counters of the simulator are global within a class loader."""
    numbers = range(len(STATEFUL) - 1)
    shared = side_by_side(numbers)
    assert [len(transcript) for transcript in shared] == [1 + len(WALK)] * len(numbers)
    for number in numbers:
        assert alone(number) == shared[number], STATEFUL[number]
