"""The report of an experiment: mean and spread over seeds, E(X) against X, a page of Markdown and a figure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from flopping.cost.count import count
from flopping.errors import pluralize
from flopping.files import atomic_write
from flopping.lab.drawing import BACKGROUND, COLOURS, INK, finished, panels, save, style
from flopping.lab.experiment.plan import ARMS, Pair
from flopping.lab.experiment.runs import STEPS, Experiment, Finished, Pace
from flopping.lab.pages import render_template
from flopping.lab.report.tables import describe, digits
from flopping.training.networks import build

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTHS = {"x": "", "e": ", as many as X", "e-time": ", in the time of X"}
MARKS: dict[str, tuple[str, dict[str, Any]]] = {
    "x": ("X", {"marker": "o", "ls": "--", "mfc": BACKGROUND}),
    "e": ("E(X), as many epochs", {"marker": "s", "ls": "-"}),
    "e-time": ("E(X), the time of X", {"marker": ">", "ls": "-"}),
}
SHOWN = 15.0
"""Points of accuracy below the lowest result that the figure shows."""


@dataclass(frozen=True)
class Row:
    """Finished runs that differ in their seed only, and the row of X of the same pair."""

    pair: Pair
    arm: str
    runs: list[Finished]
    pace: Pace
    x: Row | None
    parameters: int
    forward_flops: float
    """Of a forward pass of one image, as the paper counts."""
    step_flops: float
    """Of the forward and the backward pass."""

    @property
    def model(self) -> str:
        return self.pair.model(self.arm)

    @property
    def epochs(self) -> int:
        return self.runs[0].job.recipe.epochs

    @property
    def speed(self) -> float:
        """Training images per second."""
        return self.pace.ordinary * (1 if self.arm == "x" else self.pace.speedup)

    @property
    def seconds(self) -> float:
        """Training time of a run."""
        return self.runs[0].images / self.speed

    @property
    def training_flops(self) -> float:
        """Of a whole run."""
        return self.step_flops * self.runs[0].images

    def values(self, figure: str) -> list[float]:
        return [run.last[figure] for run in self.runs]

    def spread(self, figure: str, decimals: int = 2) -> str:
        """The mean over seeds, and the standard deviation if there are several."""
        values = self.values(figure)
        more = f" ± {stdev(values):.{decimals}f}" if len(values) > 1 else ""
        return f"{mean(values):.{decimals}f}{more}"

    @property
    def gain(self) -> str:
        """Top-1 beyond that of X, seed by seed; empty where no seed has run on both."""
        theirs = {run.run.seed: run.last["top1"] for run in self.x.runs} if self.x else {}
        gains = [run.last["top1"] - theirs[run.run.seed] for run in self.runs if run.run.seed in theirs]
        more = f" (± {stdev(gains):.2f} over seeds)" if len(gains) > 1 else ""
        return f"{mean(gains):+.2f} points{more}" if gains else ""


def minutes(seconds: float) -> str:
    """A time to read.

    >>> minutes(50.4), minutes(95.0), minutes(119.7)
    ('50 s', '1 min 35 s', '2 min 00 s')
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest:02} s" if whole else f"{rest} s"


def rows_of(experiment: Experiment) -> list[Row]:
    """A row for each pair and arm of which a run has finished."""
    rows: list[Row] = []
    done = experiment.all_finished()
    for pair in experiment.plan.pairs:
        x = None
        for arm in ARMS:
            runs, pace = [f for f in done if f.run.pair == pair and f.run.arm == arm], experiment.pace(pair)
            if runs and pace is not None:
                rows.append(Row(pair, arm, runs, pace, x, *_costs(runs[0])))
                x = rows[-1] if arm == "x" else x
    return rows


def _costs(run: Finished) -> tuple[int, float, float]:
    """Parameters and FLOPs of a run's network."""
    recipe = run.job.recipe
    network = build(recipe, run.job.model, run.classes)
    size = (recipe.in_chans, recipe.img_size, recipe.img_size)
    step = count(network, size, batch=run.job.micro_batch or 1, training=True)
    return sum(p.numel() for p in network.parameters()), count(network, size).flops, step.flops


def write_report(experiment: Experiment, path: Path, command: str) -> None:
    """Write the page and its figure, of what has finished; nothing if nothing has."""
    rows, done = rows_of(experiment), experiment.all_finished()
    if not rows:
        return
    picture = path.with_suffix(".png")
    paces = {row.pair.name: row.pace for row in rows}
    page = render_template(
        "experiment.md",
        plan=experiment.plan,
        scale=experiment.scale,
        finished=done,
        rows=rows,
        lengths=LENGTHS,
        epoch_images=done[0].images // done[0].job.recipe.epochs,
        paces=paces,
        steps=STEPS,
        rounds=sorted({pace.rounds for pace in paces.values()}),
        threads=sorted({pace.threads for pace in paces.values()}),
        machines=list(dict.fromkeys(describe(run.machine) for run in done)),
        picture=picture.name,
        command=command,
        minutes=minutes,
        digits=digits,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save(draw(rows), picture)
    with atomic_write(path) as place:
        place.write_text(page, encoding="utf-8")


def draw(rows: list[Row]) -> Figure:
    """Accuracy over training time, a panel for each pair: results with their spread, and thin lines for each run."""
    from matplotlib.lines import Line2D

    with style():
        pairs = list(dict.fromkeys(row.pair.name for row in rows))
        figure, grid = panels(len(pairs), 3.6, share=False)
        for name, axes in zip(pairs, grid, strict=True):
            _draw_pair(axes, [row for row in rows if row.pair.name == name])
            axes.set_xlabel("training time (minutes)")
        grid[0].set_ylabel("top-1 on test images (%)")
        shown = [MARKS[arm] for arm in ARMS if arm in {row.arm for row in rows}]
        handles = [Line2D([], [], color=INK, ms=6, lw=0.8, label=name, **look) for name, look in shown]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.6)
        return finished(figure)


def _draw_pair(axes: Axes, rows: list[Row]) -> None:
    colour = COLOURS[rows[0].pair.content.family or "ViT"]
    for row in rows:
        look = MARKS[row.arm][1]
        for run in row.runs:
            minutes = [event["step"] * run.job.recipe.batch_size / row.speed / 60 for event in run.tests]
            accuracies = [event["top1"] for event in run.tests]
            axes.plot(minutes, accuracies, ls=look["ls"], color=colour, lw=0.8, alpha=0.45, zorder=1)
        values = row.values("top1")
        axes.errorbar(
            row.seconds / 60,
            mean(values),
            stdev(values) if len(values) > 1 else None,
            **{"mfc": colour} | look | {"ls": ""},
            color=colour,
            ms=6,
            elinewidth=1.2,
            capsize=2.5,
            label=f"_{row.arm}",
        )
    lowest = min(mean(row.values("top1")) for row in rows)
    start = min(event["top1"] for row in rows for run in row.runs for event in run.tests)
    axes.set_ylim(bottom=max(start - 1, lowest - SHOWN))
    axes.set_xlim(0, 1.08 * max(row.seconds for row in rows) / 60)
    axes.set_title(
        f"{rows[0].pair.content.family}, {pluralize(max(len(row.runs) for row in rows), 'seed')}", color=colour
    )
