"""The figure of an experiment: accuracy over training time, or over the elements of a group. Needs matplotlib."""

from __future__ import annotations

from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from flopping.errors import pluralize
from flopping.groups import Group
from flopping.lab.drawing import BACKGROUND, COLOURS, INK, finished, panels, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from flopping.lab.experiment.summary import Row

MARKS: list[dict[str, Any]] = [
    {"marker": "o", "ls": "--", "mfc": BACKGROUND},
    *({"marker": marker, "ls": "-"} for marker in "s>D^"),
    *({"marker": marker, "ls": ":"} for marker in "v<P"),
]
"""How the arms of a plan are drawn, in their order."""
PALETTE = [*COLOURS.values(), "#e69f00"]
"""The colours of the arms, where they share a panel: six, then the same ones again."""
SHOWN = 15.0
"""Points of accuracy below the lowest result that the figure shows."""


def draw_over_time(rows: list[Row]) -> Figure:
    """Accuracy over training time, a panel for each pair: results with their spread, and thin lines for each run."""
    from matplotlib.lines import Line2D

    with style():
        pairs = list(dict.fromkeys(row.pair.name for row in rows))
        figure, grid = panels(len(pairs), 3.6, share=False)
        for name, axes in zip(pairs, grid, strict=True):
            _draw_pair(axes, [row for row in rows if row.pair.name == name])
            axes.set_xlabel("training time (minutes)")
        grid[0].set_ylabel("top-1 on test images (%)")
        kinds = {row.place: row.arm.label or ("X" if row.arm.ordinary else "E(X)") for row in rows}
        names = {row.place: f"{kinds[row.place]}{row.note}" for row in rows}
        handles = [
            Line2D([], [], color=INK, ms=6, lw=0.8, label=name, **MARKS[place]) for place, name in sorted(names.items())
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.6)
        return finished(figure)


def _draw_pair(axes: Axes, rows: list[Row]) -> None:
    colour = COLOURS[rows[0].pair.content.family or "ViT"]
    for row in rows:
        look = MARKS[row.place]
        for run in row.runs:
            minutes = [event["step"] * run.job.recipe.batch_size / row.speed / 60 for event in run.tests]
            accuracies = [event["top1"] for event in run.tests]
            axes.plot(minutes, accuracies, ls=look["ls"], color=colour, lw=0.8, alpha=0.45, zorder=1)
        values = row.values("identity")
        axes.errorbar(
            row.seconds / 60,
            mean(values),
            stdev(values) if len(values) > 1 else None,
            **{"mfc": colour} | look | {"ls": ""},
            color=colour,
            ms=6,
            elinewidth=1.2,
            capsize=2.5,
            label=f"_{row.arm.name}",
        )
    lowest = min(mean(row.values("identity")) for row in rows)
    start = min(event["top1"] for row in rows for run in row.runs for event in run.tests)
    axes.set_ylim(bottom=max(start - 1, lowest - SHOWN))
    axes.set_xlim(0, 1.08 * max(row.seconds for row in rows) / 60)
    axes.set_title(
        f"{rows[0].pair.content.family}, {pluralize(max(len(row.runs) for row in rows), 'seed')}", color=colour
    )


def draw_over_elements(rows: list[Row], group: Group) -> Figure:
    """Accuracy on images moved by each element of a group, a panel for each pair: mean and spread over seeds."""
    with style():
        pairs = list(dict.fromkeys(row.pair.name for row in rows))
        figure, grid = panels(len(pairs), 4.2, share=False)
        for name, axes in zip(pairs, grid, strict=True):
            for row in (row for row in rows if row.pair.name == name):
                results = [row.values(element) for element in group.elements]
                axes.errorbar(
                    range(group.order),
                    [mean(values) for values in results],
                    [stdev(values) for values in results] if len(row.runs) > 1 else None,
                    **MARKS[row.place],
                    color=PALETTE[row.place % len(PALETTE)],
                    ms=5,
                    lw=1.2,
                    elinewidth=1.0,
                    capsize=2,
                    label=row.network,
                )
            axes.set_xticks(range(group.order), group.elements, rotation=20, ha="right")
            axes.set_title(f"{name}, test images moved by each element of {group}")
        grid[0].set_ylabel("top-1 (%)")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
        return finished(figure)
