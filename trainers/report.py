"""What a finished run shows: the curve, and three lines to act on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from trainers.acting.evaluate import Evaluation, Way, gain, success
from trainers.folder import RunFolder
from trainers.screen import percent


def draw_curve(folder: RunFolder, title: str) -> None:
    """Draws success over updates, the stages of the horizon behind it, held-out success with its intervals."""
    evaluations = folder.read_evaluations()
    rows = [row for row in folder.read_metrics() if "success" in row]  # those of updates that played
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    _draw_stages(axes, rows)
    if rows:
        updates = [row["update"] for row in rows]
        axes.plot(
            updates, [row["success"] for row in rows], color="tab:blue", label="training items, sampled"
        )
    _draw_evaluations(axes, evaluations, "sampled", "tab:orange", "held-out items, sampled")
    _draw_evaluations(axes, evaluations, "greedy", "tab:green", "held-out items, greedy")
    axes.set(title=title, xlabel="update", ylabel="success rate", ylim=(-0.02, 1.02))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", frameon=False)
    figure.savefig(folder.curve, dpi=120)


def _draw_stages(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for stage, (horizon, group) in enumerate(groupby(rows, key=lambda row: row["horizon"])):
        updates = [row["update"] for row in group]
        axes.axvspan(
            updates[0] - 0.5, updates[-1] + 0.5, color="black", alpha=0.03 + 0.05 * (stage % 2), lw=0
        )
        axes.text(updates[0], 1.0, f"h = {horizon}", va="top", fontsize=8, color="0.4")


def _draw_evaluations(
    axes: Axes, evaluations: Sequence[Evaluation], way: Way, color: str, label: str
) -> None:
    if not evaluations:
        return
    updates = [evaluation.update for evaluation in evaluations]
    points = [success(evaluation, way) for evaluation in evaluations]
    below = [point.mean - point.low for point in points]
    above = [point.high - point.mean for point in points]
    means = [point.mean for point in points]
    axes.errorbar(
        updates, means, (below, above), color=color, marker="o", capsize=4, lw=1, ls=":", label=label
    )


def final_lines(folder: RunFolder, method: str, before: Evaluation, after: Evaluation) -> list[str]:
    """The lines at the end of a run: what was gained in each scenario, where everything is, what to do next."""
    earlier = before.by_numbering()
    return [
        *(_gained(name, earlier[name], own) for name, own in after.by_numbering().items()),
        f"Run folder: {folder.path} (curve.png, metrics.jsonl, trajectories/, evaluations/, checkpoints/, policy/).",
        f"Next, train on: {folder.command(f'--{method}.updates', str(2 * after.update))}",
    ]


def _gained(numbering: str, before: Evaluation, after: Evaluation) -> str:
    errors = before.env_errors + after.env_errors
    apart = f"; {errors} attempts failed by the environment and are not counted" if errors else ""
    return (
        f"Success on {len(after.results)} held-out items of {numbering}: {_change(before, after, 'sampled')} sampled, "
        f"{_change(before, after, 'greedy')} greedy (95% intervals over items{apart})."
    )


def _change(before: Evaluation, after: Evaluation, way: Way) -> str:
    earlier, later = percent(success(before, way)), percent(success(after, way))
    return f"{earlier} -> {later}, {percent(gain(before, after, way), sign='+')}"
