"""Time of loading images against time of training on them: both apart, and together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count, repeat
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from rich.console import Console

from flopping.data.batches import Batch, DataSource, TimedBatches, detect_lost_workers
from flopping.data.datasets import open_dataset
from flopping.machine import usable_cores, usable_precision
from flopping.training.distributed import World, resolve_device
from flopping.training.job import Job, RunOptions
from flopping.training.run import MICRO_BATCH, default_micro_batch, require_compiler
from flopping.training.run_log import warn
from flopping.training.trainer import Trainer

MICRO_BATCHES = 4
"""At most so many micro-batches make a step here; a recipe's batch of thousands would take minutes on a CPU."""
WARM = 2
"""Steps before the first that counts: the first one compiles."""
MOST_WAITING = 0.05
"""A share of waiting that is not worth a hint."""


@dataclass(frozen=True)
class Speed:
    """Images per second: of the loader, of the network in training, and of both together."""

    loader: float
    network: float
    together: float
    waiting: float
    """The share of its time that training waits for images."""
    workers: int
    cores: int

    @property
    def ratio(self) -> float:
        """How many times as fast as the network the loader is."""
        return self.loader / self.network

    @property
    def workers_needed(self) -> int:
        """How many workers would keep up with the network, if each had a core of its own."""
        return ceil(max(1, self.workers) / self.ratio)

    @property
    def verdict(self) -> str:
        """What the figures mean.

        >>> print(Speed(300.0, 100.0, 99.0, 0.01, workers=1, cores=2).verdict)
        The loader is 3.0 times as fast as the network, which waits for images 1 % of the time.
        >>> print(Speed(300.0, 900.0, 290.0, 0.7, workers=2, cores=4).verdict)
        The network waits for images 70 % of the time: the loader is 0.33 times as fast. --workers 6 would keep up, on \
6 cores; this machine has 4.
        """
        waits = f"waits for images {100 * self.waiting:.0f} % of the time"
        if self.ratio < 1:
            most = f", on {self.workers_needed} cores; this machine has {self.cores}"
            return (
                f"The network {waits}: the loader is {self.ratio:.2f} times as fast."
                f" --workers {self.workers_needed} would keep up{most if self.workers_needed > self.cores else ''}."
            )
        busy = "" if self.waiting <= MOST_WAITING else " They compete for the cores: try other values of --workers."
        return f"The loader is {self.ratio:.1f} times as fast as the network, which {waits}.{busy}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "workers_needed": self.workers_needed, "verdict": self.verdict}


def build_trainer(job: Job, options: RunOptions, folder: Path, console: Console) -> Trainer:
    """A trainer of a network by a recipe, with at most `MICRO_BATCHES` micro-batches per step."""
    world = World(resolve_device(options.device))
    require_compiler(options, world)
    precision, why = usable_precision(job.recipe.precision, world.device)
    if why:
        warn(console, why)
    recipe = job.recipe
    micro_batch = job.micro_batch or default_micro_batch(
        recipe.batch_size, 1, MICRO_BATCH[world.device.type], recipe.mixes
    )
    batch = micro_batch * min(MICRO_BATCHES, recipe.batch_size // micro_batch) or recipe.batch_size
    recipe = recipe.override([f"precision={precision}", f"batch_size={batch}"])
    images = open_dataset(job.data, "train", job.root)
    trainer = Trainer(
        replace(job, recipe=recipe, micro_batch=micro_batch), options, folder, world, images, images, console
    )
    trainer.model.train()
    return trainer


def measure(job: Job, options: RunOptions, console: Console, seconds: float) -> Speed:
    """Time a recipe's loader and network on its training images, each for so many seconds. Nothing is written."""
    with TemporaryDirectory() as folder, detect_lost_workers(options.workers):
        trainer = build_trainer(job, options, Path(folder), console)
        source = trainer.source
        console.print("Timing the loader")
        loader, last = _loading(source, options.workers, seconds)
        console.print("Timing the network" + (", which is compiled first: up to a minute" if options.compile else ""))
        network, _ = _training(trainer, TimedBatches(repeat(last)), seconds)
        console.print("Timing both together")
        together, waiting = _training(trainer, TimedBatches(repeat_epochs(source)), seconds)
    return Speed(loader, network, together, waiting, options.workers, usable_cores())


def repeat_epochs(source: DataSource) -> Iterator[Batch]:
    """The micro-batches of one epoch after another, without end."""
    for epoch in count():
        yield from source.start(epoch, 0)


def _loading(source: DataSource, workers: int, seconds: float) -> tuple[float, Batch]:
    """Images per second of a source alone, and the last of its batches."""
    batches = repeat_epochs(source)
    for _ in range(2 + 2 * workers):  # the first ones were made before they were asked for, by workers that had time
        batch = next(batches)
    images, started = 0, monotonic()
    while (passed := monotonic() - started) < seconds:
        batch = next(batches)
        images += len(batch.labels)
    return images / passed, batch


def _training(trainer: Trainer, batches: TimedBatches, seconds: float) -> tuple[float, float]:
    """Images per second of training steps, and the share of time that they wait for images."""
    for _ in range(WARM):
        trainer.learner.step(0, 0, batches).item()
    batches.seconds, started = 0.0, monotonic()
    steps = 0
    while not steps or monotonic() - started < seconds:
        loss = trainer.learner.step(0, 0, batches)
        steps += 1
    loss.item()  # a GPU has done its work then
    passed = monotonic() - started
    return steps * trainer.order.batch_size / passed, batches.seconds / passed
