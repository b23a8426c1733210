"""Recipes: how a network is trained, as data that is checked when it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Interval, MinLen
from pydantic import BeforeValidator, Strict
from pydantic.dataclasses import dataclass

from flopping.errors import UsageError, as_usage_error
from flopping.files import STRICT, read_text
from flopping.machine import Precision
from flopping.models.arguments import MAX_IMG_SIZE, SET_BY_FIELDS
from flopping.training.schema import (
    as_file_error,
    build,
    document,
    format_yaml,
    packaged_names,
    parse_yaml,
    read_packaged,
)

_PACKAGE = "flopping.training.recipes"
Family = Literal["ViT", "ResMLP", "ConvNeXt", "ResNet"]
GroupName = Literal["flop", "flip", "rot180", "flipflop", "rot90", "octic"]
Count = Annotated[int, Interval(ge=1, lt=2**31)]
Positive = Annotated[float, Interval(gt=0)]
NotNegative = Annotated[float, Interval(ge=0)]
Share = Annotated[float, Interval(ge=0, le=1)]
BelowOne = Annotated[float, Interval(ge=0, lt=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]

SYNONYMS = {
    "learning_rate": "lr",
    "opt": "optimizer",
    "sched": "lr_schedule",
    "wd": "weight_decay",
    "drop_path_rate": "drop_path",
    "stochastic_depth": "drop_path",
    "drop": "dropout",
    "smoothing": "label_smoothing",
    "aa": "augment",
    "auto_augment": "augment",
    "reprob": "erase",
    "random_erasing": "erase",
    "hflip": "flip",
    "aug_repeats": "repeats",
    "repeated_augmentation": "repeats",
    "crop_pct": "test_crop",
    "bce_loss": "loss",
    "amp": "precision",
    "dtype": "precision",
    "gradient_clipping": "clip_grad",
    "image_size": "img_size",
    "num_epochs": "epochs",
}
"""Names that fields have elsewhere, in timm above all: an error says what they are called here."""

_NUMBER = r"\d+(\.\d+)?"
_POLICIES = (
    rf"(3a|v0r?|originalr?)(-mstd{_NUMBER})?",
    rf"rand(-(m|n|inc|mmax)\d{{1,2}}|-p(0(\.\d+)?|1)|-mstd{_NUMBER}|-t(weights|3aw?))*",
    rf"augmix(-(m|w|d|b)\d+|-(a|mstd){_NUMBER})*",
)
"""The policies of timm's that have a meaning; timm itself ignores some of what it doesn't know."""


def _as_plain(value: Any) -> Any:
    """A value that YAML can hold, with tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [_as_plain(item) for item in value]
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {key: _as_plain(item) for key, item in value.items()}
    if value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value)):
        return value
    raise ValueError(f"is a table of plain values, got {value!r}")


Numbers = Annotated[tuple[float, ...], Strict(False), MinLen(1)]
PositiveNumbers = Annotated[tuple[Positive, ...], Strict(False), MinLen(1)]
"""Lists in YAML; tuples in Python."""
Percent = Annotated[float, Strict(), Interval(ge=0, le=100)]
PlainTable = Annotated[dict[str, Any], BeforeValidator(_as_plain)]


@dataclass(config={**STRICT, "strict": False}, frozen=True)  # so that a table serves as one
class About:
    """The header of a recipe."""

    source: Annotated[str, "where the values come from"] = ""
    command: Annotated[str, "the command that runs it"] = ""
    expected: Annotated[dict[str, Percent], "top-1 accuracy in per cent, by the network's name"] = field(
        default_factory=dict
    )
    cost: Annotated[str, "an estimate of what a run costs"] = ""
    notes: Annotated[str, "what else to know"] = ""


@dataclass(config=STRICT, frozen=True, kw_only=True)
class Recipe:
    """All that decides what is learned. What only decides how fast (devices, processes, workers) is no part of it."""

    about: Annotated[About, "the header: source, command, expected, cost, notes"] = field(default_factory=About)
    family: Annotated[Family | None, "the networks it was made for; null: any"] = None

    model: Annotated[str, "the network, if none is named on the command line"] = ""
    model_args: Annotated[PlainTable, "arguments of the network beyond its name, as its width"] = field(
        default_factory=dict
    )
    drop_path: Annotated[BelowOne, "stochastic depth"] = 0.0
    drop_path_rises: Annotated[bool, "whether stochastic depth rises linearly from 0 over the blocks"] = False
    dropout: Annotated[BelowOne, "dropout before the classifier"] = 0.0
    weight_init: Annotated[
        Literal["scaled", "reference"],
        "how weights of this library's networks start: reference as in the paper's code, whatever the width of a block",
    ] = "scaled"
    whiten_stem: Annotated[
        bool,
        "whether the first convolution starts with filters that whiten patches of training images; ResNet only, and not"
        " with --init",
    ] = False
    layer_scale: Annotated[
        Positive | None, "where layer scales start, in networks that have them; null: as the network has it"
    ] = None

    img_size: Annotated[Annotated[int, Interval(ge=1, le=MAX_IMG_SIZE)], "height and width of images"] = 224
    in_chans: Annotated[Count, "3 for colour images, 1 for grey ones"] = 3
    mean: Annotated[Numbers | None, "mean of the images' channels; null: the network's"] = None
    std: Annotated[PositiveNumbers | None, "standard deviation of the images' channels; null: the network's"] = None
    interpolation: Annotated[Literal["nearest", "bilinear", "bicubic"], "how images are resized"] = "bicubic"
    test_crop: Annotated[Annotated[float, Interval(ge=0.1, le=1)], "share of a test image's side that is kept"] = 1.0

    epochs: Annotated[Count, "passes over the images"]
    batch_size: Annotated[Count, "images per step, over all processes"]
    optimizer: Annotated[Literal["lamb", "adamw", "sgd"], "timm's optimiser"]
    lr: Annotated[Positive, "highest learning rate, for the whole batch; it is not rescaled"]
    lr_schedule: Annotated[Literal["cosine"], "how the learning rate falls after warm-up"] = "cosine"
    warmup_epochs: Annotated[NotNegative, "epochs of linear warm-up"] = 0.0
    warmup_lr: Annotated[NotNegative, "learning rate at the beginning of warm-up"] = 1e-6
    min_lr: Annotated[NotNegative, "learning rate at the end"] = 1e-5
    weight_decay: Annotated[NotNegative, "weight decay, on matrices and filters only"] = 0.0
    clip_grad: Annotated[Positive | None, "largest norm of the gradient; null: any, LAMB's own limit off too"] = None
    layer_decay: Annotated[
        PositiveShare | None, "factor of the learning rate from each block to the one before it; null: the same rate"
    ] = None
    ema: Annotated[
        Annotated[float, Interval(gt=0, lt=1)] | None,
        "decay of a moving average of the weights, kept and tested beside them",
    ] = None
    precision: Annotated[
        Precision,
        "arithmetic: bfloat16 and float16 by autocast, float64 throughout",
    ] = "float32"

    loss: Annotated[Literal["ce", "bce"], "cross-entropy over classes, or binary for each class"] = "ce"
    label_smoothing: Annotated[BelowOne, "share of the target that is spread over all classes"] = 0.0

    augment: Annotated[str | None, "timm's name of a policy: 3a is 3-Augment, rand-m9-mstd0.5-inc1 RandAugment"] = None
    color_jitter: Annotated[
        NotNegative | None, "strength of colour jitter; policies other than 3a replace it, as in timm"
    ] = None
    crop_scale: Annotated[PositiveShare, "smallest share of the image's area that a random crop keeps"] = 0.08
    translate: Annotated[
        Annotated[int, Interval(ge=0, le=MAX_IMG_SIZE)],
        "pixels by which images are moved at most along each axis; filled by reflection padding",
    ] = 0
    flip: Annotated[Share, "probability of mirroring an image; skipped where mirroring changes nothing"] = 0.5
    symmetry: Annotated[
        GroupName | None,
        "images are moved by a random element of this group (flop, flip, rot180, flipflop, rot90, octic); skipped where"
        " no element changes anything",
    ] = None
    erase: Annotated[Share, "probability of random erasing"] = 0.0
    mixup: Annotated[NotNegative, "alpha of mixup"] = 0.0
    cutmix: Annotated[NotNegative, "alpha of CutMix"] = 0.0
    repeats: Annotated[
        Count, "repeated augmentation: how often an image comes in a batch, each time augmented anew"
    ] = 1
    seed: Annotated[
        Annotated[int, Interval(ge=0, lt=2**32)],
        "decides the weights' start, the order of images and all that is random",
    ] = 0

    def __post_init__(self) -> None:
        for name in self.model_args:
            if name in SET_BY_FIELDS:
                raise ValueError(f"{name} is decided by {SET_BY_FIELDS[name]}, and can't be in model_args too")
            if not name.isidentifier():
                raise ValueError(f"model_args are named as in Python, got {name!r}")
        if self.warmup_epochs and self.warmup_epochs >= self.epochs:
            given = f"warmup_epochs={self.warmup_epochs:g} are not less than epochs={self.epochs}"
            raise ValueError(f"{given}: lower warmup_epochs, too")
        if self.warmup_epochs and self.warmup_lr > self.lr:
            raise ValueError(f"warm-up rises from warmup_lr={self.warmup_lr:g} to lr={self.lr:g}, which is lower")
        if self.min_lr > self.lr:
            raise ValueError(f"the learning rate falls from lr={self.lr:g} to min_lr={self.min_lr:g}, which is higher")
        if self.loss == "bce" and self.label_smoothing:
            raise ValueError(f"loss=bce takes label_smoothing=0, got {self.label_smoothing:g}: it smooths every class")
        if self.translate >= self.img_size:
            raise ValueError(f"images of img_size={self.img_size} are moved by less than that, got {self.translate}")
        if self.repeats > self.batch_size:
            raise ValueError(f"a batch of {self.batch_size} images can't hold one of them repeats={self.repeats} times")
        if self.mixes and self.batch_size % 2:
            raise ValueError(f"mixup and CutMix mix pairs of images: batch_size is even, got {self.batch_size}")
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None and len(value) not in (1, self.in_chans):
                raise ValueError(f"{name} has one value, or one per channel (in_chans={self.in_chans}), got {value}")
        if self.augment is not None and not re.fullmatch("|".join(_POLICIES), self.augment):
            raise ValueError(
                f"augment is null or a policy of timm's, as 3a or rand-m9-mstd0.5-inc1, got {self.augment!r}"
            )

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return bool(self.mixup or self.cutmix)

    def to_yaml(self) -> str:
        """The recipe with all its fields, as `read` takes it."""
        return format_yaml(_as_plain(asdict(self)))

    def override(self, changes: Iterable[str]) -> Recipe:
        """A recipe with some fields changed, each by KEY=VALUE; model_args.KEY=VALUE changes one argument.

        >>> load("deit3_base").override(["lr=1e-3", "epochs=10", "model_args.embed_dim=384"]).lr
        0.001
        """
        values: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for change in changes:
            key, equals, text = change.partition("=")
            if not equals or not text.strip():
                raise UsageError(f"a field is changed by KEY=VALUE, as lr=1e-3 or clip_grad=null, got {change!r}")
            name, dot, argument = key.partition(".")
            if name == "about":
                raise UsageError(f"the header of a recipe (about) can't be changed on the command line, got {change!r}")
            table, key = (arguments, argument) if dot and name == "model_args" else (values, key)
            if key in table:
                raise UsageError(f"{key} is given twice")
            with as_usage_error(UsageError, context=f"the value of {change!r} can't be read"):
                table[key] = parse_yaml(text)
        if arguments:
            others = values.get("model_args", self.model_args)
            if not isinstance(others, Mapping):
                raise UsageError(f"model_args is a table of plain values, got {others!r}")
            values["model_args"] = {**others, **arguments}
        with as_file_error(Recipe, "a recipe", SYNONYMS):
            return replace(self, **values)


def documentation() -> list[tuple[str, str, str]]:
    """Every field of a recipe: its name, its default as text (empty where one must be given), and what it means."""
    return document(Recipe)


def names() -> list[str]:
    return packaged_names(_PACKAGE)


def load(name: str | Path) -> Recipe:
    """A recipe of the package by its name, or one of yours by its path, which ends in .yaml."""
    return read(text_of(name), str(name))


def text_of(name: str | Path) -> str:
    """The file of a recipe that `load` reads, comments included."""
    text = str(name)
    if text.endswith((".yaml", ".yml")):
        if not Path(text).is_file():
            raise UsageError(f"no recipe {text!r}: there is no such file")
        return read_text(Path(text))
    return read_packaged(_PACKAGE, text, "recipe")


def read(text: str, where: str) -> Recipe:
    """A recipe from the text of its file; `where` is the file's name, for errors."""
    with as_usage_error(UsageError, context=where):
        content = parse_yaml(text)
        if content is None:
            raise UsageError("a recipe is a table of fields, and the file is empty")
        return build(Recipe, content, "a recipe", SYNONYMS)
