"""How fast X and E(X) train: both in one process, in turn, so that other work on the machine slows both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from flopping.cost.timing import interleave
from flopping.data.batches import detect_lost_workers
from flopping.lab.bench.loader import WARM, build_trainer, repeat_epochs
from flopping.lab.experiment.plan import Pair
from flopping.training.job import Job, RunOptions
from flopping.training.recipe import About
from flopping.training.trainer import Trainer

ROUNDS = 40
STEPS = 4
"""Training steps of each network in a round."""


@dataclass(frozen=True)
class Pace:
    """Training images per second of X, and how many times as many E(X) takes: medians over rounds."""

    ordinary: float
    speedup: float
    low: float
    high: float
    """The 95 % confidence interval of the speed-up."""
    rounds: int
    threads: int
    recipe: str
    """What was timed, from `timed_recipe`."""


def measure(pair: Pair, data: str, machine: RunOptions) -> Pace:
    """Time training steps of a pair, with reading and augmenting images. Nothing is written."""
    with TemporaryDirectory() as folder, detect_lost_workers(machine.workers):
        trainers = [
            build_trainer(Job(pair.content, pair.model(arm), data), machine, Path(folder), Console(quiet=True))
            for arm in ("x", "e")
        ]
        timings = interleave({str(n): _steps(trainer) for n, trainer in enumerate(trainers)}, ROUNDS, WARM)
    gain = timings["0"].interval_over(timings["1"])
    speed = STEPS * trainers[0].order.batch_size / timings["0"].median
    return Pace(speed, *gain, ROUNDS, torch.get_num_threads(), timed_recipe(pair))


def timed_recipe(pair: Pair) -> str:
    """All of a pair's recipe that decides how fast it is: not its header, nor how long and at what rate it learns."""
    return replace(pair.content, about=About(), epochs=1, warmup_epochs=0.0, lr=1.0, seed=0).to_yaml()


def _steps(trainer: Trainer) -> Callable[[], float]:
    """A few training steps, done when their last loss is known."""
    batches = repeat_epochs(trainer.source)

    def run() -> float:
        for _ in range(STEPS):
            loss = trainer.learner.step(0, 0, batches)
        return loss.item()

    return run
