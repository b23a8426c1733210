"""Datasets of labelled images: what every kind of them offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray
from PIL import Image

from flopping.errors import UsageError


class ImageDataset(ABC):
    """The images of one split with their classes. Every image has a number."""

    name: str
    """The dataset in messages."""
    classes: tuple[str, ...]
    note: str = ""
    """A warning about the dataset, shown before training."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def locate(self, index: int) -> str:
        """The image in messages: its path, or its place in the dataset."""

    def portable_names(self) -> Iterable[str]:
        """Names that identify the images wherever they lie: those of files, or that of the dataset."""
        return [self.name]


class IndexedDataset(ImageDataset):
    """Images that can be read in any order."""

    @abstractmethod
    def read(self, index: int) -> tuple[Image.Image, int]:
        """An image and its class. A damaged image raises any kind of error."""


class ArrayDataset(IndexedDataset):
    """Images in memory."""

    def __init__(
        self, name: str, images: NDArray[Any], labels: Sequence[int] | NDArray[Any], classes: Sequence[str]
    ) -> None:
        self.name, self.images, self.labels, self.classes = name, images, labels, tuple(classes)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), int(self.labels[index])

    def locate(self, index: int) -> str:
        return f"image {index} of {self.name}"


def require_package(package: str, data: str) -> None:
    """Refuse a kind of dataset whose package is not installed."""
    if find_spec(package) is None:
        raise UsageError(f"{data!r} is read by the package {package}: pip install 'flopping[data]'")
