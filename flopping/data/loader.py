"""Loaders for any kind of dataset, for training and for evaluation."""

from __future__ import annotations

import os

from flopping.data.augment import Preparation
from flopping.data.batches import DataSource, EvaluationLoader, IndexedSource, evaluate_indexed
from flopping.data.images import ImageDataset, IndexedDataset
from flopping.data.order import MicroBatchSampler
from flopping.data.shards import ShardDataset, ShardSource, evaluate_shards
from flopping.machine import usable_cores

MOST_WORKERS = 8


def create_data_source(
    dataset: ImageDataset, preparation: Preparation, sampler: MicroBatchSampler, workers: int
) -> DataSource:
    """The training images of the sampler's rank."""
    if isinstance(dataset, ShardDataset):
        return ShardSource(dataset, preparation, sampler, workers)
    assert isinstance(dataset, IndexedDataset)
    return IndexedSource(dataset, preparation, sampler, workers)


def create_evaluation_loader(
    dataset: ImageDataset, preparation: Preparation, batch_size: int, workers: int, rank: int = 0, world_size: int = 1
) -> EvaluationLoader:
    """A rank's share of all images, in full batches; every rank has the same number of batches."""
    if isinstance(dataset, ShardDataset):
        return evaluate_shards(dataset, preparation, batch_size, workers, rank, world_size)
    assert isinstance(dataset, IndexedDataset)
    return evaluate_indexed(dataset, preparation, batch_size, workers, rank, world_size)


def default_workers() -> int:
    """One worker process per core that is left after one for training, at most 8.

    `torchrun` says how many ranks share the machine.
    """
    cores = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(cores - 1, MOST_WORKERS))
