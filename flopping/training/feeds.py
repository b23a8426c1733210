"""Batches of any kind of images, for training and for testing."""

from __future__ import annotations

from collections.abc import Iterator

from flopping.training.images import Images, Source
from flopping.training.loader import Batch, Feed, Loader, Preparation, all_images
from flopping.training.order import Chunks
from flopping.training.processes import World
from flopping.training.shards import Shards
from flopping.training.stream import Stream, all_of_shards


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
