"""Fashion-MNIST: grey images of clothes in ten classes, a subset in the package or all of it from a folder."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from dataclasses import dataclass
from importlib.resources import as_file, files
from io import BufferedIOBase
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flopping.whole import whole

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SIDE = 28
DEBIAN = "/usr/share/datasets/fashion-mnist"
"""Where Debian's package `dataset-fashion-mnist` puts the files."""

_BYTE = 0x08
_OTHER_TYPES = {0x09: "int8", 0x0B: "int16", 0x0C: "int32", 0x0D: "float32", 0x0E: "float64"}
_MOST_DIMENSIONS = 8
_MOST_BYTES = 2**30
_GZIP = b"\x1f\x8b"
_DEFLATE = 1032
"""A compressed byte becomes at most so many: deflate's longest copy is 258 bytes, and takes at least two bits."""
_PIECE = 2**20


@dataclass(frozen=True, eq=False)
class FashionMnist:
    """Images and their classes, in the order of their files.

    >>> data = embedded(train=False)
    >>> data.images.shape, data.classes[data.labels[0]]
    ((2000, 28, 28), 'Ankle boot')
    """

    images: NDArray[np.uint8]
    """(N, 28, 28); the background is 0."""
    labels: NDArray[np.int64]
    """(N,), each the position of a name in `classes`."""
    classes: ClassVar[tuple[str, ...]] = CLASSES

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
            raise ValueError(f"images are N x {SIDE} x {SIDE} of uint8, got {_times(images.shape)} of {images.dtype}")
        if labels.ndim == 1 and len(labels) != len(images):
            raise ValueError(f"each image has one label, got {len(images)} images and {len(labels)} labels")
        if labels.dtype != np.int64 or labels.ndim != 1:
            raise ValueError(f"labels are N of int64, got {_times(labels.shape)} of {labels.dtype}")
        if not len(images):
            raise ValueError("there is at least one image, got none")
        strange = np.flatnonzero((labels < 0) | (labels >= len(CLASSES)))
        if len(strange):
            raise ValueError(f"labels are 0 to {len(CLASSES) - 1}, got {labels[strange[0]]} for image {strange[0]}")

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, per_class: int) -> FashionMnist:
        """The first so many images of each class, in the order they have here.

        >>> embedded(train=True).first(3).labels.tolist()[:8]
        [9, 0, 0, 3, 0, 2, 7, 2]
        """
        counts = np.bincount(self.labels, minlength=len(CLASSES))
        rarest = int(counts.argmin())
        if not 1 <= per_class <= counts[rarest]:
            raise ValueError(
                f"per_class is 1 to {counts[rarest]}, the number of images of {CLASSES[rarest]!r}, got {per_class}"
            )
        of_classes = [np.flatnonzero(self.labels == label)[:per_class] for label in range(len(CLASSES))]
        kept = np.sort(np.concatenate(of_classes))
        return FashionMnist(self.images[kept], self.labels[kept])


def embedded(train: bool) -> FashionMnist:
    """The subset in the package: 1,000 training or 200 test images of each class."""
    folder = files("flopping") / "data" / "fashion_mnist"
    images, labels = (folder / f"{name}.gz" for name in file_names(train))
    with as_file(images) as images_path, as_file(labels) as labels_path:
        return _read_pair(images_path, labels_path)


def from_folder(folder: str | Path, train: bool) -> FashionMnist:
    """All 60,000 training or 10,000 test images, or as many as the files have.

    The folder is the `root` of torchvision's `FashionMNIST`, the folder `raw` in it, or that of Debian's package
    `dataset-fashion-mnist`. Files are taken as they are or as .gz.
    """
    folder, (images, labels) = Path(folder), file_names(train)
    why = "it has neither file" if folder.is_dir() else "there is no such folder"
    for place in (folder, folder / "raw", folder / "FashionMNIST" / "raw"):
        images_path, labels_path = _as_it_is_or_packed(place / images), _as_it_is_or_packed(place / labels)
        if images_path and labels_path:
            return _read_pair(images_path, labels_path)
        if images_path or labels_path:
            why = f"{str(place)!r} lacks {labels if images_path else images}"
    raise ValueError(
        f"no Fashion-MNIST in {str(folder)!r}: {why}. Expected are {images} and {labels}, both as they are or as .gz,"
        " in the folder or in FashionMNIST/raw inside it."
        f" torchvision.datasets.FashionMNIST({str(folder)!r}, download=True) puts them there;"
        f" Debian's package dataset-fashion-mnist has them in {DEBIAN}"
    )


def file_names(train: bool) -> tuple[str, str]:
    """The standard names of the files of images and of labels.

    >>> file_names(train=False)
    ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
    """
    part = "train" if train else "t10k"
    return f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"


def _as_it_is_or_packed(path: Path) -> Path | None:
    """torchvision leaves both; the one that needs no unpacking is read."""
    return next((file for file in (path, path.with_name(f"{path.name}.gz")) if file.is_file()), None)


def _read_pair(images: Path, labels: Path) -> FashionMnist:
    pixels = read_idx(images)
    numbers: NDArray[Any] = read_idx(labels)
    if numbers.shape == pixels.shape[:1]:  # no memory is taken for more labels than there are images
        numbers = numbers.astype(np.int64)
    try:
        return FashionMnist(pixels, numbers)
    except ValueError as error:
        raise ValueError(f"{str(images)!r} and {labels.name!r} are no Fashion-MNIST: {error}") from error


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file, which may be compressed by gzip.

    Such a file is 00 00 08 and the number of dimensions, the dimensions as four bytes each, highest first, and the
    numbers. What a file announces is checked before memory is taken for it, and it has to hold neither less nor more.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {str(path)!r}")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.peek(2)[:2] != _GZIP:
                return _read_array(file, size)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read_array(unpacked, size * _DEFLATE)
    except EOFError as error:
        raise ValueError(f"{str(path)!r} is cut off: its compressed data goes on after its {size} bytes") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{str(path)!r} is damaged: its compressed data can't be unpacked ({error})") from error
    except ValueError as error:
        raise ValueError(f"{str(path)!r} {error}") from error


def _read_array(file: BufferedIOBase, most: int) -> NDArray[np.uint8]:
    """The array of a file that can hold so many bytes at most. Errors are sentences that lack the file's name."""
    shape = _read_shape(file)
    header = 4 + 4 * len(shape)
    announced, size = f"announces {_times(shape)} bytes", math.prod(shape)
    # an empty array too has to be one that numpy can make
    if math.prod(max(n, 1) for n in shape) > _MOST_BYTES:
        raise ValueError(f"{announced}; at most {_MOST_BYTES} are read")
    if header + size > most:
        raise ValueError(f"{announced}, {size} in all, and can't hold more than {max(most - header, 0)}")
    array = np.empty(shape, dtype=np.uint8)
    content, got = array.reshape(-1).data, 0
    while got < size and (read := file.readinto(content[got : got + _PIECE])):
        got += read
    if got < size:
        raise ValueError(f"{announced}, {size} in all, and holds {got}")
    if file.read(1):  # at the end of compressed data this also compares its checksum
        raise ValueError(f"{announced}, {size} in all, and holds more")
    return array


def _read_shape(file: BufferedIOBase) -> tuple[int, ...]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        start = "begins with" if len(magic) == 4 else "ends after"
        start = f"{start} the bytes {magic.hex(' ')}" if magic else "is empty"
        raise ValueError(f"{start}; an idx file begins with 00 00 08 and the number of dimensions")
    kind, dimensions = magic[2:]
    if kind != _BYTE:
        name = f" ({_OTHER_TYPES[kind]})" if kind in _OTHER_TYPES else ""
        raise ValueError(f"holds numbers of type {kind:02x}{name}; only unsigned bytes, type {_BYTE:02x}, are read")
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        raise ValueError(f"has {dimensions} dimensions; 1 to {_MOST_DIMENSIONS} are read")
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise ValueError(
            f"ends within its header, which for {dimensions} dimensions has {4 + 4 * dimensions} bytes,"
            f" after {4 + len(sizes)}"
        )
    return tuple(int(n) for n in np.frombuffer(sizes, dtype=">u4"))


def write_idx(path: str | Path, array: NDArray[np.uint8]) -> None:
    """The file that `read_idx` reads; compressed if its name ends with .gz, and then without time or name inside.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_idx(Path(folder, "a.gz"), np.eye(2, dtype=np.uint8))
    ...     read_idx(Path(folder, "a.gz")).tolist()
    [[1, 0], [0, 1]]
    """
    path = Path(path)
    if array.dtype != np.uint8:
        raise ValueError(f"an idx file of ours has unsigned bytes (uint8), got {array.dtype}")
    if not 1 <= array.ndim <= _MOST_DIMENSIONS:
        raise ValueError(f"an idx file of ours has 1 to {_MOST_DIMENSIONS} dimensions, got {array.ndim}")
    if math.prod(max(n, 1) for n in array.shape) > _MOST_BYTES:
        raise ValueError(f"an idx file of ours has at most {_MOST_BYTES} bytes, got {_times(array.shape)}")
    content = bytes((0, 0, _BYTE, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()
    with whole(path) as place, place.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as packed:
                packed.write(content)
        else:
            file.write(content)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
