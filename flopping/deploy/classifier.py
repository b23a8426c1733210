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

from flopping.data.augment import Preparation, Transformed, stack_images
from flopping.data.decode import convert_image
from flopping.errors import UsageError
from flopping.models import targets
from flopping.models.zoo import registered_name
from flopping.training.networks import open_checkpoint, preparation_of

CPU = torch.device("cpu")
SEED = 0
"""The seed of random weights."""


@dataclass(frozen=True)
class Classifier:
    """A network in evaluation mode, its classes and its preprocessing."""

    name: str
    """The registered name of its architecture, or the `FILE.py:ATTRIBUTE` it was opened by."""
    model: nn.Module
    labels: tuple[str, ...]
    """The names of its classes: "0", "1", ... where they have no names."""
    input_size: tuple[int, int, int]
    """Channels, height and width of an image."""
    preparation: Preparation
    """From images of any size to the network's input."""
    trained: bool | None
    """False for random weights; None for your own code, because it is unknown."""
    folder: Path | None = None
    """The folder of its checkpoint."""

    @property
    def device(self) -> torch.device:
        return self.preparation.device

    def fit(self, image: Image.Image) -> Transformed:
        """Convert, resize and crop an image of any kind and size, as in a test."""
        return self.preparation.transform(convert_image(image, self.preparation.mode))

    def batch(self, images: Sequence[Transformed]) -> Tensor:
        """Fitted images as the network's input `(B, C, H, W)`, on its device."""
        return self.preparation.normalise(stack_images(images))

    def prepare(self, images: Sequence[Image.Image]) -> Tensor:
        """Images of any kind and size as the network's input `(B, C, H, W)`, as in a test."""
        return self.batch([self.fit(image) for image in images])


def open_classifier(
    target: str, *, average: bool = False, img_size: int | None = None, device: torch.device = CPU
) -> Classifier:
    """A run, one of its checkpoints, a folder that timm's models save, a model's name, or `FILE.py:ATTRIBUTE`.

    A model by name has the weights that timm knows for it. Ours have none: their weights are random, from one seed.
    `average` takes the averaged weights (EMA) of a checkpoint. `img_size` is another size of images; checkpoints
    refuse it.

    >>> untrained = open_classifier("deit3_flop_test_patch16_64")
    >>> untrained.name, untrained.input_size, untrained.trained, untrained.labels[1]
    ('deit3_flop_test_patch16_64', (3, 64, 64), False, 'goldfish, Carassius auratus')
    """
    if target.endswith(".py"):
        raise targets.missing_attribute(target)
    path = Path(target.removeprefix("local-dir:"))
    is_path = os.sep in target and ":" not in target
    labels: object = None
    if path.exists() or target.startswith("local-dir:") or is_path:
        if img_size is not None:
            raise UsageError(f"--img-size {img_size}: {str(path)!r} takes images of the size it was trained for")
        folder, model, config = open_checkpoint(path, average=average)
        name, labels = config["architecture"], config.get("label_names")
        size = tuple(resolve_model_data_config(model)["input_size"])
        return _assemble(name, model, labels, size, device, trained=True, folder=folder)
    if average:
        raise UsageError(f"--average takes the averaged weights of a checkpoint, and {target!r} is none")
    if ":" in target:
        model = _load_untrained(target)
        size, classes = _try(model, target, img_size)
        if getattr(model, "num_classes", None) != classes:
            labels = [str(number) for number in range(classes)]
        return _assemble(target, model, labels, size, device, trained=None)
    try:
        name = registered_name(target)
    except ValueError as error:
        raise UsageError(f"{error}; and there is no folder of this name") from error
    cfg = timm.get_pretrained_cfg(name)
    trained = cfg is not None and bool(cfg.has_weights)
    model = _load_pretrained(name, img_size) if trained else _load_untrained(name, img_size)
    size = resolve_model_data_config(model)["input_size"]
    return _assemble(name, model, None, (size[0], img_size or size[1], img_size or size[2]), device, trained=trained)


def _load_untrained(target: str, img_size: int | None = None) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        return targets.load(target, img_size)


def _load_pretrained(name: str, img_size: int | None) -> nn.Module:
    resized = img_size is not None and timm.get_pretrained_cfg(name).fixed_input_size
    try:
        model: nn.Module = timm.create_model(name, pretrained=True, **({"img_size": img_size} if resized else {}))
    except Exception as error:  # every way to download a file has its own
        raise UsageError(
            f"the weights of {name!r} can't be downloaded ({type(error).__name__}): connect to the network once, or"
            " name a checkpoint of yours"
        ) from error
    return model


def _try(model: nn.Module, target: str, img_size: int | None) -> tuple[tuple[int, int, int], int]:
    """The input size and the number of classes of a user's own network, found by running it on one image."""
    x = targets.example_input(model.eval(), img_size, torch.float32, batch=1)
    if not isinstance(x, Tensor):
        raise UsageError(f"{target!r} takes features, not images")
    chans, height, width = x.shape[1:]
    try:
        with torch.inference_mode():
            y = model(x)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(
            f"{target!r} refuses an image of {chans} x {height} x {width} (--img-size names another size): {reason}"
        ) from error
    if not isinstance(y, Tensor) or y.ndim != 2 or not y.shape[1]:
        what = f"a tensor of {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise UsageError(f"{target!r} is no classifier: for one image it gives {what}, and not (1, classes)")
    return (chans, height, width), y.shape[1]


def _assemble(
    name: str,
    model: nn.Module,
    labels: object,
    size: tuple[int, int, int],
    device: torch.device,
    *,
    trained: bool | None,
    folder: Path | None = None,
) -> Classifier:
    names = _labels(model, name, labels)
    model = model.eval().to(device)
    return Classifier(name, model, names, size, preparation_of(model, device, size), trained, folder)


def _labels(model: nn.Module, name: str, given: object) -> tuple[str, ...]:
    """The names in its checkpoint, or those of ImageNet for networks with that number of classes."""
    classes = int(getattr(model, "num_classes", 0) or 0)
    if given:
        names = tuple(map(str, given)) if isinstance(given, (list, tuple)) else ()
        if not names or classes not in (0, len(names)):
            raise UsageError(f"{name!r} has {classes} classes, and label_names in its config.json has {len(names)}")
        return names
    if not classes:
        raise UsageError(f"{name!r} is no classifier: it has no classes, only features")
    subset = infer_imagenet_subset(model)
    if subset is None:
        return tuple(str(number) for number in range(classes))
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(number) for number in range(classes))
