"""Where images come from: folders, torchvision, Hugging Face datasets, WebDataset, and what the package brings.

A source gives image and class by index and says where an image lies, so that one that can't be read has a name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from timm.data import create_dataset

from flopping.training import fashion

SPLITS = {"train": ("train", "training"), "test": ("val", "validation", "test", "eval")}
"""Names of the folders in which the images for training and for testing lie."""
PREFIXES = ("torch/", "hfds/", "hfids/", "wds/", "tfds/")
STREAMS = ("hfids/", "wds/", "tfds/")
EMBEDDED = "fashion-mnist"
_HIDDEN = (".", "_")


class Source(ABC):
    """Images with their classes, by index."""

    classes: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def open(self, index: int) -> tuple[Image.Image, int]:
        """An image, which may fail to be read, and its class."""

    @abstractmethod
    def where(self, index: int) -> str:
        """What a person calls the image: its path, or its place in a data set."""


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


class Files(Source):
    """Images that a reader of timm finds: in folders, or in a Hugging Face data set."""

    def __init__(self, reader: Any, classes: Sequence[str]) -> None:
        self.reader, self.classes = reader, tuple(classes)

    def __len__(self) -> int:
        return len(self.reader)

    def open(self, index: int) -> tuple[Image.Image, int]:
        file, label = self.reader[index][:2]
        with file if hasattr(file, "close") else Image.open(file) as opened:
            image = opened if isinstance(opened, Image.Image) else Image.open(opened)
            image.load()
        return image, int(label)

    def where(self, index: int) -> str:
        return str(self.reader.filename(index, absolute=True))


class Pairs(Source):
    """A data set of torchvision: pairs of image and class."""

    def __init__(self, name: str, pairs: Any, classes: Sequence[str]) -> None:
        self.name, self.pairs, self.classes = name, pairs, tuple(classes)

    def __len__(self) -> int:
        return len(self.pairs)

    def open(self, index: int) -> tuple[Image.Image, int]:
        image, label = self.pairs[index]
        return image, int(label)

    def where(self, index: int) -> str:
        return f"image {index} of {self.name}"


def open_source(data: str, split: str, root: str | None = None, download: bool = False) -> Source:
    """The images of a split ("train" or "test") of a data set.

    `data` is a folder with a folder for each split, in it one for each class; "fashion-mnist" for the subset in the
    package, or with `root` for all of it; or a name that timm knows, as "torch/cifar10" or "hfds/NAME", with its
    `root`.
    """
    if data == EMBEDDED:
        train = split == "train"
        found = fashion.embedded(train) if root is None else fashion.from_folder(root, train)
        return Arrays(f"{data}'s {split} images", found.images, found.labels, found.classes)
    if data.startswith(PREFIXES):
        return _named(data, split, root, download)
    if root is not None:
        raise ValueError(f"--root goes with a data set by name, and {data!r} is a folder")
    return _folder(Path(data), split)


def _folder(root: Path, split: str) -> Files:
    if root.is_file():
        raise ValueError(
            f"{str(root)!r} is a file: --data is a folder with train/ and val/ in it, one folder per class"
        )
    if not root.is_dir():
        raise ValueError(
            f"no folder {str(root)!r}: --data is a folder with train/ and val/ in it, one folder per class"
        )
    folder = next((root / name for name in SPLITS[split] if (root / name).is_dir()), None)
    if folder is None:
        raise ValueError(
            f"{str(root)!r} has no folder {' or '.join(name + '/' for name in SPLITS[split])} for {split} images"
        )
    try:
        reader = create_dataset("", root=str(folder), search_split=False).reader
    except RuntimeError as error:
        raise ValueError(f"no images in the folders of {str(folder)!r}: {error}") from error
    images = {Path(path).relative_to(folder).parts[0] for path, _ in reader.samples}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name not in images and not entry.name.startswith(_HIDDEN):
            other = next((f"; {path.name} is none" for path in entry.iterdir()), "")
            raise ValueError(f"class folder {str(entry)!r} holds no image{other}: add some, or remove the folder")
    if any(Path(path).parent == folder for path, _ in reader.samples):
        stray = next(path for path, _ in reader.samples if Path(path).parent == folder)
        raise ValueError(f"{stray!r} lies in no class folder: move it into {str(folder)!r}/CLASS/")
    classes = sorted(reader.class_to_idx, key=reader.class_to_idx.__getitem__)
    if len(classes) < 2:
        raise ValueError(
            f"{str(folder)!r} has one class only, {classes[0]!r}: there is nothing to learn. Every class has a folder"
        )
    return Files(reader, classes)


def _named(data: str, split: str, root: str | None, download: bool) -> Source:
    if data.startswith(STREAMS):
        raise ValueError(f"{data!r} is a stream of images, which has no order to resume in: see Stream")
    names = {"train": "train", "test": "validation" if data.startswith("torch/") else "test"}
    try:
        found = create_dataset(data, root=root, split=names[split], search_split=False, download=download)
    except (AssertionError, RuntimeError, ValueError, OSError, ImportError) as error:
        raise ValueError(f"data set {data!r} in {root!r}: {' '.join(str(error).split())}") from error
    if data.startswith("torch/"):
        labels = getattr(found, "classes", None) or sorted(set(map(int, found.targets)))
        return Pairs(f"{data}'s {split} images", found, [str(label) for label in labels])
    labels = found.reader.dataset.features[found.reader.label_key].names
    return Files(found.reader, labels)


def require_same_classes(train: Source, test: Source, data: str) -> None:
    """Refuse data whose test images have other classes than the training images."""
    if train.classes != test.classes:
        missing = [name for name in train.classes if name not in test.classes]
        more = [name for name in test.classes if name not in train.classes]
        raise ValueError(
            f"classes of {data!r} differ: {len(train.classes)} for training, {len(test.classes)} for testing"
            + (f"; without test images: {', '.join(missing[:5])}" if missing else "")
            + (f"; without training images: {', '.join(more[:5])}" if more else "")
        )
