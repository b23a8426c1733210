"""Images in folders: one folder for each split, in it one for each class; or any folder, without classes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from flopping.training.images import Source
from flopping.training.pixels import SUFFIXES

SPLITS = {"train": ("train", "training"), "test": ("val", "valid", "validation", "test", "eval")}
"""Names of the folders in which the images for training and for testing lie; the first that is there is taken."""
LAYOUT = "--data is a folder with train/ and val/ in it, and in each of them one folder per class"


class Folder(Source):
    """The images of a split.

    A class is a folder in the split's folder. All images in it and below are of that class, whatever its own folders
    are called. Links are followed. What begins with a dot is hidden, and files that are no images by their suffix are
    left out.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)
        names = sorted((path.name for path in folder.iterdir() if _is_class(path)), key=natural)
        self.paths: list[str] = []
        self.labels: list[int] = []
        others: list[str] = []
        for label, name in enumerate(names):
            files = sorted(files_below(folder / name), key=natural)
            images = [path for path in files if is_image_name(path)]
            others += [path for path in files if not is_image_name(path)]
            if not images:
                file = next((f"; {path!r} is none by its suffix" for path in files), "")
                raise ValueError(
                    f"class folder {str(folder / name)!r} holds no image{file}: add some, or remove the folder"
                )
            self.paths += images
            self.labels += [label] * len(images)
        self._check_loose(names)
        self.classes = tuple(names)
        self.note = _note(others, folder)

    def _check_loose(self, names: list[str]) -> None:
        """Refuse images that have no class."""
        for path in sorted(self.folder.iterdir()):
            if is_image_name(path.name) and not path.name.startswith(".") and path.is_file():
                raise ValueError(f"{str(path)!r} lies in no class folder: move it to {str(self.folder)!r}/CLASS/")
        if not names:
            raise ValueError(f"{str(self.folder)!r} has no class folders: {LAYOUT}")

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, index: int) -> tuple[Image.Image, int]:
        return _loaded(self.paths[index]), self.labels[index]

    def where(self, index: int) -> str:
        return self.paths[index]


class Loose(Source):
    """All images in a folder and below, whatever their classes: hidden ones and links as for `Folder`."""

    def __init__(self, folder: Path) -> None:
        _require_folder(folder, "images are read from a folder, and from those in it")
        self.name, self.classes = str(folder), ("image",)
        files = sorted(files_below(folder), key=natural)
        self.paths = [path for path in files if is_image_name(path)]
        if not self.paths:
            raise ValueError(f"{str(folder)!r} holds no image, nor do the folders in it")
        self.note = _note([path for path in files if not is_image_name(path)], folder)

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, index: int) -> tuple[Image.Image, int]:
        return _loaded(self.paths[index]), 0

    def where(self, index: int) -> str:
        return self.paths[index]


def split_folder(root: Path, split: str) -> Path:
    """The folder of a split in a folder of images."""
    _require_folder(root, LAYOUT)
    found = next((root / name for name in SPLITS[split] if (root / name).is_dir()), None)
    if found is None:
        there = sorted(f"{path.name}/" for path in root.iterdir() if path.is_dir())
        raise ValueError(
            f"{str(root)!r} has no folder {', '.join(name + '/' for name in SPLITS[split][:-1])} or"
            f" {SPLITS[split][-1]}/ for the {split} images, only {', '.join(there[:5]) or 'files'}: {LAYOUT}"
        )
    return found


def natural(name: str) -> tuple[list[str | int], str]:
    """What names are sorted by: numbers in them count as numbers, as timm sorts classes.

    >>> sorted(["b10", "b9", "B1", "a"], key=natural)
    ['a', 'B1', 'b9', 'b10']
    """
    parts = re.split(r"(\d+)", name.lower())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def _require_folder(folder: Path, needed: str) -> None:
    if not folder.is_dir():
        problem = f"{str(folder)!r} is a file" if folder.exists() else f"there is no folder {str(folder)!r}"
        raise ValueError(f"{problem}: {needed}")


def _loaded(path: str) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    return image


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".") and path.name != "__MACOSX"


def is_image_name(path: str) -> bool:
    """Whether a file is an image by its suffix."""
    return os.path.splitext(path)[1].lower() in SUFFIXES


def files_below(folder: Path, failed: Callable[[OSError], object] | None = None) -> Iterator[str]:
    """Files in a folder and below, each once: links that lead around in a circle, or up to other classes, end there.

    `failed` is told of folders that can't be read.
    """
    start = os.path.realpath(folder)
    seen = set()
    for place, folders, files in os.walk(folder, onerror=failed, followlinks=True):
        real = os.path.realpath(place)
        if real in seen or (place != str(folder) and os.path.commonpath([real, start]) == real):
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(place, name) for name in files if not name.startswith("."))


def _note(others: list[str], folder: Path) -> str:
    if not others:
        return ""
    shown = ", ".join(repr(path) for path in others[:3]) + (", ..." if len(others) > 3 else "")
    return f"{len(others)} files in {str(folder)!r} are no images by their suffix and are left out: {shown}"
