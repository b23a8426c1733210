"""Datasets of labelled images: what every kind of them offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray
from PIL import Image


class ImageDataset(ABC):
    """The images of one split with their classes. Every image has a number, and can be read in any order."""

    name: str
    """The dataset in messages."""
    classes: tuple[str, ...]
    note: str = ""
    """A warning about the dataset, shown before training."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> tuple[Image.Image, int]:
        """An image and its class. A damaged image raises any kind of error."""

    def locate(self, index: int) -> str:
        """The image in messages: its path, or its place in the dataset."""
        return f"image {index} of {self.name}"

    def portable_names(self) -> Iterable[str]:
        """Names that identify the images wherever they lie: those of files, or that of the dataset."""
        return [self.name]


class ArrayDataset(ImageDataset):
    def __init__(
        self, name: str, images: NDArray[Any], labels: Sequence[int] | NDArray[Any], classes: Sequence[str]
    ) -> None:
        self.name, self.images, self.labels, self.classes = name, images, labels, tuple(classes)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), int(self.labels[index])
