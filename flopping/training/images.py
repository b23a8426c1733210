"""Images with their classes: what every kind of data offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image


class Images(ABC):
    """Images of one split with their classes. Each has a number, by which a person can be told where it is."""

    name: str
    """What a person calls all of them."""
    classes: tuple[str, ...]
    note: str = ""
    """What a person should know about them before training."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def where(self, index: int) -> str:
        """What a person calls the image: its path, or its place in a data set."""


class Source(Images):
    """Images that can be had in any order."""

    @abstractmethod
    def open(self, index: int) -> tuple[Image.Image, int]:
        """An image, which may fail to be read, and its class."""


class Arrays(Source):
    """Images that are in memory."""

    def __init__(
        self,
        name: str,
        images: np.ndarray[Any, Any],
        labels: Sequence[int] | np.ndarray[Any, Any],
        classes: Sequence[str],
    ) -> None:
        self.name, self.images, self.labels, self.classes = name, images, labels, tuple(classes)

    def __len__(self) -> int:
        return len(self.images)

    def open(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), int(self.labels[index])

    def where(self, index: int) -> str:
        return f"image {index} of {self.name}"
