"""From one image to a network's input: timm's augmentation, resizing, normalisation."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, auto_augment, create_transform
from timm.data.transforms import MaybePILToTensor, MaybeToTensor
from torch import Tensor

from flopping.data.decode import mode_of
from flopping.groups import Group, trivial

_PILLOW = {
    "rot90": Image.Transpose.ROTATE_90,
    "rot180": Image.Transpose.ROTATE_180,
    "rot270": Image.Transpose.ROTATE_270,
    "flop": Image.Transpose.FLIP_LEFT_RIGHT,
    "flip": Image.Transpose.FLIP_TOP_BOTTOM,
    "transpose": Image.Transpose.TRANSPOSE,
    "antitranspose": Image.Transpose.TRANSVERSE,
}
"""Pillow's names of the symmetries."""
Transformed = Image.Image | npt.NDArray[np.uint8] | Tensor
Transform = Callable[[Image.Image], Transformed]


@dataclass(frozen=True)
class Normalisation:
    """The mean and the standard deviation of pixels, one value per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def for_channels(cls, mean: Sequence[float], std: Sequence[float], channels: int) -> Normalisation:
        """Values of other data; where that has another number of channels, every channel gets their mean."""
        if len(mean) == channels:
            return cls(tuple(mean), tuple(std))
        return cls((sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels)


def create_training_transform(
    normalisation: Normalisation,
    *,
    img_size: int,
    crop_scale: float,
    flip: float,
    interpolation: str,
    symmetry: Group = trivial,
    translate: int = 0,
    color_jitter: float | None = None,
    augment: str | None = None,
    erase: float = 0.0,
) -> Transform:
    """Augmentation by timm's transforms; arguments are those of a recipe. It gives an image, normalised with others.

    Random erasing fills in noise that an image of bytes can't hold. With it the transform gives normalised tensors,
    which costs a tenth more time and four times the bytes between processes.
    """
    transform = create_transform(
        img_size,
        is_training=True,
        scale=(crop_scale, 1.0),
        ratio=(3 / 4, 4 / 3) if crop_scale < 1 else (1.0, 1.0),
        hflip=flip,
        color_jitter=color_jitter,
        auto_augment=augment,
        interpolation=interpolation,
        mean=normalisation.mean,
        std=normalisation.std,
        re_prob=erase,
        re_mode="pixel",
        normalize=erase > 0,
    )
    steps = transform.transforms
    if crop_scale == 1:  # a crop of everything, resized to the size that it has, is the image
        steps[0] = UnlessOfSize(img_size, steps[0])
    if translate:
        place = next(i for i, step in enumerate(steps) if isinstance(step, (MaybePILToTensor, MaybeToTensor)))
        steps.insert(place, RandomTranslation(translate))
    if symmetry.order > 1:
        steps.insert(0, RandomSymmetry(symmetry))
    return _without_tensors(replace_posterize(transform))


def create_eval_transform(
    img_size: int | tuple[int, int],
    crop: float,
    interpolation: str,
    mode: str = "center",
    mean: tuple[float, ...] = IMAGENET_DEFAULT_MEAN,
) -> Transform:
    """Resize and crop the middle. A size is that of a square, or height and width.

    `mode` is timm's: "center" crops, "border" fills up with the mean colour, "squash" distorts.
    """
    transform = create_transform(
        img_size, crop_pct=crop, crop_mode=mode, mean=mean, interpolation=interpolation, normalize=False
    )
    if mode != "squash":
        transform.transforms.insert(0, crop_thin)
    return _without_tensors(transform)


def _without_tensors(transform: Any) -> Transform:
    """A transform without its last step, a tensor for each image: half of the time that a small image takes."""
    if isinstance(transform.transforms[-1], MaybePILToTensor):
        transform.transforms.pop()
    found: Transform = transform
    return found


class RandomSymmetry:
    """Move an image by a random element of a group, each with the same probability."""

    def __init__(self, group: Group) -> None:
        self.elements = group.elements

    def __call__(self, image: Image.Image) -> Image.Image:
        return move_image(image, random.choice(self.elements))


class UnlessOfSize:
    """Apply a transform, unless the image already is a square of this size.

    >>> crop = UnlessOfSize(2, lambda image: image.crop((0, 0, 2, 2)))
    >>> images = [Image.new("L", size) for size in ((2, 2), (4, 3))]
    >>> [crop(image).size for image in images], crop(images[0]) is images[0]
    ([(2, 2), (2, 2)], True)
    """

    def __init__(self, size: int, transform: Transform) -> None:
        self.size, self.transform = (size, size), transform

    def __call__(self, image: Image.Image) -> Transformed:
        return image if image.size == self.size else self.transform(image)


class RandomTranslation:
    """Move an image by up to so many pixels along each axis, filled by reflection padding. Gives its pixels.

    >>> image = Image.fromarray(np.arange(4, dtype=np.uint8).reshape(1, 4))
    >>> [RandomTranslation.move(image, 0, right).tolist() for right in (2, -1)]
    [[[2, 1, 0, 1]], [[1, 2, 3, 2]]]
    """

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels

    def __call__(self, image: Image.Image) -> npt.NDArray[np.uint8]:
        return self.move(image, *(random.randint(-self.pixels, self.pixels) for _ in range(2)))

    @staticmethod
    def move(image: Image.Image, down: int, right: int) -> npt.NDArray[np.uint8]:
        values = np.asarray(image)
        rows, columns = (_reflected(size, by) for size, by in zip(values.shape, (down, right), strict=False))
        moved: npt.NDArray[np.uint8] = values[rows[:, None], columns]
        return moved


@lru_cache(maxsize=1024)
def _reflected(size: int, by: int) -> Any:
    """Indices of reflection padding for an axis of this size that is moved by so many pixels."""
    places = np.abs(np.arange(size) - by)
    last = max(size - 1, 0)
    return np.clip(last - np.abs(last - places), 0, last)


def move_image(image: Image.Image, element: str) -> Image.Image:
    """An image moved by a symmetry of the square, as the symmetry moves a tensor.

    >>> from flopping.groups.symmetries import SYMMETRIES
    >>> image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    >>> moved = {name: torch.tensor(np.array(move_image(image, name))) for name in SYMMETRIES}
    >>> all(torch.equal(moved[name], move(torch.tensor(np.array(image)))) for name, move in SYMMETRIES.items())
    True
    """
    return image if element == "identity" else image.transpose(_PILLOW[element])


def posterize(image: Image.Image, bits: int, **more: Any) -> Image.Image:
    """An image with so many bits per channel; a black one for 0 bits, which Pillow refuses.

    >>> white = Image.new("L", (1, 1), 255)
    >>> posterize(white, 0).getpixel((0, 0)), posterize(white, 1).getpixel((0, 0))
    (0, 128)
    """
    return auto_augment.posterize(image, bits, **more) if bits else Image.new(image.mode, image.size)


def replace_posterize(transform: Any) -> Any:
    """The transform, with our `posterize`: at full strength timm's policies ask for 0 bits."""
    for step in transform.transforms:
        for ops in (getattr(step, "ops", []), *getattr(step, "policy", [])):
            for op in ops:
                if getattr(op, "aug_fn", None) is auto_augment.posterize:
                    op.aug_fn = posterize
    return transform


def crop_thin(image: Image.Image, ratio: int = 64) -> Image.Image:
    """The middle of an image that is longer than `ratio` times its width; other images stay as they are.

    To resize the short edge of a 1 x 65000 image to 256 pixels and then to crop the middle would take 12 GB. No
    network's input is as thin as the ratio, so the crop shows the same.

    >>> crop_thin(Image.new("L", (1, 65000))).size, crop_thin(Image.new("L", (40, 300))).size
    ((1, 64), (40, 300))
    """
    longest = ratio * min(image.size)
    if max(image.size) <= longest:
        return image
    left, top = (max(0, (edge - longest) // 2) for edge in image.size)
    return image.crop((left, top, image.width - left, image.height - top))


def stack_images(images: Sequence[Transformed]) -> Tensor:
    """Transformed images as `(B, C, H, W)`; those that are no tensors as bytes."""
    if isinstance(images[0], Tensor):
        return torch.stack([image for image in images if isinstance(image, Tensor)])
    pixels = np.stack([np.asarray(image) for image in images])
    return torch.from_numpy(pixels[:, None] if pixels.ndim == 3 else np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


class Preparation:
    """How images become a network's input: each is transformed in a worker, a batch is normalised on the device."""

    def __init__(
        self,
        transform: Transform,
        in_chans: int,
        normalisation: Normalisation,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.transform, self.mode, self.device, self.dtype = transform, mode_of(in_chans), device, dtype
        self.mean, self.std = (
            torch.tensor([255 * value for value in values], dtype=dtype, device=device)[:, None, None]
            for values in (normalisation.mean, normalisation.std)
        )

    def normalise(self, images: Tensor) -> Tensor:
        """Stacked images on the device, normalised unless they are already."""
        images = images.to(self.device, non_blocking=True)
        if images.dtype == torch.uint8:
            images = images.to(self.dtype).sub_(self.mean).div_(self.std)
        return images.to(self.dtype)
