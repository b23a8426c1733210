"""From images to batches: augmentation, worker processes, and images that can't be read.

B batch, C channels, H height, W width.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, create_transform
from timm.data.transforms import MaybePILToTensor
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flopping.cores import usable_cores
from flopping.training.augment import Shortened, mended
from flopping.training.images import Source
from flopping.training.order import Chunks, Key
from flopping.training.pixels import as_pixels, mode_of
from flopping.training.processes import World
from flopping.training.randomness import reseed
from flopping.training.recipe import Recipe
from flopping.training.stops import AloneError, StoppedError, UnreadableError

Transformed = Image.Image | Tensor
Transform = Callable[[Image.Image], Transformed]
FILLER = -1
"""The class of an image that only fills a batch."""
FILL = 0
"""The seed of a key that only fills a batch."""
TRIES = 50
"""How many images in a row may be unreadable before a worker gives up."""
MOST_WORKERS = 8
_LOST = "DataLoader worker"
"""How torch begins its message when a worker process is no more."""


@dataclass
class Batch:
    """Images `(B, C, H, W)`, their classes `(B,)`, and the indices of images that could not be read."""

    images: Tensor
    """As bytes, until the network's process has shifted and scaled them."""
    labels: Tensor
    unreadable: list[int]

    def pin_memory(self) -> Batch:
        """Called by torch's loader, so that copies to a GPU need not wait."""
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.unreadable)


@dataclass(frozen=True)
class Normalisation:
    """What pixels are shifted and scaled by, one value per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def per_channel(values: Sequence[float], chans: int) -> tuple[float, ...]:
    """One value for each channel; for images with another number of channels than it was made for, the mean for all."""
    return tuple(values) if len(values) == chans else (sum(values) / len(values),) * chans


def training_transform(recipe: Recipe, normal: Normalisation, flip: float) -> Transform:
    """The recipe's augmentation, made of timm's pieces: an image, to be shifted and scaled together with others.

    Random erasing fills in noise that a picture can't hold, so with it this gives normalised tensors: a tenth more work
    for each, and four times the bytes from process to process.
    """
    transform = create_transform(
        recipe.img_size,
        is_training=True,
        scale=(recipe.crop_scale, 1.0),
        ratio=(3 / 4, 4 / 3) if recipe.crop_scale < 1 else (1.0, 1.0),
        hflip=flip,
        color_jitter=recipe.color_jitter,
        auto_augment=recipe.augment,
        interpolation=recipe.interpolation,
        mean=normal.mean,
        std=normal.std,
        re_prob=recipe.erase,
        re_mode="pixel",
        normalize=recipe.erase > 0,
    )
    return _pictures(mended(transform))


def eval_transform(
    img_size: int | tuple[int, int],
    crop: float,
    interpolation: str,
    mode: str = "center",
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN,
) -> Transform:
    """Resize and crop the middle; a size is that of a square, or height and width.

    `mode` is how timm makes an image fit: "center" crops, "border" fills up with the mean colour, "squash" distorts.
    """
    transform = create_transform(
        img_size, crop_pct=crop, crop_mode=mode, mean=mean, interpolation=interpolation, normalize=False
    )
    if mode != "squash":
        transform.transforms.insert(0, Shortened())
    return _pictures(transform)


def _pictures(transform: Any) -> Transform:
    """A transform without its last step, a tensor for each image: half of the time that a small one takes."""
    if isinstance(transform.transforms[-1], MaybePILToTensor):
        transform.transforms.pop()
    found: Transform = transform
    return found


def stacked(images: Sequence[Transformed]) -> Tensor:
    """Transformed images `(B, C, H, W)`: pictures as bytes."""
    if isinstance(images[0], Tensor):
        return torch.stack([image for image in images if isinstance(image, Tensor)])
    pixels = np.stack([np.asarray(image) for image in images])
    return torch.from_numpy(pixels[:, None] if pixels.ndim == 3 else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


class Preparation:
    """How images become a network's input: each by itself in a worker, then a batch of them on the device."""

    def __init__(
        self, transform: Transform, in_chans: int, normal: Normalisation, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.transform, self.mode, self.device, self.dtype = transform, mode_of(in_chans), device, dtype
        self.mean, self.std = (
            torch.tensor([255 * value for value in values], dtype=dtype, device=device)[:, None, None]
            for values in (normal.mean, normal.std)
        )

    def __call__(self, batch: Batch) -> Batch:
        """A batch from a worker as the network takes it."""
        return Batch(self.normalised(batch.images), batch.labels, batch.unreadable)

    def normalised(self, images: Tensor) -> Tensor:
        """On the device; bytes are shifted and scaled."""
        images = images.to(self.device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = images.to(self.dtype).sub_(self.mean).div_(self.std)
        return images.to(self.dtype)


class Samples(Dataset[Batch]):
    """Transformed images of a source. What is random about one depends on its key alone.

    In place of an image that can't be read comes the next one that can; in a test it counts for nothing.
    """

    def __init__(self, source: Source, transform: Transform, mode: str, *, training: bool) -> None:
        self.source, self.transform, self.mode, self.training = source, transform, mode, training

    def __getitem__(self, keys: list[Key]) -> Batch:
        images: list[Transformed] = []
        labels: list[int] = []
        unreadable: list[int] = []
        for index, seed in keys:
            if seed == FILL and images:
                images.append(images[0])
                labels.append(FILLER)
                continue
            image, label, right = self._readable(index, unreadable)
            reseed(seed)
            images.append(self.transform(image))
            labels.append(label if seed != FILL and (right or self.training) else FILLER)
        return Batch(stacked(images), torch.tensor(labels), unreadable)

    def _readable(self, index: int, unreadable: list[int]) -> tuple[Image.Image, int, bool]:
        """The image at an index or the next that can be read, its class, and whether it is the one that was meant."""
        for tried in range(TRIES):
            place = (index + tried) % len(self.source)
            try:
                image, label = self.source.open(place)
                return as_pixels(image, self.mode), label, not tried
            except Exception:  # damaged files make Pillow's decoders fail in more ways than it lists
                unreadable.append(place)
        raise UnreadableError(
            f"{TRIES} images in a row can't be read, from {self.source.where(index)} on: are these images?"
        )


class Timed(Iterator[Batch]):
    """Batches, and how long they were waited for."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches, self.seconds = batches, 0.0

    def __next__(self) -> Batch:
        before = monotonic()
        batch = next(self.batches)
        self.seconds += monotonic() - before
        return batch


class Feed(ABC):
    """A process's share of the training images, chunk by chunk."""

    @abstractmethod
    def start(self, epoch: int, step: int) -> Iterator[Batch]:
        """The chunks of an epoch from a step on: the same ones whether or not those before were read."""


class Loader(Feed):
    """Images of a source in a given order. Worker processes live as long as the loader."""

    def __init__(self, source: Source, preparation: Preparation, chunks: Chunks, workers: int) -> None:
        self.chunks, self.preparation = chunks, preparation
        samples = Samples(source, preparation.transform, preparation.mode, training=True)
        self.batches = loader(samples, workers, preparation.device, chunks, stay=True)

    def start(self, epoch: int, step: int) -> Iterator[Batch]:
        self.chunks.start_at(epoch, step)
        return map(self.preparation, self.batches)


def all_images(
    source: Source, preparation: Preparation, batch_size: int, workers: int, world: World
) -> Iterator[Batch]:
    """A process's share of all images, in their order, in full batches, as many as every other process has."""
    keys = [(index, 1 + index) for index in range(len(source))]
    keys += [(0, FILL)] * (-len(keys) % (batch_size * world.size))
    mine = keys[world.rank :: world.size]
    batches = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    samples = Samples(source, preparation.transform, preparation.mode, training=False)
    return map(preparation, loader(samples, workers, preparation.device, batches))


def loader(
    batches: Dataset[Batch],
    workers: int,
    device: torch.device,
    keys: Sequence[list[Key]] | Chunks | None = None,
    *,
    stay: bool = False,
) -> DataLoader[Any]:
    """torch's loader of whole batches, each made by one worker process."""
    return DataLoader(
        batches,
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        persistent_workers=stay and workers > 0,
        worker_init_fn=_worker_starts,
    )


@contextmanager
def lost_workers(workers: int, meanwhile: Callable[[], str] = str, *, alone: bool = False) -> Iterator[None]:
    """Within it, a worker process that is killed stops the run, with a word on what was kept and what helps.

    torch notices it at any moment, not only when a batch is waited for. Of several processes, which wait for each other
    then, the one that has lost it ends `alone`.
    """
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith(_LOST):
            raise
        how = " ".join(str(error).split("Details")[0].split()).rstrip(".")
        raise (AloneError if alone else StoppedError)(
            f"a process that reads images has ended ({how}), most often because memory was short. {meanwhile()}Go on"
            f" with fewer of them (--workers, {workers} now), or leave them more memory"
        ) from error


def default_workers() -> int:
    """Worker processes if nobody says how many: a core for each, but one core for training, at most 8.

    `torchrun` says how many processes share the machine.
    """
    share = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(share - 1, MOST_WORKERS))


def _worker_starts(_: int) -> None:
    """Terminals, torchrun and batch systems signal all processes at once; the one that trains decides what it means.

    It ends those that read images by SIGTERM, if need be, so they take that from nobody else.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_end_if_told_by, args=(os.getppid(),), daemon=True).start()
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the process that trains may block it


def _end_if_told_by(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
