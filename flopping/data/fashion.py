"""Fashion-MNIST: grey images of clothes in ten classes, a subset in the package or all of it from a folder."""

from __future__ import annotations

import gzip
import zlib
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from flopping.data.images import ArrayDataset
from flopping.errors import UsageError

EMBEDDED = "fashion-mnist"
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
IMAGE = (28, 28)
DEBIAN = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package `dataset-fashion-mnist` puts the files."""
MOST_IMAGES = 1_000_000
"""More are refused before memory is allocated for them."""
Labelled = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Images `(N, 28, 28)`, whose background is 0, and labels `(N,)`."""


def open_fashion_mnist(split: str, root: str | None = None) -> ArrayDataset:
    """The subset in the package, or all images from a folder.

    >>> test = open_fashion_mnist("test")
    >>> len(test), test.read(0)[0].size, test.classes[test.read(0)[1]]
    (2000, (28, 28), 'Ankle boot')
    """
    train = split == "train"
    images, labels = read_subset(train) if root is None else read_folder(root, train)
    return ArrayDataset(f"{EMBEDDED}'s {split} images", images, labels, CLASSES)


def read_subset(train: bool) -> Labelled:
    """The subset in the package: 1,000 training or 200 test images of each class."""
    split = "train" if train else "test"
    with (files("flopping") / "data" / "fashion_mnist" / "subset.npz").open("rb") as file:
        arrays = np.load(cast(BinaryIO, file), allow_pickle=False)
        return arrays[f"{split}_images"], arrays[f"{split}_labels"]


def read_folder(folder: str | Path, train: bool) -> Labelled:
    """All 60,000 training or 10,000 test images, or as many as the files have.

    The folder is the `root` of torchvision's `FashionMNIST`, the folder `raw` in it, or that of Debian's package
    `dataset-fashion-mnist`. Files are read as they are or as .gz.
    """
    folder, names = Path(folder), file_names(train)
    for place in (folder, folder / "raw", folder / "FashionMNIST" / "raw"):
        images, labels = (
            next((file for file in (place / name, place / f"{name}.gz") if file.is_file()), None) for name in names
        )
        if images and labels:
            pair = read_idx(images, IMAGE), read_idx(labels)
            if len(pair[0]) != len(pair[1]):
                raise UsageError(
                    f"{str(images)!r} has {len(pair[0])} images, and {labels.name!r} {len(pair[1])} labels"
                )
            if pair[1].max() >= len(CLASSES):
                raise UsageError(f"{str(labels)!r} has the label {pair[1].max()}; labels are 0 to {len(CLASSES) - 1}")
            return pair
    raise UsageError(
        f"no Fashion-MNIST in {str(folder)!r}: {names[0]} and {names[1]}, both as they are or as .gz, are expected in"
        f" the folder or in FashionMNIST/raw inside it. torchvision.datasets.FashionMNIST({str(folder)!r},"
        f" download=True) puts them there; Debian's package dataset-fashion-mnist has them in {DEBIAN}"
    )


def file_names(train: bool) -> tuple[str, str]:
    """The standard names of the files of images and of labels.

    >>> file_names(train=False)
    ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
    """
    part = "train" if train else "t10k"
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def read_idx(path: Path, item: tuple[int, ...] = ()) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file, which may be compressed by gzip: some items of the given shape.

    Such a file is 00 00 08 and the number of dimensions, the dimensions as four bytes each, highest first, and the
    bytes. torchvision's reader unpacks a damaged file whole before it checks any of that.
    """
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file = gzip.GzipFile(fileobj=raw) if is_packed else raw
            ndim = 1 + len(item)
            magic, header = file.read(4), file.read(4 * ndim)
            if magic != bytes((0, 0, 8, ndim)) or len(header) < 4 * ndim:
                raise ValueError(
                    f"it begins with {(magic + header).hex(' ') or 'nothing'}, not with 00 00 08 {ndim:02x}"
                )
            sizes = np.frombuffer(header, dtype=">u4").tolist()
            if sizes[1:] != list(item) or not 1 <= sizes[0] <= MOST_IMAGES:
                raise ValueError(f"its size is {sizes}, not {[f'1 to {MOST_IMAGES}', *item]}")
            length = int(np.prod(sizes))
            content = file.read(length + 1)  # at the end of compressed data this also compares its checksum
            if len(content) != length:
                held = "more" if len(content) > length else len(content)
                raise ValueError(f"it announces {length} bytes and holds {held}")
            return np.frombuffer(content, dtype=np.uint8).reshape(sizes).copy()
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise UsageError(f"{str(path)!r} is corrupted or no idx file: {error}") from error
