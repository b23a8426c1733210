"""The figure of an experiment: accuracy over training time, a panel for each pair. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flopping.bench.drawing import BACKGROUND, COLOURS, INK, finished, panels, render, style
from flopping.experiments.plan import Arm
from flopping.experiments.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS: dict[Arm, dict[str, Any]] = {
    Arm.ORDINARY: {"marker": "o", "ls": "--", "mfc": BACKGROUND},
    Arm.EQUIVARIANT: {"marker": "s", "ls": "-"},
    Arm.LONGER: {"marker": ">", "ls": "-"},
}
MEANING = {
    Arm.ORDINARY: "X",
    Arm.EQUIVARIANT: "E(X), as many epochs",
    Arm.LONGER: "E(X), the time of X",
}
SHOWN = 15.0
"""Points of accuracy below the lowest result that are shown of the way there."""


def draw(rows: Sequence[Row]) -> Figure:
    """Results with their spread over seeds, and thin lines for the way that each run took there."""
    from matplotlib.lines import Line2D

    with style():
        pairs = list(dict.fromkeys(row.pair for row in rows))
        figure, grid = panels(len(pairs), 3.6, share=False)
        for pair, axes in zip(pairs, grid, strict=True):
            _panel(axes, [row for row in rows if row.pair == pair])
            axes.set_xlabel("training time (minutes)")
        grid[0].set_ylabel("top-1 on test images (%)")
        arms = [arm for arm in Arm if arm in {row.arm for row in rows}]
        handles = [Line2D([], [], color=INK, ms=6, lw=0.8, label=MEANING[arm], **MARKS[arm]) for arm in arms]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.6)
        return finished(figure)


def _panel(axes: Axes, rows: Sequence[Row]) -> None:
    family = rows[0].pair.content.family
    colour = COLOURS[family]
    for row in rows:
        look = MARKS[row.arm]
        for run in row.runs:
            images, accuracies = zip(*run.curve, strict=True)
            minutes = [seen / row.speed / 60 for seen in images]
            axes.plot(minutes, accuracies, ls=look["ls"], color=colour, lw=0.8, alpha=0.45, zorder=1)
        axes.errorbar(
            row.seconds / 60,
            row.top1.mean,
            row.top1.deviation,
            color=colour,
            marker=look["marker"],
            mfc=look.get("mfc", colour),
            ms=6,
            elinewidth=1.2,
            capsize=2.5,
            label=f"_{row.arm.value}",
        )
    lowest = min(row.top1.mean for row in rows)
    start = min(accuracy for row in rows for run in row.runs for _, accuracy in run.curve)
    axes.set_ylim(bottom=max(start - 1, lowest - SHOWN))
    axes.set_xlim(left=0)
    seeds = max(len(row.runs) for row in rows)
    axes.set_title(f"{family}, {seeds} seed{'s' if seeds > 1 else ''}", color=colour)


def png(rows: Sequence[Row]) -> bytes:
    return render(draw(rows), "png")
