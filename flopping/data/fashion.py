"""The subset of Fashion-MNIST in the package: grey images of clothes in ten classes."""

from __future__ import annotations

from importlib.resources import files
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from flopping.data.images import ArrayDataset

EMBEDDED = "fashion-mnist"
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
IMAGE = (28, 28)
Labelled = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images `(N, 28, 28)`, whose background is 0, and labels `(N,)`."""


def open_fashion_mnist(split: str) -> ArrayDataset:
    """The images of a split.

    >>> test = open_fashion_mnist("test")
    >>> len(test), test.read(0)[0].size, test.classes[test.read(0)[1]]
    (2000, (28, 28), 'Ankle boot')
    """
    images, labels = read_subset(split == "train")
    return ArrayDataset(f"{EMBEDDED}'s {split} images", images, labels, CLASSES)


def read_subset(train: bool) -> Labelled:
    """The subset in the package: 1,000 training or 200 test images of each class."""
    split = "train" if train else "test"
    with (files("flopping") / "data" / "fashion_mnist" / "subset.npz").open("rb") as file:
        arrays = np.load(cast(BinaryIO, file), allow_pickle=False)
        return arrays[f"{split}_images"], arrays[f"{split}_labels"]
