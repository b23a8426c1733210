"""How images become the input of a network: by the recipe in its run, by its own config elsewhere."""

from __future__ import annotations

import torch
from timm.data import resolve_model_data_config
from torch import nn

from flopping import nn as fnn
from flopping.data.augment import (
    Normalisation,
    Preparation,
    Transform,
    create_eval_transform,
    create_training_transform,
)
from flopping.data.batches import read_sample
from flopping.data.images import ImageDataset
from flopping.errors import UsageError
from flopping.groups import flop, get_group, trivial
from flopping.training.networks import ignores
from flopping.training.recipe import Recipe

WHITENING_IMAGES = 1000
"""The number of training images that decide the filters of a whitened stem."""


class Preprocessing:
    """The preprocessing of a run. Random moves of images that change nothing for the network are left out."""

    def __init__(self, recipe: Recipe, model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.recipe, self.device, self.dtype = recipe, device, dtype
        self.flip = 0.0 if ignores(model, flop) else recipe.flip
        moving = get_group(recipe.symmetry or trivial)
        self.symmetry = trivial if ignores(model, moving) else moving
        cfg = resolve_model_data_config(model)
        mean, std = recipe.mean or cfg["mean"], recipe.std or cfg["std"]
        self.normalisation = Normalisation.for_channels(mean, std, recipe.in_chans)

    def for_training(self) -> Preparation:
        """With all that is random."""
        fields = ("img_size", "crop_scale", "translate", "color_jitter", "augment", "interpolation", "erase")
        chosen = {name: getattr(self.recipe, name) for name in fields}
        return self._preparation(
            create_training_transform(self.normalisation, flip=self.flip, symmetry=self.symmetry, **chosen)
        )

    def for_testing(self) -> Preparation:
        """Images are resized, and their middle is cropped."""
        return self._preparation(
            create_eval_transform(self.recipe.img_size, self.recipe.test_crop, self.recipe.interpolation)
        )

    def _preparation(self, transform: Transform) -> Preparation:
        return Preparation(transform, self.recipe.in_chans, self.normalisation, self.device, self.dtype)

    def describe_left_out(self) -> list[str]:
        """A sentence for each random move of the recipe that is left out."""
        left_out: list[str] = []
        mixed = " before they are mixed" if self.recipe.mixes else ""
        if self.recipe.flip and not self.flip:
            left_out.append(
                "Mirroring an image changes neither loss nor gradients of this network, so images are not mirrored at"
                f" random{mixed}."
            )
        if self.recipe.symmetry and self.symmetry == trivial:
            left_out.append(
                f"No element of {self.recipe.symmetry} changes loss or gradients of this network, so images are not"
                f" moved at random{mixed}."
            )
        return left_out


def whiten_stem(model: nn.Module, recipe: Recipe, train: ImageDataset) -> None:
    """Set the filters of a network's first convolution to whiten patches of training images."""
    first = next((layer for layer in model.modules() if isinstance(layer, fnn.Conv2d) and layer.in_chans), None)
    if first is None:
        raise UsageError(
            "whiten_stem=true takes a network whose first layer is a flopping.nn.Conv2d, such as ResNet, got"
            f" {type(model).__name__}: leave it out"
        )
    preparation = Preprocessing(recipe, model, torch.device("cpu"), torch.float32).for_testing()
    first.whiten_(read_sample(train, preparation, WHITENING_IMAGES))


def preparation_of(
    model: nn.Module, device: torch.device, input_size: tuple[int, int, int] | None = None
) -> Preparation:
    """How a network wants its images in a test, as its own config says; `input_size` if that doesn't know it."""
    cfg = resolve_model_data_config(model)
    chans, height, width = input_size or cfg["input_size"]
    normalisation = normalisation_of(model, chans)
    size, crop, interpolation = (height, width), cfg["crop_pct"], cfg["interpolation"]
    transform = create_eval_transform(size, crop, interpolation, cfg["crop_mode"], normalisation.mean)
    return Preparation(transform, chans, normalisation, device, torch.float32)


def normalisation_of(model: nn.Module, chans: int) -> Normalisation:
    """What a network's pixels are shifted and scaled by, as its own config says, for so many channels."""
    cfg = resolve_model_data_config(model)
    return Normalisation.for_channels(cfg["mean"], cfg["std"], chans)
