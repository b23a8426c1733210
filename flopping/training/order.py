"""Which images come when: a pure function of the seed, the epoch and the step, for any number of processes.

An epoch is a list of images. A step takes the next `batch_size` of them, in chunks of `chunk` images that go through
the network together; processes have the same number of chunks, or one more than others. What is drawn at random for a
chunk or an image depends on its place in the epoch alone, so one process that takes four chunks learns what four
processes learn with one each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
from torch.utils.data import Sampler

from flopping.training.randomness import derived

Key = tuple[int, int]
"""An image's index, and the seed of what happens to it."""


@dataclass(frozen=True)
class Order:
    """The order of training images.

    >>> order = Order(images=10, batch_size=4, chunk=2, repeats=2, seed=0)
    >>> order.steps, order.chunks, len(set(order.epoch(0))), order.epoch(0) == order.epoch(1)
    (2, 2, 4, False)
    """

    images: int
    batch_size: int
    chunk: int
    repeats: int
    seed: int

    def __post_init__(self) -> None:
        if self.images < self.batch_size:
            raise ValueError(
                f"{self.images} training images are less than one batch of {self.batch_size}: set batch_size lower"
            )
        if self.batch_size % self.chunk:
            raise ValueError(f"a batch of {self.batch_size} can't be cut into chunks of {self.chunk} images")

    @property
    def steps(self) -> int:
        """Steps of an epoch; images that don't fill a batch come in another epoch."""
        return self.images // self.batch_size

    @property
    def chunks(self) -> int:
        """Chunks of a step, over all processes."""
        return self.batch_size // self.chunk

    def epoch(self, epoch: int) -> list[int]:
        """Indices of an epoch's images, in their order.

        With repeated augmentation every image stands `repeats` times in a row, and an epoch has as many steps as
        without, so it shows fewer images, each several times.
        """
        generator = torch.Generator().manual_seed(derived(self.seed, "order", epoch))
        order = torch.randperm(self.images, generator=generator)
        return order.repeat_interleave(self.repeats)[: self.steps * self.batch_size].tolist()

    def share(self, rank: int, processes: int) -> range:
        """The chunks of a step that one of several processes takes; there may be none left for it.

        >>> order = Order(images=12, batch_size=12, chunk=4, repeats=1, seed=0)
        >>> [list(order.share(rank, 2)) for rank in range(2)], [list(order.share(rank, 4)) for rank in range(4)]
        ([[0], [1, 2]], [[], [0], [1], [2]])
        """
        return range(rank * self.chunks // processes, (rank + 1) * self.chunks // processes)


class Chunks(Sampler[list[Key]]):
    """The chunks of one process, from any step of any epoch on."""

    def __init__(self, order: Order, rank: int = 0, processes: int = 1) -> None:
        self.order = order
        self.mine = order.share(rank, processes)
        self.turns = ceil(order.chunks / processes)
        """How often a process runs its network in a step, as often as every other: without images, if need be."""
        self.share = order.chunks / processes
        """Chunks per process, on average."""
        self.epoch = 0
        self.first_step = 0

    def start_at(self, epoch: int, step: int = 0) -> None:
        self.epoch, self.first_step = epoch, step

    def __len__(self) -> int:
        return (self.order.steps - self.first_step) * len(self.mine)

    def __iter__(self) -> Iterator[list[Key]]:
        order, images = self.order, self.order.epoch(self.epoch)
        for step in range(self.first_step, order.steps):
            for chunk in self.mine:
                start = step * order.batch_size + chunk * order.chunk
                yield [
                    (images[place], derived(order.seed, "image", self.epoch, place))
                    for place in range(start, start + order.chunk)
                ]
