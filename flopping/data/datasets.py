"""Datasets by name: a folder, torchvision's, Hugging Face's, shards, or the subset in the package."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import create_dataset

from flopping.data.decode import decode_image
from flopping.data.fashion import EMBEDDED, open_fashion_mnist
from flopping.data.folders import SPLITS, FolderDataset, find_split
from flopping.data.images import ImageDataset
from flopping.data.shards import open_shards
from flopping.errors import UsageError, shorten

_MNIST = ("mnist", "kmnist", "qmnist", "fashion_mnist")
TORCHVISION = ("cifar10", "cifar100", *_MNIST, "places365", "inaturalist", "imagenet", "image_folder")
"""timm's names of torchvision's datasets."""
_FAILURES = RuntimeError, ValueError, OSError, ImportError
"""What opening a dataset of torchvision or Hugging Face raises."""


def open_dataset(data: str, split: str, root: str | None = None) -> ImageDataset:
    """The images of a split ("train", "validation" or "test") of a dataset.

    `data` is a folder with a folder for each split, in it one for each class; "fashion-mnist" for the subset in the
    package; or a name as timm has them, "torch/cifar10", "hfds/NAME" or "wds/NAME", with its `root`.
    """
    kind = f"{data.partition('/')[0]}/"
    if data == EMBEDDED:
        if root is not None:
            raise UsageError(f"{data} is the subset in the package: torch/fashion_mnist reads all of it in {root!r}")
        return open_fashion_mnist(split)
    if data.startswith(tuple(NAMED)):
        dataset = NAMED[kind](data, split, root)
    elif root is not None:
        raise UsageError(f"--root goes with a dataset by name, and {data!r} is a folder")
    else:
        dataset = FolderDataset(find_split(Path(data), split), cache=split == "train")
    if len(dataset.classes) < 2:
        raise UsageError(
            f"{dataset.name} has one class only, {dataset.classes[0]!r}: there is nothing to learn."
            " Every class has a folder or a label of its own"
        )
    return dataset


def is_named(data: str) -> bool:
    """Whether data is a dataset by name, and no folder.

    >>> is_named("fashion-mnist"), is_named("torch/cifar10"), is_named("photos/")
    (True, True, False)
    """
    return data == EMBEDDED or data.startswith(tuple(NAMED))


def require_same_classes(train: ImageDataset, test: ImageDataset, data: str) -> None:
    """Refuse data whose test images have other classes than the training images."""
    if train.classes == test.classes:
        return
    missing = [name for name in train.classes if name not in test.classes]
    more = [name for name in test.classes if name not in train.classes]
    raise UsageError(
        f"classes of {data!r} differ: {len(train.classes)} for training, {len(test.classes)} for testing"
        + (f"; without test images: {shorten(missing, 5)}" if missing else "")
        + (f"; without training images: {shorten(more, 5)}" if more else "")
        + ("" if missing or more else "; their order differs")
        + ". Give both splits the same classes"
    )


class TorchvisionDataset(ImageDataset):
    def __init__(self, name: str, pairs: Any) -> None:
        self.name, self.pairs = name, pairs
        names = getattr(pairs, "classes", None) or pairs.all_categories
        self.classes = tuple(name if isinstance(name, str) else ", ".join(name) for name in names)
        self.files = getattr(pairs, "samples", None) or getattr(pairs, "imgs", None)

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, index: int) -> tuple[Image.Image, int]:
        image, label = self.pairs[index]
        return image, int(label)

    def portable_names(self) -> list[str]:
        return [type(self.pairs).__name__]

    def locate(self, index: int) -> str:
        return str(self.files[index][0]) if self.files else super().locate(index)


def open_torchvision(data: str, split: str, root: str | None) -> TorchvisionDataset:
    """A dataset of torchvision in the folder `root`. Nothing is downloaded."""
    name = data.removeprefix("torch/").lower()
    if name not in TORCHVISION:
        raise UsageError(f"timm knows no dataset {data!r} of torchvision; there are {', '.join(TORCHVISION)}")
    if root is None:
        raise UsageError(f"--root says in which folder {data!r} lies")
    if not Path(root).is_dir():
        raise UsageError(f"there is no folder {root!r} with {data!r} in it: --root names one")
    place = str(find_split(Path(root), split)) if name == "image_folder" else root
    try:
        pairs = create_dataset(
            f"torch/{name}", root=place, split="train" if split == "train" else "validation", search_split=False
        )
    except _FAILURES as error:
        raise UsageError(
            f"no {data!r} in {root!r}: {_to_line(error)}. Its class in torchvision.datasets puts it there"
        ) from error
    return TorchvisionDataset(f"{data}'s {split} images in {root!r}", pairs)


class HubDataset(ImageDataset):
    def __init__(self, name: str, rows: Any, image: str, label: str) -> None:
        self.name, self.rows, self.image, self.label = name, rows, image, label
        self.classes = tuple(rows.features[label].names)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> tuple[Image.Image, int]:
        row = self.rows[index]
        image = row[self.image]
        file = image["path"] if image["bytes"] is None else io.BytesIO(image["bytes"])
        return decode_image(file), int(row[self.label])

    def portable_names(self) -> list[str]:
        return [str(self.rows.info.dataset_name)]

    def locate(self, index: int) -> str:
        path = self.rows[index][self.image]["path"]
        return super().locate(index) + (f" ({path})" if path else "")


def open_hub(data: str, split: str, root: str | None) -> HubDataset:
    """A dataset of Hugging Face by its name or its folder, kept in `root` or in the cache of the package `datasets`."""
    if data == "hfds/":
        raise UsageError("'hfds/' names no dataset: write hfds/NAME, or hfds/FOLDER")
    try:
        import datasets
    except ImportError as error:
        raise UsageError(f"{data!r} is read by the package datasets: pip install 'flopping[data]'") from error
    try:
        splits = datasets.load_dataset(data.removeprefix("hfds/"), cache_dir=root)
        names = [name for name in SPLITS[split] if name in splits]
        if not names:
            raise ValueError(f"it has no split {' or '.join(SPLITS[split])}, only {', '.join(splits)}")
        label = _find_column(splits[names[0]], datasets.ClassLabel, "label")
        name = next((name for name in names if min(splits[name].unique(label)) >= 0), None)  # -1 is no class
        if name is None:
            raise ValueError(f"split {names[0]!r} has images without a class, labelled -1: name another dataset")
        image = _find_column(splits[name], datasets.Image, "image")
        rows = splits[name].cast_column(image, datasets.Image(decode=False))
    except _FAILURES as error:
        place = "" if root is None else f" in {root!r}"
        raise UsageError(f"dataset {data!r}{place}: {_to_line(error)}") from error
    return HubDataset(f"{data}'s split {name!r}", rows, image, label)


def _find_column(rows: Any, kind: type, usual: str) -> str:
    """The name of the column with images or with labels."""
    found = [name for name, feature in rows.features.items() if isinstance(feature, kind)]
    if usual in found or len(found) == 1:
        return usual if usual in found else found[0]
    columns = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in rows.features.items())
    raise ValueError(
        f"one column is of type {kind.__name__}, or the one called {usual!r} of several, but there are {columns}:"
        " cast it by the dataset's cast_column or class_encode_column"
    )


def _to_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


NAMED: dict[str, Callable[[str, str, str | None], ImageDataset]] = {
    "torch/": open_torchvision,
    "hfds/": open_hub,
    "wds/": open_shards,
}
"""How names of datasets begin, as timm has it, and what opens them by name, split and root."""
