"""The image to show: a file, or one of those in the package."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from flopping.photos import Photo, UnreadableError, pillow_is_quiet, read_photo
from flopping.training.sources import EMBEDDED, fashion_mnist


def open_picture(name: str) -> Image.Image:
    """An image from a file, upright as its camera says, or "fashion-mnist:NUMBER": a test image in the package.

    >>> open_picture("fashion-mnist:0").size
    (28, 28)
    """
    if (number := _number(name)) is not None:
        source = fashion_mnist("test")
        if number >= len(source):
            raise ValueError(f"{EMBEDDED} has the test images 0 to {len(source) - 1}, got {name!r}")
        return source.open(number)[0]
    path = Path(name)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "doesn't exist"
        raise ValueError(f"{name!r} {problem}: name an image file, or {EMBEDDED}:NUMBER for one in the package")
    try:
        with pillow_is_quiet():
            return read_photo(Photo(name))
    except UnreadableError as error:
        raise ValueError(f"{name!r} can't be shown: {error}") from error


def stem(name: str) -> str:
    """How files that are made of an image begin.

    >>> stem("photos/butterfly.jpg"), stem("fashion-mnist:12")
    ('butterfly', 'fashion-mnist-12')
    """
    number = _number(name)
    return Path(name).stem if number is None else f"{EMBEDDED}-{number}"


def _number(name: str) -> int | None:
    found = re.fullmatch(rf"{EMBEDDED}:(\d+)", name)
    return None if found is None else int(found[1])
