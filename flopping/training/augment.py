"""timm's augmentation where newer versions of Pillow refuse it."""

from __future__ import annotations

from typing import Any

from PIL import Image
from timm.data import auto_augment


def posterize(image: Image.Image, bits: int, **more: Any) -> Image.Image:
    """An image with so many bits per channel; with none of them it is black.

    >>> white = Image.new("L", (1, 1), 255)
    >>> posterize(white, 0).getpixel((0, 0)), posterize(white, 1).getpixel((0, 0))
    (0, 128)
    """
    return auto_augment.posterize(image, bits, **more) if bits else Image.new(image.mode, image.size)


def mended(transform: Any) -> Any:
    """The transform, with our `posterize`.

    At full strength, which a recipe's `rand-m9-mstd0.5` comes to once in a while, policies keep no bit at all. Pillow
    gave a black image for that, and gives an error now.
    """
    for step in transform.transforms:
        for ops in (getattr(step, "ops", []), *getattr(step, "policy", [])):
            for op in ops:
                if getattr(op, "aug_fn", None) is auto_augment.posterize:
                    op.aug_fn = posterize
    return transform
