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

from flopping.checkpoints.weight_files import read_config
from flopping.data.augment import Normalisation, Preparation, Transformed, stack_images
from flopping.data.decode import convert_image
from flopping.errors import UsageError, as_usage_error, own_code
from flopping.groups import Group
from flopping.models import targets
from flopping.models.zoo import registered_name, trained_folder
from flopping.training.networks import group_to_test, load_timm_pretrained, open_checkpoint
from flopping.training.preprocessing import normalisation_of, preparation_of

CPU = torch.device("cpu")
SEED = 0


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

    @property
    def device(self) -> torch.device:
        return self.preparation.device

    @property
    def group(self) -> Group:
        """The group of its first layers, whatever follows; flop for an ordinary network."""
        return self.group_to_test(None)

    def group_to_test(self, asked: str | None) -> Group:
        """The group that is asked for, or its own; refused if images of this size have not all of its elements."""
        return group_to_test(self.model, asked, self.input_size[1:])

    @property
    def normalisation(self) -> Normalisation:
        return normalisation_of(self.model, self.input_size[0])

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
    target: str,
    *,
    average: bool = False,
    code: str | None = None,
    img_size: int | None = None,
    device: torch.device = CPU,
) -> Classifier:
    """A run, one of its checkpoints, a folder that timm's models save, a model's name, or `FILE.py:ATTRIBUTE`.

    A model by name has the weights that timm knows for it, or that are part of the package. Others of ours have random
    weights, from one seed. `average` takes the averaged weights (EMA) of a checkpoint. `code` names the file of a
    checkpoint whose network is your own code. `img_size` is another size of images; checkpoints refuse it.

    >>> untrained = open_classifier("deit3_flop_test_patch16_64")
    >>> untrained.name, untrained.input_size, untrained.trained, untrained.labels[1]
    ('deit3_flop_test_patch16_64', (3, 64, 64), False, 'goldfish, Carassius auratus')
    """
    if target.endswith(".py"):
        raise targets.missing_attribute(target)
    path = Path(target.removeprefix("local-dir:"))
    if path.exists() or target.startswith("local-dir:") or (os.sep in target and ":" not in target):
        if img_size is not None:
            raise UsageError(f"--img-size {img_size}: {str(path)!r} takes images of the size it was trained for")
        folder, model, config = open_checkpoint(path, average=average, code=code)
        labels = _find_labels(model, config["architecture"], config.get("label_names"))
        size = tuple(resolve_model_data_config(model)["input_size"])
        return _assemble(config["architecture"], model, labels, size, device, trained=True, folder=folder)
    for option, given in (("--average", average), ("--code", code)):
        if given:
            raise UsageError(f"{option} goes with a checkpoint, and {target!r} is none")
    if ":" in target:
        model = _load_untrained(target, None)
        size, classes = _try(model, target, img_size)
        known = getattr(model, "num_classes", None) == classes
        labels = _find_labels(model, target) if known else tuple(map(str, range(classes)))
        with own_code(f"{target!r} describes its images by a pretrained_cfg as timm's networks do"):
            return _assemble(target, model, labels, size, device, trained=None)
    with as_usage_error(UsageError, context=f"{target!r} is no folder"):
        name = registered_name(target)
    cfg = timm.get_pretrained_cfg(name)
    trained = cfg is not None and bool(cfg.has_weights)
    resized = img_size is not None and trained and cfg.fixed_input_size
    sized = {"img_size": img_size} if resized else {}
    model = load_timm_pretrained(name, **sized) if trained else _load_untrained(name, img_size)
    chans, height, width = resolve_model_data_config(model)["input_size"]
    size = (chans, img_size or height, img_size or width)
    packed = trained_folder(name)
    labels = _find_labels(model, name, read_config(packed).get("label_names") if packed is not None else None)
    return _assemble(name, model, labels, size, device, trained=trained)


def _assemble(
    name: str,
    model: nn.Module,
    labels: tuple[str, ...],
    size: tuple[int, int, int],
    device: torch.device,
    *,
    trained: bool | None,
    folder: Path | None = None,
) -> Classifier:
    model = model.eval().to(device)
    return Classifier(name, model, labels, size, preparation_of(model, device, size), trained, folder)


def _load_untrained(target: str, img_size: int | None) -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        return targets.load(target, img_size)


def _try(model: nn.Module, target: str, img_size: int | None) -> tuple[tuple[int, int, int], int]:
    """The input size and the number of classes of a user's own network, found by running it on one image."""
    with own_code(f"{target!r} describes its images by a default_cfg as timm's networks do"):
        x = targets.example_input(model.eval(), img_size, torch.float32, batch=1)
    if not isinstance(x, Tensor):
        raise UsageError(f"{target!r} takes features, not images")
    chans, height, width = x.shape[1:]
    refuses = f"{target!r} refuses an image of {chans} x {height} x {width} (--img-size names another size)"
    with own_code(refuses), torch.inference_mode():
        y = model(x)
    if not isinstance(y, Tensor) or y.ndim != 2 or not y.shape[1] or y.is_complex():
        what = f"a {y.dtype} tensor of {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise UsageError(f"{target!r} is no classifier: for one image it gives {what}, and not (1, classes)")
    return (chans, height, width), y.shape[1]


def _find_labels(model: nn.Module, name: str, given: object = None) -> tuple[str, ...]:
    """The names in its checkpoint, or those of ImageNet for networks with that number of classes."""
    classes = int(getattr(model, "num_classes", 0) or 0)
    if not classes:
        raise UsageError(f"{name!r} is no classifier: it has no classes, only features")
    if given:
        names = tuple(map(str, given)) if isinstance(given, (list, tuple)) else ()
        if len(names) != classes:
            raise UsageError(f"{name!r} has {classes} classes, and label_names in its config.json has {len(names)}")
        return names
    subset = infer_imagenet_subset(model)
    describe = str if subset is None else ImageNetInfo(subset).index_to_description
    return tuple(map(describe, range(classes)))
