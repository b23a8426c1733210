"""Data sets by name: torchvision's, and those of Hugging Face's package `datasets`, as timm finds them."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import create_dataset

from flopping.training.folders import SPLITS, split_folder
from flopping.training.images import Source

TORCHVISION = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "kmnist": "KMNIST",
    "qmnist": "QMNIST",
    "fashion_mnist": "FashionMNIST",
    "places365": "Places365",
    "inaturalist": "INaturalist",
    "imagenet": "ImageNet",
    "image_folder": "ImageFolder",
}
"""The data sets of torchvision that timm knows, by timm's name."""


class Torchvision(Source):
    """A data set of torchvision."""

    def __init__(self, name: str, pairs: Any) -> None:
        self.name, self.pairs = name, pairs
        names = getattr(pairs, "classes", None) or pairs.all_categories
        self.classes = tuple(name if isinstance(name, str) else ", ".join(name) for name in names)
        self.files = getattr(pairs, "samples", None) or getattr(pairs, "imgs", None)

    def __len__(self) -> int:
        return len(self.pairs)

    def open(self, index: int) -> tuple[Image.Image, int]:
        image, label = self.pairs[index]
        return image, int(label)

    def where(self, index: int) -> str:
        return str(self.files[index][0]) if self.files else f"image {index} of {self.name}"


def from_torchvision(data: str, split: str, root: str | None) -> Torchvision:
    """A data set of torchvision that lies in `root`. Nothing is downloaded."""
    name = data.removeprefix("torch/").lower()
    if name not in TORCHVISION:
        near = get_close_matches(name, TORCHVISION, n=1)
        hint = f"did you mean torch/{near[0]}?" if near else f"there are {', '.join(TORCHVISION)}"
        raise ValueError(f"timm knows no data set {data!r} of torchvision; {hint}")
    if root is None:
        raise ValueError(f"--root says in which folder {data!r} lies")
    if name == "image_folder":
        place = str(split_folder(Path(root), split))
    elif Path(root).is_dir():
        place = root
    else:
        raise ValueError(f"there is no folder {root!r} with {data!r} in it: --root names one")
    try:
        pairs = create_dataset(
            f"torch/{name}", root=place, split="train" if split == "train" else "validation", search_split=False
        )
    except (RuntimeError, ValueError, OSError, ImportError) as error:
        made = f"torchvision.datasets.{TORCHVISION[name]}({root!r}, ...)"
        raise ValueError(
            f"no {data!r} in {root!r}: {_line(error)}. {made} puts it there, or says what it needs"
        ) from error
    return Torchvision(f"{data}'s {split} images in {root!r}", pairs)


class Hub(Source):
    """A data set of Hugging Face: read by timm's reader, which leaves images as they were packed."""

    def __init__(self, name: str, reader: Any) -> None:
        self.name, self.reader = name, reader
        self.classes = tuple(reader.dataset.features[reader.label_key].names)

    def __len__(self) -> int:
        return len(self.reader)

    def open(self, index: int) -> tuple[Image.Image, int]:
        file, label = self.reader[index]
        with file, Image.open(file) as image:
            image.load()
        return image, int(label)

    def where(self, index: int) -> str:
        path = self.reader.filename(index, absolute=True)
        return f"image {index} of {self.name}" + (f" ({path})" if path else "")


def from_hub(data: str, split: str, root: str | None) -> Hub:
    """A data set of Hugging Face by its name there or its folder, kept in `root`, or where that package keeps all."""
    need("datasets", data)
    import datasets
    from timm.data.readers.reader_hfds import ReaderHfds

    path = data.removeprefix("hfds/")
    # timm's create_dataset writes names in small letters, which a folder may not have
    try:
        found = datasets.load_dataset(path, cache_dir=root)
        name = next((name for name in SPLITS[split] if name in found), None)
        if name is None:
            raise ValueError(f"it has no split {' or '.join(SPLITS[split])}, only {', '.join(found)}")
        image = _column(found[name], datasets.Image, "image")
        label = _column(found[name], datasets.ClassLabel, "label")
        reader = ReaderHfds(path, root, name, input_key=image, target_key=label)
    except (RuntimeError, ValueError, OSError, ImportError) as error:
        where = "" if root is None else f" in {root!r}"
        raise ValueError(f"data set {data!r}{where}: {_line(error)}") from error
    if min(found[name].unique(label)) < 0:
        raise ValueError(
            f"split {name!r} of {data!r} has images without a class, labelled -1: there is nothing to test"
        )
    return Hub(f"{data}'s split {name!r}", reader)


def _column(rows: Any, kind: type, usual: str) -> str:
    """The name of the column that has images or classes."""
    found = [name for name, feature in rows.features.items() if isinstance(feature, kind)]
    if usual in found or len(found) == 1:
        return usual if usual in found else found[0]
    have = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in rows.features.items())
    raise ValueError(
        f"one column is of type {kind.__name__}, or the one called {usual!r} of several, but there are {have}:"
        f" cast it by the data set's cast_column or class_encode_column"
    )


def need(package: str, data: str) -> None:
    """Refuse a kind of data whose package is not there."""
    if find_spec(package) is None:
        raise ValueError(f"{data!r} is read by the package {package}: pip install 'flopping[data]'")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
