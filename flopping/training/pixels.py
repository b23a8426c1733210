"""Pictures of any kind, as networks take them: 8 bits per channel, grey or in colour."""

from __future__ import annotations

import numpy as np
from PIL import Image

SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
)
"""How the names of image files end, in small letters."""
MODES = {1: "L", 3: "RGB"}
"""Pillow's names of grey and of colour images, by their number of channels."""
_SIXTEEN_BITS = ("I;16", "I;16B", "I;16L", "I;16N", "I")
_NO_RANGE = ("F",)


def mode_of(in_chans: int) -> str:
    """Pillow's name of images with so many channels.

    >>> mode_of(2)
    Traceback (most recent call last):
    ...
    ValueError: images are grey (in_chans=1) or in colour (in_chans=3), got in_chans=2
    """
    if in_chans not in MODES:
        raise ValueError(f"images are grey (in_chans=1) or in colour (in_chans=3), got in_chans={in_chans}")
    return MODES[in_chans]


def as_pixels(image: Image.Image, mode: str) -> Image.Image:
    """An image in mode "L" or "RGB".

    Of 16 bits the upper 8 are kept, where Pillow would make white of all that is brighter than 255. Transparency is
    dropped, as timm does. Floating-point pixels, of which nobody knows what is white, are refused.

    >>> as_pixels(Image.fromarray(np.full((1, 1), 0x8040, np.uint16)), "L").getpixel((0, 0)) == 0x80
    True
    """
    if image.mode in _SIXTEEN_BITS:
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    elif image.mode in _NO_RANGE:
        raise ValueError(f"pixels of mode {image.mode} (floating point) have no range: save it with 8 or 16 bits")
    elif image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # Pillow warns of doing both at once
    return image if image.mode == mode else image.convert(mode)
