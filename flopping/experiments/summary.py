"""Finished runs in numbers: mean and spread over seeds, what networks cost, and E(X) against X."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, stdev

from flopping.bench.count import count
from flopping.experiments.folder import Finished, Folder
from flopping.experiments.pace import Pace
from flopping.experiments.plan import Arm, Pair
from flopping.training.networks import build


@dataclass(frozen=True)
class Spread:
    """A mean, and the standard deviation of the sample where it has more than one value."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """
        >>> Spread.of([70.0, 71.0, 72.0]), Spread.of([5.0])
        (Spread(mean=71.0, deviation=1.0), Spread(mean=5.0, deviation=None))
        """
        return cls(mean(values), stdev(values) if len(values) > 1 else None)

    def write(self, form: str = ".2f") -> str:
        """
        >>> Spread(71.234, 0.5).write(), Spread(800.0, None).write(".0f")
        ('71.23 ± 0.50', '800')
        """
        more = "" if self.deviation is None else f" ± {self.deviation:{form}}"
        return f"{self.mean:{form}}{more}"


@dataclass(frozen=True)
class Cost:
    """What a network costs, for one image."""

    parameters: int
    macs: float
    flops: float
    """Of a forward pass, as the paper counts."""
    training_flops: float
    """Of the forward and the backward pass."""


@dataclass(frozen=True)
class Row:
    """Finished runs that differ in their seed only."""

    pair: Pair
    arm: Arm
    runs: tuple[Finished, ...]
    cost: Cost
    pace: Pace

    @property
    def model(self) -> str:
        return self.pair.model(self.arm)

    @property
    def epochs(self) -> int:
        return self.runs[0].epochs

    def spread(self, value: Callable[[Finished], float]) -> Spread:
        return Spread.of([value(run) for run in self.runs])

    @property
    def top1(self) -> Spread:
        return self.spread(lambda run: run.top1)

    @property
    def speed(self) -> float:
        """Training images per second."""
        return self.pace.of_arm(self.arm)

    @property
    def seconds(self) -> float:
        """Training time of a run."""
        return self.runs[0].images / self.speed

    @property
    def training_flops(self) -> float:
        """Of a whole run."""
        return self.cost.training_flops * self.runs[0].images

    def gain(self, other: Row) -> Spread | None:
        """Top-1 beyond that of another row, seed by seed, where both have run the same seeds."""
        theirs = {run.run.seed: run.top1 for run in other.runs}
        both = [run.top1 - theirs[run.run.seed] for run in self.runs if run.run.seed in theirs]
        return Spread.of(both) if both else None


def cost_of(run: Finished) -> Cost:
    """Count a run's network."""
    recipe, job = run.job.recipe, run.job
    make = partial(build, recipe, job.model, run.classes)
    size = (recipe.in_chans, recipe.img_size, recipe.img_size)
    network = make()
    forward = count(network, size)
    step = count(network, size, batch=job.chunk or 1, training=True)
    return Cost(sum(p.numel() for p in network.parameters()), forward.macs, forward.flops, step.flops)


def rows(folder: Folder) -> list[Row]:
    """What has been found so far, pair by pair."""
    found = []
    for pair in folder.plan.pairs:
        for arm in Arm:
            runs, pace = folder.arm(pair, arm), folder.pace(pair)
            if runs and pace is not None:
                found.append(Row(pair, arm, tuple(runs), cost_of(runs[0]), pace))
    return found
