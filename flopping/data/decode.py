"""Image files as pixels: 8 bits per channel, grey or in colour."""

from __future__ import annotations

import os
from functools import cache
from typing import BinaryIO

import numpy as np
from PIL import Image

from flopping.errors import UsageError

FORMATS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "BMP": (".bmp",),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k"),
    "PPM": (".ppm", ".pgm"),
}
"""Formats that are decoded, by Pillow's names, and the suffixes of their files in lower case; no others are."""
SUFFIXES = frozenset(suffix for suffixes in FORMATS.values() for suffix in suffixes)
MODES = {1: "L", 3: "RGB"}
"""Pillow's names of grey and of colour images, by their number of channels."""
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")


def is_image_name(path: str) -> bool:
    """Whether the suffix of a file is that of an image."""
    return os.path.splitext(path)[1].lower() in SUFFIXES


def decode_image(file: str | BinaryIO) -> Image.Image:
    """All pixels of an image file. A damaged file raises any kind of error."""
    with open_image(file) as image:
        image.load()
    return image


def open_image(file: str | BinaryIO) -> Image.Image:
    """An image of which only the header is read; the content decides on the format, which is one of `FORMATS`.

    Pillow starts other programs for some other formats, and some others match any file.
    """
    return Image.open(file, formats=_available_formats())


@cache
def _available_formats() -> tuple[str, ...]:
    """Those of `FORMATS` that this Pillow was built with."""
    Image.init()
    return tuple(kind for kind in FORMATS if kind in Image.OPEN)


def mode_of(in_chans: int) -> str:
    """Pillow's name of images with so many channels.

    >>> mode_of(2)
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: images are grey (in_chans=1) or in colour (in_chans=3), got in_chans=2
    """
    if in_chans not in MODES:
        raise UsageError(f"images are grey (in_chans=1) or in colour (in_chans=3), got in_chans={in_chans}")
    return MODES[in_chans]


def convert_image(image: Image.Image, mode: str) -> Image.Image:
    """An image in mode "L" or "RGB".

    Of 16 bits the upper 8 are kept; Pillow would clip at 255. Transparency is dropped, as timm does. Floating-point
    pixels are refused, because their white level is unknown.

    >>> convert_image(Image.fromarray(np.full((1, 1), 0x8040, np.uint16)), "L").getpixel((0, 0)) == 0x80
    True
    """
    if image.mode in _SIXTEEN_BITS:
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise UsageError("pixels of mode F (floating point) have no range: save the image with 8 or 16 bits")
    elif image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # Pillow warns about a direct conversion
    return image if image.mode == mode else image.convert(mode)
