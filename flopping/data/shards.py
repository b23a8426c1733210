"""WebDataset: images in shards, tar files that are read from front to back, as timm describes them.

Shards have no order to choose from: each worker process reads shards of its own. What comes when depends on the seed,
the epoch, and the numbers of ranks and workers. A run is resumed exactly with as many of both as it had.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, islice
from math import ceil
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import torch
from PIL import Image
from timm.data import create_dataset
from torch.utils.data import IterableDataset, get_worker_info

from flopping.data.augment import Preparation, Transformed, stack_images
from flopping.data.batches import PADDING, Batch, DataSource, EvaluationLoader, create_worker_loader, run_workers
from flopping.data.decode import convert_image, decode_image, is_image_name
from flopping.data.folders import SPLITS
from flopping.data.images import ImageDataset, require_package
from flopping.data.order import MicroBatchSampler, derive_seed, seed_generators
from flopping.errors import UnreadableDataError, UsageError

INFO = "_info.json"
EXAMPLE = (
    '{"classes": ["cat", "dog"], "splits": {"train": {"name": "train", "filenames": ["train-0.tar", "train-1.tar"],'
    ' "shard_lengths": [1000, 500], "num_samples": 1500}, "validation": {...}}}'
)
LABEL = "cls"
PLACES = 2**32
"""An image's number is that of its shard times this, plus its place in the shard."""
BUFFER = 2048
"""From how many encoded images the next one is drawn: in each worker, some 200 MB of ImageNet."""

T = TypeVar("T")
Sample = Mapping[str, Any]
"""The files of an image by their suffix, as "jpg" and "cls"; empty for what can't be read."""
Decoded = tuple[Transformed, int]


class ShardDataset(ImageDataset):
    """The shards of a split."""

    def __init__(self, name: str, paths: list[str], lengths: list[int], classes: tuple[str, ...]) -> None:
        self.name, self.paths, self.lengths, self.classes = name, paths, lengths, classes

    def __len__(self) -> int:
        return sum(self.lengths)

    def locate(self, index: int) -> str:
        shard, place = divmod(index, PLACES)
        names = _read_names(self.paths[shard])
        name = names[place] if place < len(names) else f"what follows image {place - 1}"
        return f"{self.paths[shard]}, {name}"

    def portable_names(self) -> Iterable[str]:
        return (f"{os.path.basename(path)} {length}" for path, length in zip(self.paths, self.lengths, strict=True))

    def read_shard(self, shard: int) -> Iterator[tuple[int, Sample]]:
        """The images of a shard with their numbers. Where the shard is damaged, the last one is empty."""
        from webdataset.tariterators import group_by_keys, tar_file_expander

        path, index, is_damaged = self.paths[shard], shard * PLACES, False

        def files() -> Iterator[Any]:
            nonlocal is_damaged
            try:
                with open(path, "rb") as file:
                    yield from tar_file_expander([{"url": path, "stream": file}])
            except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error):
                is_damaged = True  # the images before are good

        for sample in group_by_keys(files()):
            yield index, sample
            index += 1
        if is_damaged:
            yield index, {}


def open_shards(data: str, split: str, root: str | None) -> ShardDataset:
    """The shards of a split of the WebDataset in the folder `root`; a file _info.json there describes them."""
    require_package("webdataset", data)
    if root is None:
        raise UsageError(f"--root says in which folder the shards of {data!r} lie")
    path = Path(root, INFO)
    if not path.is_file():
        problem = f"no file {str(path)!r}, which describes the shards" if Path(root).is_dir() else f"no folder {root!r}"
        raise UsageError(f"there is {problem} of {data!r}. It is as {EXAMPLE}")
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        name = next(name for name in SPLITS[split] if name in info["splits"])
        found = create_dataset("wds/", root=root, split=name).reader.split_info
        files, lengths = [str(file) for file in found.filenames], [int(length) for length in found.shard_lengths]
        classes = info["classes"] if isinstance(info["classes"], list) else range(int(info["classes"]))
    except (StopIteration, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else f"no split {' or '.join(SPLITS[split])}"
        raise UsageError(
            f"{str(path)!r} does not describe the {split} images ({reason}). It is as {EXAMPLE}"
        ) from error
    if len(files) != len(lengths) or min(lengths, default=0) < 1:
        raise UsageError(f"{str(path)!r}: the {len(files)} filenames of {name!r} need as many shard_lengths above 0")
    if found.alt_label:
        raise UsageError(f"{str(path)!r}: alt_label={found.alt_label!r} is not read; labels are in files KEY.{LABEL}")
    dataset = ShardDataset(
        f"{data}'s {split} images in {root!r}",
        [os.path.join(root, file) for file in files],
        lengths,
        tuple(str(label) for label in classes),
    )
    missing = [file for file in dataset.paths if not Path(file).is_file()]
    if missing:
        raise UsageError(f"{str(path)!r} names shards that are not there: {', '.join(missing[:3])}")
    _, first = next(dataset.read_shard(0), (0, {}))
    if LABEL not in first or not any(is_image_name(f"KEY.{name}") for name in first):
        there = ", ".join(f".{name}" for name in first if not name.startswith("__")) or "none that can be read"
        raise UsageError(
            f"an image of a shard has a file KEY.jpg (or .png, .webp) and a file KEY.{LABEL} with the number of its"
            f" class; the first of {dataset.paths[0]!r} has {there}"
        )
    return dataset


@lru_cache(maxsize=16)
def _read_names(path: str) -> list[str]:
    """The names of the images of a shard, as far as it can be read."""
    names: dict[str, None] = {}
    try:
        with tarfile.open(path) as shard:
            for member in shard:
                if member.isfile():
                    folder, name = os.path.split(member.name)
                    names[os.path.join(folder, name.partition(".")[0])] = None
    except (OSError, EOFError, tarfile.TarError, zlib.error):
        pass
    return list(names)


# -- batches


class ShardReader(IterableDataset[Batch]):
    """Batches that a worker process makes of the shards it reads."""

    def __init__(self, dataset: ShardDataset, preparation: Preparation, rank: int, world_size: int) -> None:
        self.dataset, self.transform, self.mode = dataset, preparation.transform, preparation.mode
        self.rank, self.world_size = rank, world_size

    @abstractmethod
    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        """The batches of one of this rank's workers."""

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        return self.batches(*((0, 1) if info is None else (info.id, info.num_workers)))

    def assign(self, shards: Sequence[int], rank: int, worker: int, workers: int) -> Sequence[int]:
        """One worker's part of shards that are dealt to all workers of all ranks."""
        return shards[rank * workers + worker :: self.world_size * workers]

    def decode(
        self, samples: Iterable[tuple[int, Sample]], seeds: Iterable[int]
    ) -> tuple[list[Decoded | None], list[int]]:
        """Transformed images with labels, None for one that can't be read; and the numbers of those."""
        decoded: list[Decoded | None] = []
        unreadable: list[int] = []
        classes = len(self.dataset.classes)
        for (index, sample), seed in zip(samples, seeds, strict=True):
            try:
                content = next(value for name, value in sample.items() if is_image_name(f"KEY.{name}"))
                image, label = convert_image(decode_image(io.BytesIO(content)), self.mode), int(sample[LABEL])
            except Exception:  # damaged files raise more kinds of errors than Pillow documents
                unreadable.append(index)
                decoded.append(None)
                continue
            if not 0 <= label < classes:
                raise UnreadableDataError(
                    f"{self.dataset.locate(index)} is of class {label}, and the {classes} classes in {INFO} are 0 to"
                    f" {classes - 1}"
                )
            seed_generators(seed)
            decoded.append((self.transform(image), label))
        return decoded, unreadable


class TrainingReader(ShardReader):
    """The micro-batches of one rank in an epoch. Those before a step are read and given out empty."""

    def __init__(
        self, dataset: ShardDataset, preparation: Preparation, sampler: MicroBatchSampler, epoch: int, step: int
    ) -> None:
        super().__init__(dataset, preparation, sampler.rank, sampler.world_size)
        self.order, self.epoch = sampler.order, epoch
        self.first, self.end = step * len(sampler.assigned), self.order.steps * len(sampler.assigned)

    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        order = self.order
        samples = (sample for sample in self._shuffled(worker, workers) for _ in range(order.repeats))
        for place in range(worker, self.end, workers):
            chosen = list(islice(samples, order.micro_batch))
            if place < self.first:
                yield Batch(torch.empty(0), torch.empty(0), [])
                continue
            numbers = range(order.micro_batch)
            seeds = (derive_seed(order.seed, "streamed", self.epoch, self.rank, place, n) for n in numbers)
            decoded, unreadable = self.decode(chosen, seeds)
            good = [image for image in decoded if image is not None]
            if not good:
                raise UnreadableDataError(
                    f"{len(decoded)} images in a row can't be read, from {self.dataset.locate(unreadable[0])} on:"
                    " are these images?"
                )
            yield _stack([image or good[n % len(good)] for n, image in enumerate(decoded)], unreadable)

    def _shuffled(self, worker: int, workers: int) -> Iterator[tuple[int, Sample]]:
        """Images without end: when a worker has read its shards, all of them are dealt anew."""
        shards = range(len(self.dataset.paths))
        for turn in count():
            seed = derive_seed(self.order.seed, "shards", self.epoch, turn)
            mine = self.assign(Random(seed).sample(shards, len(shards)), self.rank, worker, workers)
            samples = (sample for shard in mine for sample in self.dataset.read_shard(shard))
            is_empty = True
            for sample in shuffle(samples, BUFFER, Random(derive_seed(seed, self.rank, worker))):
                is_empty = False
                yield sample
            if is_empty:
                paths = ", ".join(self.dataset.paths[shard] for shard in mine)
                raise UnreadableDataError(f"there are no images in {paths}")


class EvaluationReader(ShardReader):
    """Every image once over all ranks, in full batches."""

    def __init__(
        self, dataset: ShardDataset, preparation: Preparation, batch_size: int, rank: int, world_size: int
    ) -> None:
        super().__init__(dataset, preparation, rank, world_size)
        self.batch_size = batch_size

    def batches(self, worker: int, workers: int) -> Iterator[Batch]:
        mine = self.assign(range(len(self.dataset.paths)), self.rank, worker, workers)
        samples = (sample for shard in mine for sample in self.dataset.read_shard(shard))
        blank = self.transform(Image.new(self.mode, (1, 1))), PADDING
        while batch := list(islice(samples, self.batch_size)):
            decoded, unreadable = self.decode(batch, (1 + index for index, _ in batch))
            missing = self.batch_size - len(decoded)
            yield _stack([*(image or blank for image in decoded), *[blank] * missing], unreadable)

    def expect_batches(self, rank: int, workers: int) -> int:
        """How many batches a rank makes."""
        shares = (self.assign(self.dataset.lengths, rank, worker, workers) for worker in range(workers))
        return sum(ceil(sum(lengths) / self.batch_size) for lengths in shares)


class ShardSource(DataSource):
    """Training images from shards. Workers start anew in every epoch."""

    def __init__(
        self, dataset: ShardDataset, preparation: Preparation, sampler: MicroBatchSampler, workers: int
    ) -> None:
        shards, world_size = len(dataset.paths), sampler.world_size
        if shards < world_size:
            raise UsageError(
                f"{dataset.name} are in {shards} shards, too few for {world_size} processes: cut them into more"
            )
        self.dataset, self.preparation, self.sampler = dataset, preparation, sampler
        self.workers = min(workers, shards // world_size)

    def start(self, epoch: int, step: int) -> Iterator[Batch]:
        reader = TrainingReader(self.dataset, self.preparation, self.sampler, epoch, step)
        return run_workers(create_worker_loader(reader, self.workers, self.preparation), self.preparation)


def evaluate_shards(
    dataset: ShardDataset, preparation: Preparation, batch_size: int, workers: int, rank: int, world_size: int
) -> EvaluationLoader:
    """The images of all shards, which are dealt to the workers of all ranks."""
    reader = EvaluationReader(dataset, preparation, batch_size, rank, world_size)
    workers = min(workers, len(dataset.paths))
    length = max(reader.expect_batches(rank, max(1, workers)) for rank in range(world_size))
    excess = f"{dataset.name} are more than the {len(dataset)} that {INFO} promises: correct it"
    loader = create_worker_loader(reader, workers, preparation)
    return EvaluationLoader(loader, preparation, batch_size, length, excess)


def shuffle(items: Iterable[T], size: int, random: Random) -> Iterator[T]:
    """Items in another order: each is drawn from a buffer of `size` items.

    >>> list(shuffle(range(8), 3, Random(0)))
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


def _stack(images: Sequence[Decoded], unreadable: list[int]) -> Batch:
    return Batch(stack_images([image for image, _ in images]), torch.tensor([label for _, label in images]), unreadable)
