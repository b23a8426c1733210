"""Policies of augmentation run at every strength that they come to."""

import random

import numpy as np
import pytest
from PIL import Image
from timm.data import auto_augment
from torchvision.transforms import Compose

from flopping.training.augment import mended, posterize
from flopping.training.loader import Normalisation, training_transform
from flopping.training.recipe import load


@pytest.mark.parametrize("policy", ["rand-m10-n15", "rand-m10-n15-inc1", "v0", "original", "3a"])
def test_every_operation_at_full_strength(policy: str) -> None:
    recipe = load("resmlp_tiny").override([f"augment={policy}", "img_size=16"])
    transform = training_transform(recipe, Normalisation((0.5,) * 3, (0.5,) * 3), 0.5)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    random.seed(0)
    for _ in range(40):
        assert transform(image).shape == (3, 16, 16)


def test_posterize_is_that_of_timm_where_it_keeps_any_bit() -> None:
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    for bits in range(1, 9):
        assert posterize(image, bits).tobytes() == auto_augment.posterize(image, bits).tobytes()
    assert posterize(image, 0).tobytes() == bytes(256)


def test_only_posterize_is_replaced() -> None:
    recipe = load("resmlp_tiny")
    assert recipe.augment is not None
    (policy,) = mended(Compose([auto_augment.rand_augment_transform(recipe.augment, {})])).transforms
    replaced = [op.name for op in policy.ops if op.aug_fn is posterize]
    assert replaced == ["PosterizeIncreasing"]
