"""What timm's transforms need around them: where newer versions of Pillow refuse them, and where memory would end."""

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


class Shortened:
    """The middle of an image that is very long and thin; other images pass as they are.

    To resize the short edge of a 1 x 65000 image to 256 pixels, and then to crop the middle, would take 12 GB for what
    the crop throws away.

    >>> Shortened()(Image.new("L", (1, 65000))).size, Shortened()(Image.new("L", (40, 300))).size
    ((1, 64), (40, 300))
    """

    ratio = 64
    """More than any network's input has: what a crop keeps is still there."""

    def __call__(self, image: Image.Image) -> Image.Image:
        longest = self.ratio * min(image.size)
        if max(image.size) <= longest:
            return image
        left, top = (max(0, (edge - longest) // 2) for edge in image.size)
        return image.crop((left, top, image.width - left, image.height - top))
