"""From a source to batches: augmentation, worker processes, and images that can't be read.

B batch, C channels, H height, W width.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import torch
from PIL import Image
from timm.data import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flopping.training.augment import mended
from flopping.training.order import Chunks, Key
from flopping.training.processes import World
from flopping.training.randomness import reseed
from flopping.training.recipe import Recipe
from flopping.training.sources import Source
from flopping.training.stops import UnreadableError

Transform = Callable[[Image.Image], Tensor]
FILLER = -1
"""The class of an image that only fills a batch."""
FILL = 0
"""The seed of a key that only fills a batch."""
TRIES = 50
"""How many images in a row may be unreadable before a worker gives up."""


@dataclass
class Batch:
    """Images `(B, C, H, W)`, their classes `(B,)`, and the indices of images that could not be read."""

    images: Tensor
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


def training_transform(recipe: Recipe, normal: Normalisation, flip: float) -> Transform:
    """The recipe's augmentation, made of timm's pieces."""
    transform: Transform = create_transform(
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
    )
    return mended(transform)  # type: ignore[no-any-return]


def eval_transform(img_size: int, crop: float, interpolation: str, normal: Normalisation) -> Transform:
    """Resize and crop the middle."""
    transform: Transform = create_transform(
        img_size,
        crop_pct=crop,
        interpolation=interpolation,
        mean=normal.mean,
        std=normal.std,
    )
    return transform


class Samples(Dataset[tuple[Tensor, int, list[int]]]):
    """Transformed images of a source. What is random about one depends on its key alone.

    In place of an image that can't be read comes the next one that can; in a test it counts for nothing.
    """

    def __init__(self, source: Source, transform: Transform, in_chans: int, *, training: bool) -> None:
        self.source = source
        self.transform = transform
        self.training = training
        self.mode = {1: "L", 3: "RGB"}.get(in_chans)
        if self.mode is None:
            raise ValueError(f"images have 1 channel or 3, got in_chans={in_chans}")

    def __getitem__(self, key: Key) -> tuple[Tensor, int, list[int]]:
        index, seed = key
        unreadable: list[int] = []
        for tried in range(TRIES):
            place = (index + tried) % len(self.source)
            try:
                image, label = self.source.open(place)
                image = image.convert(self.mode)
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):  # as PIL's decoders fail
                unreadable.append(place)
                continue
            reseed(seed)
            counts = seed != FILL and (self.training or not unreadable)
            return self.transform(image), label if counts else FILLER, unreadable
        raise UnreadableError(
            f"{TRIES} images in a row can't be read, from {self.source.where(index)} on: are these images?"
        )


def collate(samples: Sequence[tuple[Tensor, int, list[int]]]) -> Batch:
    images, labels, unreadable = zip(*samples, strict=True)
    return Batch(torch.stack(images), torch.tensor(labels), [index for found in unreadable for index in found])


def _worker_starts(_: int) -> None:
    """Terminals, torchrun and batch systems signal all processes at once; the one that trains decides what it means.

    It ends those that read images by SIGTERM, if need be, so they take that from nobody else.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_end_if_told_by, args=(os.getppid(),), daemon=True).start()


def _end_if_told_by(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)


def training_batches(
    source: Source, transform: Transform, in_chans: int, chunks: Chunks, workers: int, pin: bool
) -> DataLoader[Any]:
    """A loader of the chunks that one process takes."""
    return DataLoader(
        Samples(source, transform, in_chans, training=True),
        batch_sampler=chunks,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        persistent_workers=workers > 0,
        worker_init_fn=_worker_starts,
    )


def eval_batches(
    source: Source, transform: Transform, in_chans: int, batch_size: int, workers: int, pin: bool, world: World
) -> DataLoader[Any]:
    """A process's share of all images, in their order, in full batches, as many as every other process has."""
    keys = [(index, 1 + index) for index in range(len(source))]
    keys += [(0, FILL)] * (-len(keys) % (batch_size * world.size))
    mine = keys[world.rank :: world.size]
    return DataLoader(
        Samples(source, transform, in_chans, training=False),
        batch_sampler=[mine[start : start + batch_size] for start in range(0, len(mine), batch_size)],
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        worker_init_fn=_worker_starts,
    )
