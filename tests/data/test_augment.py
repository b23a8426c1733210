"""Policies of augmentation run at every strength that they come to; thin images take little memory."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import auto_augment, create_transform

from flopping.data.augment import (
    Normalisation,
    RandomTranslation,
    create_eval_transform,
    create_training_transform,
    posterize,
)


@pytest.mark.parametrize("policy", ["rand-m10-n15", "rand-m10-n15-inc1", "v0", "3a"])
def test_every_operation_at_full_strength(policy: str) -> None:
    fields = {"img_size": 16, "crop_scale": 0.08, "flip": 0.5, "interpolation": "bicubic", "erase": 0.25}
    transform = create_training_transform(Normalisation((0.5,) * 3, (0.5,) * 3), augment=policy, **fields)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    random.seed(0)
    for _ in range(40):
        assert transform(image).shape == (3, 16, 16)  # type: ignore[union-attr]


def test_posterize_is_that_of_timm_where_it_keeps_any_bit() -> None:
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    for bits in range(1, 9):
        assert posterize(image, bits).tobytes() == auto_augment.posterize(image, bits).tobytes()
    assert posterize(image, 0).tobytes() == bytes(256)


@pytest.mark.parametrize("mode", ["center", "border", "squash"])
@pytest.mark.parametrize("size", [(1, 2000), (2000, 1), (3, 900), (1, 1)])
def test_thin_images_take_little_memory(size: tuple[int, int], mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle is cropped before the short edge is resized."""
    made: list[int] = []
    resize = Image.Image.resize

    def watched(image: Image.Image, wanted: tuple[int, int], *args: object, **more: object) -> Image.Image:
        made.append(wanted[0] * wanted[1])
        return resize(image, wanted, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "resize", watched)
    transformed = create_eval_transform((224, 224), 0.9, "bicubic", mode)(Image.new("RGB", size))
    assert isinstance(transformed, Image.Image)
    assert transformed.size == (224, 224)
    assert made
    assert max(made) < 5_000_000


def test_the_crop_of_a_thin_image_shows_the_same_middle() -> None:
    tall = Image.linear_gradient("L").resize((4, 512))
    long = Image.new("L", (4, 4096), 77)
    long.paste(tall, (0, (4096 - 512) // 2))
    short = long.crop((0, 2048 - 100, 4, 2048 + 100))
    transform = create_eval_transform((16, 16), 1.0, "bicubic")
    assert transform(long).tobytes() == transform(short).tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(7, 9, 3), (7, 9), (1, 1)])
def test_translations_fill_in_the_mirror_image(shape: tuple[int, ...]) -> None:
    """The same as a crop of an image that is padded by reflection."""
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    borders = [(2, 2), (2, 2), *[(0, 0)] * (len(shape) - 2)]
    padded = np.pad(values, borders, "reflect")
    for down in range(-2, 3):
        for right in range(-2, 3):
            moved = RandomTranslation.move(Image.fromarray(values), down, right)
            assert np.array_equal(moved, padded[2 - down :, 2 - right :][: shape[0], : shape[1]])


def test_images_of_the_right_size_need_no_crop() -> None:
    """Oracle: timm's own crop of everything."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    whole = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "interpolation": "bicubic"}
    crop = create_transform(8, is_training=True, **whole).transforms[0]
    assert crop(image).tobytes() == image.tobytes()
    fields = {"img_size": 8, "crop_scale": 1.0, "flip": 0.0, "interpolation": "bicubic"}
    transform = create_training_transform(Normalisation((0.5,) * 3, (0.5,) * 3), **fields)
    assert np.array_equal(np.asarray(transform(image)), np.asarray(image))
    assert transform(image.resize((9, 12))).size == (8, 8)  # type: ignore[union-attr]


def test_translated_images_are_erased() -> None:
    """The pixels of a translated image become a tensor, normalised, before noise takes their place."""
    image = Image.new("RGB", (8, 8), (255, 255, 255))
    fields = {"img_size": 8, "crop_scale": 1.0, "flip": 0.0, "interpolation": "bicubic", "translate": 2, "erase": 1.0}
    found = create_training_transform(Normalisation((0.5,) * 3, (0.5,) * 3), **fields)(image)
    assert isinstance(found, torch.Tensor)
    assert found.shape == (3, 8, 8)
    assert 0 < (found != 1).sum() < found.numel()


def test_training_images_are_translated_in_all_ways() -> None:
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    fields = {"img_size": 8, "crop_scale": 1.0, "flip": 0.0, "interpolation": "bicubic"}
    random.seed(0)
    for pixels, kinds in (0, 1), (1, 9), (2, 25):
        transform = create_training_transform(Normalisation((0.5,), (0.5,)), translate=pixels, **fields)
        assert len({transform(image).tobytes() for _ in range(500)}) == kinds  # type: ignore[union-attr]
