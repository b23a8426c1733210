"""How fast X and E(X) train: both in one process, in turn, so that whatever else a machine does falls on both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from flopping.bench.timing import interleave
from flopping.experiments.plan import Arm, Pair
from flopping.training.job import Job, Machine
from flopping.training.loader import lost_workers
from flopping.training.recipe import About
from flopping.training.speed import WARM, endless, ready
from flopping.training.trainer import Trainer

ROUNDS = 40
STEPS = 4
"""Training steps of each network in a round."""


@dataclass(frozen=True)
class Pace:
    """Training images per second of X, and how many times as many E(X) takes."""

    ordinary: float
    """Median over rounds."""
    speedup: float
    """Median over rounds of the quotient within a round."""
    low: float
    high: float
    """Between these the speed-up lies with a confidence of 95 %."""
    rounds: int
    threads: int
    recipe: str
    """What was timed, without what changes nothing about how fast it is."""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Pace:
        """One that was written down."""
        known = {field.name for field in fields(cls)}
        if set(content) != known:
            raise ValueError(f"a pace has the fields {', '.join(sorted(known))}, got {', '.join(sorted(content))}")
        return cls(**content)

    def of_arm(self, arm: Arm) -> float:
        """Images per second of the network of an arm."""
        return self.ordinary if arm is Arm.ORDINARY else self.ordinary * self.speedup

    def longer(self, epochs: int) -> int:
        """Epochs of E(X) that fit into the time of so many of X.

        >>> Pace(500.0, 1.3, 1.2, 1.4, 40, 2, "").longer(5), Pace(500.0, 0.1, 0.1, 0.1, 40, 2, "").longer(5)
        (6, 1)
        """
        return max(1, int(epochs * self.speedup))


def measure(pair: Pair, data: str, machine: Machine, enough: Callable[[int], bool] = lambda rounds: False) -> Pace:
    """Time training steps of a pair, with all that comes before and after them: images are read and augmented, too.

    `enough` is asked after each round whether to leave the others out. Nothing is written.
    """
    console = Console(quiet=True)
    with TemporaryDirectory() as folder:
        trainers = {
            arm.value: ready(Job(pair.content, pair.model(arm), data), machine, Path(folder), console)
            for arm in (Arm.ORDINARY, Arm.EQUIVARIANT)
        }
        with lost_workers(machine.workers):
            timings = interleave({name: _steps(each) for name, each in trainers.items()}, ROUNDS, WARM, enough=enough)
    ordinary, equivariant = (timings[arm.value] for arm in (Arm.ORDINARY, Arm.EQUIVARIANT))
    gain = ordinary.interval_over(equivariant)
    images = STEPS * trainers[Arm.ORDINARY.value].order.batch_size
    threads, rounds = torch.get_num_threads(), len(ordinary.seconds)
    return Pace(images / ordinary.median, gain.value, gain.low, gain.high, rounds, threads, recipe=timed(pair))


def timed(pair: Pair) -> str:
    """All of a pair's recipe that decides how fast it is: not its header, nor how long it learns and at what rate."""
    return replace(pair.content, about=About(), epochs=1, warmup_epochs=0.0, lr=1.0, seed=0).to_yaml()


def _steps(trainer: Trainer) -> Callable[[], float]:
    """A few training steps; their last loss is there when they are done."""
    batches = endless(trainer.feed)

    def run() -> float:
        for _ in range(STEPS):
            loss = trainer.learner.step(0, 0, batches)
        return loss.item()

    return run
