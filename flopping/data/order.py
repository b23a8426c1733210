"""Which images come when: a pure function of (seed, epoch, step), for any number of ranks and from any step on.

An epoch is a list of images. A step takes the next `batch_size` of them, in micro-batches that go through the network
together. Random numbers of a micro-batch or an image depend on its place in the epoch alone, so one rank that computes
four micro-batches and four ranks that compute one each learn the same. torch's DistributedSampler gives neither.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch.utils.data import Sampler

from flopping.errors import UsageError

Key = tuple[int, int]
"""An image's index, and the seed of its augmentation."""


def derive_seed(seed: int, *place: int | str) -> int:
    """The seed for one place of a run, from the run's seed.

    >>> derive_seed(0, "order", 1) == derive_seed(0, "order", 2)
    False
    """
    return int.from_bytes(hashlib.blake2b(repr((seed, *place)).encode(), digest_size=7).digest(), "little")


def seed_generators(seed: int) -> None:
    """Seed all generators that augmentation, mixup and dropout draw from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes half a millisecond: it asks every backend
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@dataclass(frozen=True)
class Order:
    """The order of training images.

    >>> order = Order(images=10, batch_size=4, micro_batch=2, repeats=2, seed=0)
    >>> order.steps, order.micro_batches, len(set(order.epoch(0))), order.epoch(0) == order.epoch(1)
    (2, 2, 4, False)
    """

    images: int
    batch_size: int
    micro_batch: int
    repeats: int
    seed: int

    def __post_init__(self) -> None:
        if self.images < self.batch_size:
            raise UsageError(
                f"{self.images} training images are less than one batch of {self.batch_size}: set batch_size lower"
            )
        if self.batch_size % self.micro_batch:
            raise UsageError(
                f"a batch of {self.batch_size} can't be cut into micro-batches of {self.micro_batch} images"
            )

    @property
    def steps(self) -> int:
        """Steps of an epoch. Images that don't fill a batch come in another epoch."""
        return self.images // self.batch_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step, over all ranks."""
        return self.batch_size // self.micro_batch

    def epoch(self, epoch: int) -> list[int]:
        """Indices of an epoch's images, in their order.

        With repeated augmentation every image stands `repeats` times in a row. The number of steps stays the same, so
        an epoch shows fewer images, each several times.
        """
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        order = torch.randperm(self.images, generator=generator)
        return order.repeat_interleave(self.repeats)[: self.steps * self.batch_size].tolist()

    def assign(self, rank: int, world_size: int) -> range:
        """The micro-batches of a step that a rank computes. There may be none.

        >>> order = Order(images=12, batch_size=12, micro_batch=4, repeats=1, seed=0)
        >>> [list(order.assign(rank, 2)) for rank in range(2)], [list(order.assign(rank, 4)) for rank in range(4)]
        ([[0], [1, 2]], [[], [0], [1], [2]])
        """
        return range(rank * self.micro_batches // world_size, (rank + 1) * self.micro_batches // world_size)


class MicroBatchSampler(Sampler[list[Key]]):
    """The micro-batches of one rank, from any step of any epoch on."""

    def __init__(self, order: Order, rank: int = 0, world_size: int = 1) -> None:
        self.order = order
        self.assigned = order.assign(rank, world_size)
        self.passes = ceil(order.micro_batches / world_size)
        """Forward passes of a step, the same number on every rank; one without images where a rank has fewer."""
        self.mean_assigned = order.micro_batches / world_size
        """Micro-batches of a step per rank, on average."""
        self.epoch = self.first_step = 0

    def start_at(self, epoch: int, step: int = 0) -> None:
        self.epoch, self.first_step = epoch, step

    def __len__(self) -> int:
        return (self.order.steps - self.first_step) * len(self.assigned)

    def __iter__(self) -> Iterator[list[Key]]:
        order, images = self.order, self.order.epoch(self.epoch)
        for step in range(self.first_step, order.steps):
            for micro_batch in self.assigned:
                start = step * order.batch_size + micro_batch * order.micro_batch
                yield [
                    (images[place], derive_seed(order.seed, "image", self.epoch, place))
                    for place in range(start, start + order.micro_batch)
                ]
