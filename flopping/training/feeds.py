"""Batches of any kind of images, for training and for testing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flopping.training.images import Images, Source
from flopping.training.loader import Batch, Feed, Loader, Preparation, all_images, lost_workers
from flopping.training.order import Chunks
from flopping.training.processes import World
from flopping.training.shards import Shards
from flopping.training.stops import AskedError, StoppedError
from flopping.training.stream import Stream, all_of_shards

BROKEN = (StoppedError, OSError, RuntimeError, ValueError)
"""How reading fails for good: no image is one, a file system is gone, a worker was killed."""


def training_feed(images: Images, preparation: Preparation, chunks: Chunks, workers: int, world: World) -> Feed:
    """A process's share of the training images."""
    if isinstance(images, Shards):
        return Stream(images, preparation, chunks, workers, world)
    assert isinstance(images, Source)
    return Loader(images, preparation, chunks, workers)


def eval_batches(
    images: Images, preparation: Preparation, batch_size: int, workers: int, world: World
) -> Iterator[Batch]:
    """A process's share of all images, in full batches, as many as every other process has."""
    if isinstance(images, Shards):
        return all_of_shards(images, preparation, batch_size, workers, world)
    assert isinstance(images, Source)
    return all_images(images, preparation, batch_size, workers, world)


def worded(batches: Iterator[Batch], workers: int, meanwhile: Callable[[], str]) -> Iterator[Batch]:
    """Batches; once a worker process is no more, they end in a word on what was kept and what helps."""
    with lost_workers(workers, meanwhile):
        yield from batches


def unbroken(batches: Iterator[Batch], blank: Callable[[], Batch], cannot: Callable[[str], None]) -> Iterator[Batch]:
    """Batches for one of several processes; once reading fails, it says why and goes on with blank ones.

    The others wait for its share of the step, whatever that is worth, and hear of the problem afterwards.
    """
    try:
        yield from batches
    except BROKEN as error:
        cannot(_why(error))
        while True:
            yield blank()


def agreed(batches: Iterator[Batch], world: World, asked: Callable[[], bool]) -> Iterator[Batch]:
    """Batches of a test, which ends for all processes if reading fails for one, or if one was asked to stop."""
    while True:
        batch = problem = None
        try:
            batch = next(batches, None)
        except BROKEN as error:
            if world.size == 1:
                raise
            problem = _why(error)
        problems, stops = zip(*world.every((problem, asked())), strict=True)
        if any(problems):
            raise StoppedError(next(filter(None, problems)))
        if batch is None:  # for all, since all have as many
            return
        if any(stops):
            raise AskedError
        yield batch


def _why(error: Exception) -> str:
    """What went wrong, in one line: torch puts the traceback of a worker before it."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
