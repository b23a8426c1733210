"""The images of a probe: some of a data set, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from flopping.data.augment import Preparation
from flopping.data.datasets import is_named, open_dataset
from flopping.data.folders import SPLITS, UnlabelledFolder
from flopping.data.images import ImageDataset, IndexedDataset
from flopping.data.loader import create_evaluation_loader
from flopping.errors import UsageError


class Subset(IndexedDataset):
    """Some images of a data set, in an order of their own."""

    def __init__(self, source: IndexedDataset, indices: Sequence[int]) -> None:
        self.source, self.indices = source, indices
        self.name, self.classes, self.note = source.name, source.classes, source.note

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> tuple[Image.Image, int]:
        return self.source.read(self.indices[index])

    def locate(self, index: int) -> str:
        return self.source.locate(self.indices[index])


def open_images(data: str, root: str | None, number: int, seed: int) -> ImageDataset:
    """At most `number` images, chosen at random; of shards, the first ones.

    `data` is the name of a data set, of which the test images are taken; or a folder: the images in its folder of test
    images (val/), or if there is none, all images in it and below. Classes don't matter.
    """
    if is_named(data):
        images = open_dataset(data, "test", root)
    elif root is not None:
        raise UsageError(f"--root goes with a data set by name, and {data!r} is a folder")
    else:
        folder = Path(data)
        images = UnlabelledFolder(next((folder / name for name in SPLITS["test"] if (folder / name).is_dir()), folder))
    if not isinstance(images, IndexedDataset):
        return images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return Subset(images, order[:number].tolist())


class ImageBatches:
    """Batches `(B, C, H, W)` of images, as a network takes them; those that can't be read are left out and listed."""

    def __init__(self, images: ImageDataset, preparation: Preparation, batch: int, workers: int) -> None:
        self.images, self.preparation, self.batch, self.workers = images, preparation, batch, workers
        self._unreadable: set[int] = set()

    def __iter__(self) -> Iterator[Tensor]:
        for batch in create_evaluation_loader(self.images, self.preparation, self.batch, self.workers):
            self._unreadable.update(batch.unreadable)
            readable = (batch.labels >= 0).to(batch.images.device)
            if readable.any():
                yield batch.images[readable]

    @property
    def unreadable(self) -> list[str]:
        return [self.images.locate(index) for index in sorted(self._unreadable)]
