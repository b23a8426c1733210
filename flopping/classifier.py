"""A network that is ready for images: from its name or its checkpoint, with its preprocessing and its classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_model_data_config
from torch import Tensor, nn

from flopping import targets
from flopping.models.zoo import registered_name
from flopping.training.loader import Preparation, Transformed, stacked
from flopping.training.pixels import as_pixels
from flopping.training.trained import opened, preparation_of

CPU = torch.device("cpu")
SEED = 0
"""What the weights of networks that nobody has trained start from."""


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
    trained: bool | None
    """False for a network by name whose weights only just began; None for your own code, of which nobody knows."""
    folder: Path | None = None
    """Where its checkpoint lies."""

    @property
    def device(self) -> torch.device:
        return self.preparation.device

    def fitted(self, image: Image.Image) -> Transformed:
        """A picture of any kind and size, as large as the network takes it, as in a test."""
        return self.preparation.transform(as_pixels(image, self.preparation.mode))

    def batch(self, images: Sequence[Transformed]) -> Tensor:
        """Fitted pictures as the network's input `(B, C, H, W)`, on its device."""
        return self.preparation.normalised(stacked(images))

    def prepare(self, images: Sequence[Image.Image]) -> Tensor:
        """Pictures of any kind and size as the network's input `(B, C, H, W)`, as in a test."""
        return self.batch([self.fitted(image) for image in images])


def open_classifier(
    target: str, *, average: bool = False, img_size: int | None = None, device: torch.device = CPU
) -> Classifier:
    """A run, one of its checkpoints, a folder that timm's models save, a model's name, or `FILE.py:ATTRIBUTE`.

    A model by name has the weights that timm knows for it. Ours have none: they are made anew, from one seed. `average`
    takes the averaged weights (EMA) of a checkpoint. `img_size` is another size of images, for what is no checkpoint.

    >>> untrained = open_classifier("deit3_flop_test_patch16_64")
    >>> untrained.name, untrained.input_size, untrained.trained, untrained.labels[1]
    ('deit3_flop_test_patch16_64', (3, 64, 64), False, 'goldfish, Carassius auratus')
    """
    place = Path(target.removeprefix("local-dir:"))
    if target.endswith(".py"):
        raise ValueError(targets.which_attribute(target))
    if place.exists() or target.startswith("local-dir:") or _is_path(target):
        if img_size is not None:
            raise ValueError(f"{str(place)!r} takes images of the size it was trained for: --img-size has no meaning")
        folder, model, config = opened(place, average=average)
        return _described(model, config["architecture"], device, config.get("label_names"), trained=True, folder=folder)
    if average:
        raise ValueError(f"--average takes the averaged weights of a checkpoint, and {target!r} is none")
    if ":" in target:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(SEED)
            model = targets.load(target)
        return _tried(model, target, img_size, device)
    try:
        name = registered_name(target)
    except ValueError as error:
        raise ValueError(f"{error}; and there is no folder of this name") from error
    model, trained = _by_name(name, img_size)
    return _described(model, name, device, trained=trained, img_size=img_size)


def _by_name(name: str, img_size: int | None) -> tuple[nn.Module, bool]:
    """A registered model, with the weights that timm knows for it or with new ones, and whether it is trained."""
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or not cfg.has_weights:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(SEED)
            return targets.load(name, img_size), False
    size = {"img_size": img_size} if img_size is not None and cfg.fixed_input_size else {}
    try:
        return timm.create_model(name, pretrained=True, **size), True
    except Exception as error:  # each way to fetch a file has its own
        raise ValueError(
            f"the weights of {name!r} can't be had ({type(error).__name__}): connect to the network once, or name a"
            " checkpoint of yours"
        ) from error


def _tried(model: nn.Module, target: str, img_size: int | None, device: torch.device) -> Classifier:
    """A network of the user's own, which need not say what it takes and gives: it is run once."""
    x = targets.example_input(model.eval(), img_size, torch.float32, batch=1)
    if not isinstance(x, Tensor):
        raise ValueError(f"{target!r} takes features, not images")
    try:
        with torch.inference_mode():
            y = model(x)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        size, reason = " x ".join(map(str, x.shape[1:])), " ".join(str(error).split())
        raise ValueError(f"{target!r} refuses an image of {size} (--img-size names another size): {reason}") from error
    if not isinstance(y, Tensor) or y.ndim != 2 or not y.shape[1]:
        what = f"a tensor of {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise ValueError(f"{target!r} is no classifier: for one image it gives {what}, and not (1, classes)")
    own = getattr(model, "num_classes", None) == y.shape[1]  # it knows its classes, as timm's models do
    labels = None if own else [str(number) for number in range(y.shape[1])]
    chans, height, width = x.shape[1:]
    return _described(model, target, device, labels, trained=None, input_size=(chans, height, width))


def _is_path(target: str) -> bool:
    """Whether something that doesn't exist was meant to be a folder, and no `FILE.py:ATTRIBUTE`."""
    return os.sep in target and ":" not in target


def _described(
    model: nn.Module,
    name: str,
    device: torch.device,
    labels: object = None,
    *,
    trained: bool | None,
    folder: Path | None = None,
    img_size: int | None = None,
    input_size: tuple[int, int, int] | None = None,
) -> Classifier:
    size = input_size or resolve_model_data_config(model)["input_size"]
    if img_size is not None:
        size = (size[0], img_size, img_size)
    names = _labels(model, name, labels)
    model = model.eval().to(device)
    return Classifier(name, model, names, tuple(size), preparation_of(model, device, size), trained, folder)


def _labels(model: nn.Module, name: str, given: object) -> tuple[str, ...]:
    """As its checkpoint names them, or as ImageNet does for networks with its number of classes."""
    classes = int(getattr(model, "num_classes", 0) or 0)
    if given:
        names = tuple(map(str, given)) if isinstance(given, (list, tuple)) else ()
        if not names or classes not in (0, len(names)):
            raise ValueError(f"{name!r} has {classes} classes, and label_names in its config.json has {len(names)}")
        return names
    if not classes:
        raise ValueError(f"{name!r} is no classifier: it has no classes, only features")
    subset = infer_imagenet_subset(model)
    if subset is None:
        return tuple(str(number) for number in range(classes))
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(number) for number in range(classes))
