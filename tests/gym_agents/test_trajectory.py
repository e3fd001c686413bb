"""Trajectories on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_agents import trajectory
from gym_agents.trajectory import Generation, Outcome, Trajectory, Turn


def example() -> Trajectory:
    generation = Generation((1, 2), (3, 4), (-0.5, -0.25), weight_version=7)
    turn = Turn("o\u0301 \x00 \U0001f600", "Action: x", 0.5, 0.5, True, "x", (generation,))
    return Trajectory(
        "fake", None, "fake_1", 3, {"k": 1}, "Do it.", (turn,), "end", Outcome.HORIZON_CUT, 0.5, horizon=1
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    trajectory.write(path, [example()])
    trajectory.write(path, [example(), example()])
    assert list(trajectory.read(path)) == [example()] * 3
    assert not example().success


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    trajectory.write(path, [example()])
    with path.open("a") as file:
        file.write('{"scenario": 1}\n')
    with pytest.raises(ValueError, match=r"episodes\.jsonl:2"):
        list(trajectory.read(path))
