"""The report of an experiment: mean and spread over seeds, every arm against the first one, as a page of Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from flopping.cost.count import count
from flopping.files import write_text
from flopping.groups import get_group
from flopping.lab.drawing import save
from flopping.lab.experiment.figure import draw_over_elements, draw_over_time
from flopping.lab.experiment.plan import Arm, Pair
from flopping.lab.experiment.runs import STEPS, Experiment, Finished, Pace
from flopping.lab.report.tables import describe, digits, render_template
from flopping.training.networks import build


@dataclass(frozen=True)
class Row:
    """Finished runs that differ in their seed only, and the row of the first arm of the same pair."""

    pair: Pair
    arm: Arm
    place: int
    runs: list[Finished]
    pace: Pace
    x: Row | None
    parameters: int
    forward_flops: float
    """Of a forward pass of one image, as the paper counts."""
    step_flops: float
    """Of the forward and the backward pass."""

    @property
    def network(self) -> str:
        return self.arm.label or self.pair.model(self.arm)

    @property
    def arguments(self) -> str:
        """What makes the network out of its name."""
        arguments = self.runs[0].job.recipe.model_args
        return ", ".join(f"{name}={value}" for name, value in arguments.items())

    @property
    def epochs(self) -> int:
        return self.runs[0].job.recipe.epochs

    @property
    def note(self) -> str:
        return f", {self.arm.note}" if self.arm.note else ""

    @property
    def speed(self) -> float:
        return self.pace.first * self.pace.gains[self.arm.name].value

    @property
    def seconds(self) -> float:
        return self.runs[0].images / self.speed

    @property
    def training_flops(self) -> float:
        return self.step_flops * self.runs[0].images

    def values(self, figure: str) -> list[float]:
        """A figure of each run, by its name in `Finished.figures`."""
        return [run.figures[figure] for run in self.runs]

    def spread(self, figure: str, decimals: int = 2) -> str:
        """The mean over seeds, and the standard deviation if there are several."""
        values = self.values(figure)
        more = f" ± {stdev(values):.{decimals}f}" if len(values) > 1 else ""
        return f"{mean(values):.{decimals}f}{more}"

    def gain(self, figure: str) -> str:
        """A figure beyond that of the first arm, seed by seed; empty where no seed has run on both."""
        theirs = {run.run.seed: run.figures[figure] for run in self.x.runs} if self.x else {}
        gains = [run.figures[figure] - theirs[run.run.seed] for run in self.runs if run.run.seed in theirs]
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
        for place, arm in enumerate(experiment.plan.arms):
            runs, pace = [f for f in done if f.run.pair == pair and f.run.arm == arm], experiment.pace(pair)
            if runs and pace is not None:
                rows.append(Row(pair, arm, place, runs, pace, x, *_costs(runs[0])))
                x = x if place else rows[-1]
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
    group = get_group(experiment.plan.group)
    drawn = draw_over_elements(rows, group) if group.order > 2 else draw_over_time(rows)
    networks: dict[tuple[str, ...], Row] = {}  # arms that train one network in several ways have its costs once
    for row in rows:
        networks.setdefault((row.pair.name, row.runs[0].job.model, row.arguments), row)
    page = render_template(
        "experiment.md",
        plan=experiment.plan,
        group=group,
        scale=experiment.scale,
        finished=done,
        rows=rows,
        networks=list(networks.values()),
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
    save(drawn, picture)
    write_text(path, page)
