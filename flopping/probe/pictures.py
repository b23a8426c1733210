"""Which images a probe looks at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from flopping.training.feeds import eval_batches
from flopping.training.folders import SPLITS, Loose
from flopping.training.images import Images, Source
from flopping.training.loader import Preparation
from flopping.training.processes import World
from flopping.training.sources import EMBEDDED, NAMED, OTHERS, open_source


class Chosen(Source):
    """Some images of a source, in an order of their own."""

    def __init__(self, source: Source, indices: Sequence[int]) -> None:
        self.source, self.indices = source, indices
        self.name, self.classes, self.note = source.name, source.classes, source.note

    def __len__(self) -> int:
        return len(self.indices)

    def open(self, index: int) -> tuple[Image.Image, int]:
        return self.source.open(self.indices[index])

    def where(self, index: int) -> str:
        return self.source.where(self.indices[index])


def open_images(data: str, root: str | None, number: int, seed: int) -> Images:
    """So many images at random, or all if there are fewer; of shards, the first ones.

    `data` is a data set that training knows by name, of which the test images are taken; or a folder: the images in
    its val/ (or however the folder of test images is called), or if there is none, all images in it and below. Classes
    don't matter.
    """
    if data == EMBEDDED or data.startswith((*NAMED, *OTHERS)):
        images = open_source(data, "test", root)
    elif root is not None:
        raise ValueError(f"--root goes with a data set by name, and {data!r} is a folder")
    else:
        folder = Path(data)
        images = Loose(next((folder / name for name in SPLITS["test"] if (folder / name).is_dir()), folder))
    if not isinstance(images, Source):
        return images
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return Chosen(images, order[:number].tolist())


class Pictures:
    """Batches `(B, C, H, W)` of images, as a network takes them; those that can't be read are left out and listed."""

    def __init__(self, images: Images, preparation: Preparation, batch: int, workers: int) -> None:
        self.images, self.preparation, self.batch, self.workers = images, preparation, batch, workers
        self._unreadable: set[int] = set()

    def __iter__(self) -> Iterator[Tensor]:
        here = World(self.preparation.device)
        for batch in eval_batches(self.images, self.preparation, self.batch, self.workers, here):
            self._unreadable.update(batch.unreadable)
            readable = (batch.labels >= 0).to(batch.images.device)
            if readable.any():
                yield batch.images[readable]

    @property
    def unreadable(self) -> list[str]:
        return [self.images.where(index) for index in sorted(self._unreadable)]
