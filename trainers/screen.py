"""What a person sees while a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from gym_agents.trajectory import Trajectory
from trainers.acting.evaluate import Evaluation, Interval, success


class Screen:
    """One line for each thing that happened, and a live one for what is going on."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(quiet=quiet, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text, markup=False)

    @contextmanager
    def episodes(self, count: int) -> Iterator[Callable[[Trajectory], None]]:
        """Counts finished episodes in a live line."""
        done = solved = 0
        with self._console.status(f"0/{count} episodes") as status:

            def finished(episode: Trajectory) -> None:
                nonlocal done, solved
                done, solved = done + 1, solved + episode.success
                status.update(f"{done}/{count} episodes, {solved} solved")

            yield finished

    def warm_start(self, step: int, steps: int, loss: float, success: float | None) -> None:
        """A step of the warm start, and the sampled success where it was measured."""
        measured = "" if success is None else f"  sampled success {success:4.0%}"
        self.say(f"warm start {step:>3}/{steps}  loss {loss:.3f}{measured}")

    def update(self, row: dict[str, Any], updates: int) -> None:
        """An update's figures."""
        seconds = row["seconds"]
        generating = seconds["generation"] / seconds["acting"] if seconds["acting"] else 0.0
        errors = f"  env errors {row['env_errors']}" if row["env_errors"] else ""
        self.say(
            f"update {row['update']:>3}/{updates}  {_played(row)}  "
            f"equal groups {row['zero_variance']:4.0%}{errors}  | acting {seconds['acting']:.1f} s "
            f"({generating:.0%} generating), learning {seconds['learning']:.1f} s"
        )
        for name in (key.partition("/")[2] for key in row if key.startswith("success/")):
            own = {
                key.removesuffix(f"/{name}"): value for key, value in row.items() if key.endswith(f"/{name}")
            }
            self.say(f"  {name}: {_played(own)}")

    def step(self, row: dict[str, Any], updates: int) -> None:
        """The figures of an update that played nothing."""
        pairs = f"  margin {row['margin']:.2f}  right {row['accuracy']:4.0%}" if "margin" in row else ""
        self.say(
            f"update {row['update']:>3}/{updates}  loss {row['loss']:.3f}{pairs}  tokens {row['tokens']:.0f}  "
            f"| learning {row['seconds']['learning']:.1f} s"
        )

    def evaluation(self, evaluation: Evaluation) -> None:
        """Success of an evaluation, and the attempts that the environment failed beside it, of each scenario."""
        for numbering, own in evaluation.by_numbering().items():
            errors = f"; {own.env_errors} attempts failed by the environment" if own.env_errors else ""
            self.say(
                f"Held-out success on {numbering} after {evaluation.update} updates: "
                f"{percent(success(own, 'greedy'))} greedy, {percent(success(own, 'sampled'))} sampled{errors}"
            )


def _played(row: dict[str, Any]) -> str:
    """What an update's episodes came to; `cut` are those that ended by a limit, of turns or of tokens."""
    cut = row["horizon_cut"] + row["length_cut"]
    return (
        f"h {row['horizon']:>2}  success {row['success']:4.0%}  score {row['score']:.2f}  "
        f"turns {row['turns']:4.1f}  cut {cut:4.0%}"
    )


def percent(interval: Interval, sign: str = "") -> str:
    """A rate with its interval.

    >>> percent(Interval(0.452, 0.38, 0.521))
    '45.2% [38.0, 52.1]'
    """
    return f"{interval.mean:{sign}.1%} [{100 * interval.low:{sign}.1f}, {100 * interval.high:{sign}.1f}]"
