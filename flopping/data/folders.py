"""Images in folders: one folder for each split, in it one for each class; or any folder, without classes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from PIL import Image

from flopping.data.decode import decode_image, is_image_name
from flopping.data.images import ImageDataset
from flopping.errors import UsageError

_VALIDATION, _TEST = ("val", "valid", "validation"), ("test", "eval")
SPLITS = {
    "train": ("train", "training"),
    "validation": (*_VALIDATION, *_TEST),
    "test": (*_TEST, *_VALIDATION),
}
"""Names of the folders with the images of each split; the first that exists is taken.

Training chooses the best checkpoint on the validation split. `eval` tests on another split, if there is one.
"""
LAYOUT = "--data is a folder with train/ and val/ in it, and in each of them one folder per class"


LARGEST_CACHED = 64 * 64
"""Pixels of the largest training images that stay in memory once they are decoded."""
CACHED_PIXELS = 2**26
"""Pixels of training images that stay in memory, in each process that reads them: at most 256 MB."""


class FolderDataset(ImageDataset):
    """The images of a split.

    A class is a folder in the split's folder. All images in it and below are of that class. Links are followed. Hidden
    files, and files without the suffix of an image, are left out. With `cache`, for images that are read in every
    epoch, a process decodes small ones once and keeps up to `CACHED_PIXELS` of their pixels.
    """

    def __init__(self, folder: Path, cache: bool = False) -> None:
        self.folder, self.name = folder, str(folder)
        self.cached: dict[int, Image.Image] = {}
        self.cache_left = CACHED_PIXELS if cache else 0
        self.paths: list[str] = []
        self.labels: list[int] = []
        names = sorted((path.name for path in folder.iterdir() if _is_class(path)), key=natural_key)
        others: list[str] = []
        for label, name in enumerate(names):
            images, no_images = find_images(folder / name, _refuse_unreadable)
            others += no_images
            if not images:
                file = f"; {no_images[0]!r} is none by its suffix" if no_images else ""
                raise UsageError(
                    f"class folder {str(folder / name)!r} holds no image{file}: add some, or remove the folder"
                )
            self.paths += images
            self.labels += [label] * len(images)
        for path in sorted(folder.iterdir()):
            if is_image_name(path.name) and not path.name.startswith(".") and path.is_file():
                raise UsageError(f"{str(path)!r} lies in no class folder: move it to {str(folder)!r}/CLASS/")
        if not names:
            raise UsageError(f"{str(folder)!r} has no class folders: {LAYOUT}")
        self.classes, self.note = tuple(names), _warn_about(others, folder)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> tuple[Image.Image, int]:
        image = self.cached.get(index)
        if image is None:
            image = decode_image(self.paths[index])
            pixels = image.width * image.height
            if pixels <= min(LARGEST_CACHED, self.cache_left):
                self.cache_left -= pixels
                self.cached[index] = image.copy()  # without what the decoder holds
        return image, self.labels[index]

    def locate(self, index: int) -> str:
        return self.paths[index]

    def portable_names(self) -> Iterable[str]:
        start = len(str(self.folder)) + 1
        return (path[start:] for path in self.paths)


class UnlabelledFolder(FolderDataset):
    """All images in a folder and below, as one class."""

    def __init__(self, folder: Path) -> None:
        require_folder(folder, "images are read from a folder, and from those in it")
        self.folder, self.name, self.classes = folder, str(folder), ("image",)
        self.cached, self.cache_left = {}, 0  # each image is read once
        self.paths, others = find_images(folder, _refuse_unreadable)
        if not self.paths:
            raise UsageError(f"{str(folder)!r} holds no image, nor do the folders in it")
        self.labels, self.note = [0] * len(self.paths), _warn_about(others, folder)


def find_split(root: Path, split: str) -> Path:
    """The folder of a split in a folder of images."""
    require_folder(root, LAYOUT)
    found = next((root / name for name in SPLITS[split] if (root / name).is_dir()), None)
    if found is None:
        there = sorted(f"{path.name}/" for path in root.iterdir() if path.is_dir())
        *names, last = (f"{name}/" for name in SPLITS[split])
        raise UsageError(
            f"{str(root)!r} has no folder {', '.join(names)} or {last} for the {split} images, only"
            f" {', '.join(there[:5]) or 'files'}: {LAYOUT}"
        )
    return found


def require_folder(folder: Path, needed: str) -> None:
    if not folder.is_dir():
        problem = f"{str(folder)!r} is a file" if folder.exists() else f"there is no folder {str(folder)!r}"
        raise UsageError(f"{problem}: {needed}")


def natural_key(name: str) -> tuple[list[str | int], str]:
    """The key that names are sorted by: digits count as numbers, as timm sorts classes.

    >>> sorted(["b10", "b9", "B1", "a"], key=natural_key)
    ['a', 'B1', 'b9', 'b10']
    """
    parts = re.split(r"(\d+)", name.lower())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def find_images(folder: Path, on_error: Callable[[OSError], object]) -> tuple[list[str], list[str]]:
    """Images in a folder and below, and other files, both sorted.

    `on_error` is told of folders that can't be read.
    """
    files = sorted(_walk(str(folder), os.path.realpath(folder), set(), on_error), key=natural_key)
    return [path for path in files if is_image_name(path)], [path for path in files if not is_image_name(path)]


def _walk(folder: str, start: str, seen: set[str], on_error: Callable[[OSError], object]) -> Iterator[str]:
    """Visible files, each once: links that lead in a circle, or up to other classes, are not followed.

    Pipes and devices, which could be waited for without end, are left out. A link that leads nowhere is a file.
    """
    real = os.path.realpath(folder)
    if real in seen or (seen and os.path.commonpath([real, start]) == real):
        return
    seen.add(real)
    try:
        with os.scandir(folder) as found:
            entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda each: each.name)
    except OSError as error:
        on_error(error)
        return
    for entry in entries:
        if _holds(entry.is_dir):
            yield from _walk(entry.path, start, seen, on_error)
        elif _holds(entry.is_file) or not os.path.exists(entry.path):
            yield entry.path


def _holds(question: Callable[[], bool]) -> bool:
    """The answer about an entry of a folder; no for a link that leads to itself, or without permission."""
    with suppress(OSError):
        return question()
    return False


def _refuse_unreadable(error: OSError) -> NoReturn:
    """Training without the images of a folder that can't be read would go unnoticed."""
    raise UsageError(f"the images in {error.filename!r} can't be read: {error.strerror}") from error


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".") and path.name != "__MACOSX"


def _warn_about(others: list[str], folder: Path) -> str:
    if not others:
        return ""
    shown = ", ".join(map(repr, others[:3])) + (", ..." if len(others) > 3 else "")
    return f"{len(others)} files in {str(folder)!r} are no images by their suffix and are left out: {shown}"
