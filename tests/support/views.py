"""Small networks, an image, and views of it: for tests of `flopping show`."""

from __future__ import annotations

from functools import cache

import numpy as np
import timm
from PIL import Image
from torch import nn

from flopping.deploy.classifier import Classifier, open_classifier
from flopping.lab.show import View, capture_view
from flopping.models import VisionTransformer
from flopping.testing import randomize_

SMALL = "deit3_flop_test_patch16_64"
FAMILIES = [SMALL, "resmlp_flop_test_64", "convnext_flop_iso_test", "convnext_flop_test"]


def network(name: str, **args: object) -> nn.Module:
    """A small network with random weights everywhere: what is zero at first could hide a wrong sign."""
    return randomize_(timm.create_model(name, num_classes=7, **args)).eval()


def classifier(model: nn.Module, name: str = SMALL, trained: bool | None = False) -> Classifier:
    """A network for images of 64 x 64 in 7 classes."""
    return Classifier(name, model, tuple("abcdefg"), (3, 64, 64), open_classifier(SMALL).preparation, trained)


@cache
def photo() -> Image.Image:
    """Not symmetric in any way."""
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    pixels[20:60, 10:40] = (250, 120, 10)
    return Image.fromarray(pixels)


@cache
def equivariant() -> View:
    return capture_view(classifier(network(SMALL)), photo(), channels=3)


@cache
def ordinary() -> View:
    """Of a network of one's own, whose training is unknown."""
    model = VisionTransformer(64, 16, embed_dim=64, depth=4, num_heads=2, num_classes=7, group="trivial")
    return capture_view(classifier(randomize_(model).eval(), "mine.py:net", trained=None), photo(), channels=2)
