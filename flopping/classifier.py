"""A network that is ready for images: from its name or its checkpoint, with its preprocessing and its classes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_model_data_config
from torch import Tensor, nn

from flopping import targets
from flopping.models.zoo import registered_name
from flopping.training.loader import Preparation, stacked
from flopping.training.pixels import as_pixels
from flopping.training.trained import opened, preparation_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Classifier:
    """A network in evaluation mode, and what surrounds it."""

    name: str
    """The registered name of its architecture, or what it was asked for as."""
    model: nn.Module
    labels: tuple[str, ...]
    """The names of its classes: "0", "1", ... where nobody has named them."""
    input_size: tuple[int, int, int]
    """Channels, height and width of an image."""
    preparation: Preparation
    """From images of any size to the network's input."""
    trained: bool
    """Whether it has learned anything. A network by name may have weights that only just began."""
    folder: Path | None = None
    """Where its checkpoint lies."""

    def prepare(self, images: list[Image.Image]) -> Tensor:
        """Pictures of any kind and size as the network's input `(B, C, H, W)`, as in a test."""
        preparation = self.preparation
        pixels = [preparation.transform(as_pixels(image, preparation.mode)) for image in images]
        return preparation.normalised(stacked(pixels))


def open_classifier(
    target: str, *, average: bool = False, img_size: int | None = None, device: torch.device = CPU
) -> Classifier:
    """A run, one of its checkpoints, a folder that timm's models save, a model's name, or `FILE.py:ATTRIBUTE`.

    A model by name has the weights that timm knows for it. Ours have none: they are made anew, from one seed. `average`
    takes the averaged weights (EMA) of a checkpoint. `img_size` is for models by name that take one size of images.

    >>> untrained = open_classifier("E(ViT-S)")
    >>> untrained.name, untrained.input_size, untrained.trained, untrained.labels[1]
    ('deit3_flop_small_patch16_224', (3, 224, 224), False, 'goldfish, Carassius auratus')
    """
    place = Path(target.removeprefix("local-dir:"))
    if place.exists() or target.startswith("local-dir:") or _is_path(target):
        if img_size is not None:
            raise ValueError(f"{str(place)!r} takes images of the size it was trained for: --img-size has no meaning")
        folder, model, config = opened(place, average=average)
        return _described(model, config["architecture"], device, config.get("label_names"), trained=True, folder=folder)
    if average:
        raise ValueError(f"--average takes the averaged weights of a checkpoint, and {target!r} is none")
    torch.manual_seed(0)
    if ":" in target:
        return _described(targets.load(target, img_size), target, device, trained=False, img_size=img_size)
    name = registered_name(target)
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        return _described(targets.load(name, img_size), name, device, trained=False, img_size=img_size)
    try:
        model = timm.create_model(name, pretrained=True)
    except Exception as error:  # each way to fetch a file has its own
        raise ValueError(
            f"the weights of {name!r} can't be had ({type(error).__name__}): connect to the network once, or name a"
            " checkpoint of yours"
        ) from error
    return _described(model, name, device, trained=True)


def _is_path(target: str) -> bool:
    """Whether something that doesn't exist was meant to be a folder, and no `FILE.py:ATTRIBUTE`."""
    return os.sep in target and ":" not in target


def _described(
    model: nn.Module,
    name: str,
    device: torch.device,
    labels: list[str] | None = None,
    *,
    trained: bool,
    folder: Path | None = None,
    img_size: int | None = None,
) -> Classifier:
    model = model.eval().to(device)
    size = resolve_model_data_config(model)["input_size"]
    size = size if img_size is None else (size[0], img_size, img_size)
    return Classifier(name, model, _labels(model, labels), size, preparation_of(model, device), trained, folder)


def _labels(model: nn.Module, names: list[str] | None) -> tuple[str, ...]:
    """As its checkpoint names them, or as ImageNet does for networks with its number of classes."""
    if names:
        return tuple(names)
    subset = infer_imagenet_subset(model)
    classes = int(getattr(model, "num_classes", 0))
    if subset is None:
        return tuple(str(number) for number in range(classes))
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(number) for number in range(classes))
