"""Batches from shards, which have no order to choose from: each worker process reads shards of its own.

What comes when depends on the seed, the epoch, and the numbers of processes and workers. A run is resumed exactly with
as many of both as it had.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from math import ceil
from random import Random
from typing import TypeVar

import torch
from PIL import Image
from torch.utils.data import IterableDataset, get_worker_info

from flopping.training.loader import FILLER, Batch, Feed, Preparation, Transformed, loader, stacked
from flopping.training.order import Chunks
from flopping.training.pixels import as_pixels
from flopping.training.processes import World
from flopping.training.randomness import derived, reseed
from flopping.training.shards import INFO, Sample, Shards
from flopping.training.stops import UnreadableError

BUFFER = 2048
"""From how many undecoded images the next one is drawn: in each worker, some 200 MB of ImageNet."""

T = TypeVar("T")
Numbered = tuple[int, Sample]
Opened = tuple[Transformed, int]


class Reader(IterableDataset[Batch]):
    """Batches that a worker process makes of the shards it reads."""

    def __init__(self, shards: Shards, preparation: Preparation, world: World) -> None:
        self.shards, self.transform, self.mode = shards, preparation.transform, preparation.mode
        self.rank, self.processes = world.rank, world.size

    @abstractmethod
    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        """The batches of one of this process's workers."""

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        return self.batches(*((0, 1) if info is None else (info.id, info.num_workers)))

    def share(self, shards: Sequence[int], rank: int, worker: int, workers: int) -> Sequence[int]:
        """What one worker takes of shards that are dealt to all workers of all processes."""
        return shards[rank * workers + worker :: self.processes * workers]

    def opened(self, samples: Iterable[Numbered], seeds: Iterable[int]) -> tuple[list[Opened | None], list[int]]:
        """Transformed images and their classes, None for one that can't be read; and the numbers of those."""
        found: list[Opened | None] = []
        unreadable: list[int] = []
        for (index, sample), seed in zip(samples, seeds, strict=True):
            try:
                image, label = self.shards.decoded(sample)
                image = as_pixels(image, self.mode)
            except Exception:  # damaged files make Pillow's decoders fail in more ways than it lists
                unreadable.append(index)
                found.append(None)
                continue
            self.shards.require_class(index, label)
            reseed(seed)
            found.append((self.transform(image), label))
        return found, unreadable


class TrainingReader(Reader):
    """The chunks that one process takes in an epoch. Those before a step were seen: they are read and dropped."""

    def __init__(
        self, shards: Shards, preparation: Preparation, world: World, chunks: Chunks, epoch: int, step: int
    ) -> None:
        super().__init__(shards, preparation, world)
        self.order, self.epoch = chunks.order, epoch
        self.first, self.end = step * len(chunks.mine), chunks.order.steps * len(chunks.mine)

    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        order = self.order
        samples = (sample for sample in self._mixed(worker, workers) for _ in range(order.repeats))
        for place in range(worker, self.end, workers):
            chunk = list(islice(samples, order.chunk))
            if place < self.first:
                yield Batch(torch.empty(0), torch.empty(0), [])
                continue
            seeds = (derived(order.seed, "streamed", self.epoch, self.rank, place, n) for n in range(order.chunk))
            found, unreadable = self.opened(chunk, seeds)
            good = [image for image in found if image is not None]
            if not good:
                raise UnreadableError(
                    f"{len(found)} images in a row can't be read, from {self.shards.where(unreadable[0])} on:"
                    " are these images?"
                )
            yield batch_of([image or good[n % len(good)] for n, image in enumerate(found)], unreadable)

    def _mixed(self, worker: int, workers: int) -> Iterator[Numbered]:
        """Images without end: when a worker has read its shards, all of them are dealt anew."""
        for turn in count():
            place = derived(self.order.seed, "shards", self.epoch, turn)
            dealt = Random(place).sample(range(len(self.shards.paths)), len(self.shards.paths))
            mine = self.share(dealt, self.rank, worker, workers)
            images = (sample for shard in mine for sample in self.shards.read(shard))
            none = True
            for sample in mixed(images, BUFFER, Random(derived(place, self.rank, worker))):
                none = False
                yield sample
            if none:
                raise UnreadableError(f"there are no images in {', '.join(self.shards.paths[shard] for shard in mine)}")


class EvaluationReader(Reader):
    """Every image once over all processes, in full batches."""

    def __init__(self, shards: Shards, preparation: Preparation, world: World, batch_size: int) -> None:
        super().__init__(shards, preparation, world)
        self.batch_size = batch_size

    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        mine = self.share(range(len(self.shards.paths)), self.rank, worker, workers)
        samples = (sample for shard in mine for sample in self.shards.read(shard))
        while batch := list(islice(samples, self.batch_size)):
            found, unreadable = self.opened(batch, (1 + index for index, _ in batch))
            yield self.full(found, unreadable)

    def full(self, found: list[Opened | None], unreadable: list[int]) -> Batch:
        """A batch in which images that count for nothing fill what is empty."""
        blank = self.transform(Image.new(self.mode, (1, 1))), FILLER
        return batch_of([image or blank for image in found] + [blank] * (self.batch_size - len(found)), unreadable)

    def expected(self, rank: int, workers: int) -> int:
        """How many batches one of the processes makes."""
        shares = (self.share(self.shards.lengths, rank, worker, workers) for worker in range(workers))
        return sum(ceil(sum(lengths) / self.batch_size) for lengths in shares)


class Stream(Feed):
    """Training images from shards. Workers start anew in every epoch."""

    def __init__(self, shards: Shards, preparation: Preparation, chunks: Chunks, workers: int, world: World) -> None:
        if len(shards.paths) < world.size:
            raise ValueError(
                f"{shards.name} are in {len(shards.paths)} shards, which {world.size} processes can't share: cut them"
                " into more"
            )
        self.shards, self.preparation, self.chunks, self.world = shards, preparation, chunks, world
        self.workers = min(workers, len(shards.paths) // world.size)

    def start(self, epoch: int, step: int) -> Iterator[Batch]:
        reader = TrainingReader(self.shards, self.preparation, self.world, self.chunks, epoch, step)
        batches = loader(reader, self.workers, self.preparation.device)
        return (self.preparation(batch) for batch in batches if len(batch.labels))


def all_of_shards(
    shards: Shards, preparation: Preparation, batch_size: int, workers: int, world: World
) -> Iterator[Batch]:
    """A process's share of all images, in full batches, as many as every other process has."""
    reader = EvaluationReader(shards, preparation, world, batch_size)
    workers = min(workers, len(shards.paths))
    most = max(reader.expected(rank, max(1, workers)) for rank in range(world.size))

    def as_many() -> Iterator[Batch]:
        number = 0
        for number, batch in enumerate(loader(reader, workers, preparation.device), 1):
            if number > most:
                raise UnreadableError(f"{shards.name} are more than the {len(shards)} that {INFO} promises: correct it")
            yield batch
        for _ in range(number, most):
            yield reader.full([], [])

    return map(preparation, as_many())


def mixed(items: Iterable[T], size: int, random: Random) -> Iterator[T]:
    """Items in another order: each is drawn from a buffer of so many.

    >>> list(mixed(range(8), 3, Random(0)))
    [1, 3, 0, 4, 2, 5, 7, 6]
    """
    buffer: list[T] = []
    for item in items:
        if len(buffer) < size:
            buffer.append(item)
            continue
        place = random.randrange(size)
        yield buffer[place]
        buffer[place] = item
    random.shuffle(buffer)
    yield from buffer


def batch_of(images: Sequence[Opened], unreadable: list[int]) -> Batch:
    return Batch(stacked([image for image, _ in images]), torch.tensor([label for _, label in images]), unreadable)
