"""Recipes: how a network is trained, as data that is checked when it is read."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

Family = Literal["ViT", "ResMLP", "ConvNeXt"]


def _doc(text: str, default: Any = MISSING) -> Any:
    """A field with the text that `flopping recipes --fields` shows."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"doc": text})
    return field(metadata={"doc": text}) if default is MISSING else field(default=default, metadata={"doc": text})


@dataclass(frozen=True)
class About:
    """The header of a recipe."""

    source: str = _doc("where the figures come from")
    command: str = _doc("the command that runs it")
    cost: str = _doc("an estimate of what a run costs")
    expected: dict[str, float] = _doc("top-1 accuracy in per cent that was reported, by the network's name", {})
    notes: str = _doc("what else to know", "")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides what is learned. What only decides how fast (devices, processes, workers) is no part of it."""

    about: About = _doc("source, command, cost, expected, notes")
    family: Family = _doc("the networks it is for: ViT, ResMLP or ConvNeXt")

    model: str = _doc("the network, if none is named on the command line", "")
    model_args: dict[str, Any] = _doc("arguments of the network beyond its name, e.g. its width", {})
    drop_path: float = _doc("stochastic depth", 0.0)
    drop_path_rises: bool = _doc("whether stochastic depth rises linearly from 0 over the blocks", False)
    dropout: float = _doc("dropout before the classifier", 0.0)

    img_size: int = _doc("height and width of images", 224)
    in_chans: int = _doc("3 for colour images, 1 for grey ones", 3)
    mean: tuple[float, ...] | None = _doc("mean of the images' channels; by default the network's", None)
    std: tuple[float, ...] | None = _doc("standard deviation of the images' channels; by default the network's", None)
    interpolation: Literal["nearest", "bilinear", "bicubic"] = _doc("how images are resized", "bicubic")
    test_crop: float = _doc("share of a test image's side that is kept", 1.0)

    epochs: int = _doc("passes over the images")
    batch_size: int = _doc("images per step, over all processes")
    optimizer: Literal["lamb", "adamw", "sgd"] = _doc("timm's optimiser")
    lr: float = _doc("highest learning rate, for the whole batch; it is not rescaled")
    lr_schedule: Literal["cosine"] = _doc("how the learning rate falls after warm-up", "cosine")
    warmup_epochs: float = _doc("epochs of linear warm-up", 0.0)
    warmup_lr: float = _doc("learning rate at the beginning of warm-up", 1e-6)
    min_lr: float = _doc("learning rate at the end", 1e-5)
    weight_decay: float = _doc("weight decay, on matrices and filters only", 0.0)
    clip_grad: float | None = _doc("largest norm of the gradient", None)
    ema: float | None = _doc("decay of a moving average of the weights, kept and tested beside them", None)
    precision: Literal["float32", "bfloat16", "float16", "float64"] = _doc(
        "arithmetic: bfloat16 and float16 by autocast, float64 throughout", "float32"
    )

    loss: Literal["ce", "bce"] = _doc("cross-entropy over classes, or binary for each class", "ce")
    label_smoothing: float = _doc("share of the target that is spread over all classes", 0.0)

    augment: str | None = _doc("timm's name of a policy: 3a is 3-Augment, rand-m9-mstd0.5-inc1 RandAugment", None)
    color_jitter: float | None = _doc("strength of colour jitter; RandAugment replaces it, as in timm", None)
    crop_scale: float = _doc("smallest share of the image's area that a random crop keeps", 0.08)
    flip: float = _doc("probability of mirroring an image; skipped where mirroring changes nothing", 0.5)
    erase: float = _doc("probability of random erasing", 0.0)
    mixup: float = _doc("alpha of mixup", 0.0)
    cutmix: float = _doc("alpha of CutMix", 0.0)
    repeats: int = _doc("how often an image comes in a batch, each time augmented anew (repeated augmentation)", 1)
    seed: int = _doc("decides the weights' start, the order of images and all that is random", 0)

    def __post_init__(self) -> None:
        for name in ("drop_path", "dropout", "flip", "erase", "label_smoothing"):
            _between(name, getattr(self, name), 0.0, 1.0)
        for name in ("test_crop", "crop_scale"):
            _between(name, getattr(self, name), 0.01, 1.0)
        for name in ("epochs", "batch_size", "img_size", "in_chans", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, got {getattr(self, name)}")
        for name in ("warmup_epochs", "warmup_lr", "min_lr", "weight_decay", "mixup", "cutmix", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is not negative, got {getattr(self, name)}")
        if self.lr <= 0:
            raise ValueError(f"lr is positive, got {self.lr}")
        if self.clip_grad is not None and self.clip_grad <= 0:
            raise ValueError(f"clip_grad is positive, or null for none, got {self.clip_grad}")
        if self.color_jitter is not None and self.color_jitter < 0:
            raise ValueError(f"color_jitter is not negative, or null for none, got {self.color_jitter}")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ValueError(f"ema is between 0 and 1, or null for none, got {self.ema}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.warmup_epochs >= self.epochs and self.warmup_epochs:
            raise ValueError(
                f"warm-up takes {self.warmup_epochs:g} of {self.epochs} epochs, and nothing is left after it:"
                " set warmup_epochs too"
            )
        if self.min_lr > self.lr:
            raise ValueError(f"the learning rate falls from lr={self.lr:g} to min_lr={self.min_lr:g}, which is higher")
        if self.repeats > self.batch_size:
            raise ValueError(f"a batch of {self.batch_size} can't hold an image {self.repeats} times")
        if (self.mixup or self.cutmix) and self.batch_size % 2:
            raise ValueError(f"mixup and CutMix mix pairs of images: batch_size is even, got {self.batch_size}")
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None and len(value) not in (1, self.in_chans):
                raise ValueError(f"{name} has a value for each of the in_chans={self.in_chans} channels, got {value}")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError(f"std is positive, got {self.std}")
        if self.augment is not None:
            _check_policy(self.augment)

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return bool(self.mixup or self.cutmix)

    def require_family(self, model: str) -> None:  # replaced by the recipes branch
        return

    def to_yaml(self) -> str:
        """The recipe with all its fields, as `read` takes it."""
        return yaml.safe_dump(_plain(asdict(self)), sort_keys=False, allow_unicode=True)

    def override(self, changes: Iterable[str]) -> Recipe:
        """A recipe with some fields changed, each given as KEY=VALUE; model_args.KEY=VALUE changes one argument.

        >>> load("deit3_base").override(["lr=1e-3", "epochs=10"]).lr
        0.001
        """
        values: dict[str, Any] = {}
        args = dict(self.model_args)
        for change in changes:
            key, equals, text = change.partition("=")
            if not equals:
                raise ValueError(f"a field is changed by KEY=VALUE, got {change!r}")
            value = _parsed(text, change)
            if key.startswith("model_args."):
                args[key.removeprefix("model_args.")] = value
            else:
                values[_known(key, _FIELDS, "a recipe")] = value
        if "about" in values:
            raise ValueError("the header of a recipe (about) is no field to change on the command line")
        args = {**values.pop("model_args", {}), **args} if args else values.pop("model_args", args)
        checked = {name: _checked(_FIELDS[name], value) for name, value in values.items()}
        return replace(self, **checked, model_args=args)


_FIELDS: dict[str, Field[Any]] = {f.name: f for f in fields(Recipe)}


def documentation() -> list[tuple[str, str, str]]:
    """Every field of a recipe: its name, its default as text (empty where one must be given), and what it means."""
    rows = []
    for name, f in _FIELDS.items():
        given = f.default is MISSING and f.default_factory is MISSING
        default = "" if given else "{}" if f.default is MISSING else "null" if f.default is None else str(f.default)
        rows.append((name, default, str(f.metadata["doc"])))
    return rows


def names() -> list[str]:
    """The recipes in the package."""
    return sorted(
        path.name.removesuffix(".yaml") for path in files("flopping.recipes").iterdir() if path.name.endswith(".yaml")
    )


def load(name: str | Path) -> Recipe:
    """A recipe of the package by its name, or one of yours by its path, which ends in .yaml."""
    text = str(name)
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            raise ValueError(f"no recipe {text!r}: there is no such file")
        return read(path.read_text(encoding="utf-8"), text)
    if text not in names():
        near = get_close_matches(text, names(), n=3, cutoff=0.4) or names()
        raise ValueError(
            f"no recipe is called {text!r}; the closest are {', '.join(near)}. A file of yours ends in .yaml"
        )
    return read(files("flopping.recipes").joinpath(f"{text}.yaml").read_text(encoding="utf-8"), f"{text}.yaml")


def read(text: str, where: str) -> Recipe:
    """A recipe from the text of its file."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is no YAML: {' '.join(str(error).split())}") from error
    try:
        if not isinstance(content, Mapping):
            raise ValueError(f"a recipe is a table of fields, got {type(content).__name__}")
        return _make(Recipe, {**content, "about": _make(About, content.get("about", {}), "about")}, "a recipe")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _make(kind: type[Any], content: object, what: str) -> Any:
    """One of the dataclasses above from a table, with every key and type checked."""
    if not isinstance(content, Mapping):
        raise ValueError(f"{what} is a table of fields, got {content!r}")
    known = {f.name: f for f in fields(kind)}
    values = {_known(key, known, what): value for key, value in content.items()}
    missing = [n for n, f in known.items() if n not in values and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}")
    return kind(**{name: _checked(known[name], value) for name, value in values.items()})


def _known(key: object, known: Iterable[str], what: str) -> str:
    known = list(known)
    if key in known:
        return str(key)
    near = get_close_matches(str(key), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise ValueError(f"{what} has no field {key!r}; {hint}")


def _parsed(text: str, change: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"the value of {change!r} can't be read: {' '.join(str(error).split())}") from error


def _checked(f: Field[Any], value: Any) -> Any:
    """A value of the field's type; whole numbers serve as floats, and so do floats that YAML takes for text (3e-3)."""
    hint = typing.get_type_hints(About if f.name in {g.name for g in fields(About)} else Recipe)[f.name]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    for option in options:
        fitting = _as(option, value)
        if fitting is not None:
            return fitting
    wanted = " or ".join(_spelt(option) for option in options)
    raise ValueError(f"{f.name} is {wanted}, got {value!r}")


def _as(kind: Any, value: Any) -> Any:
    """The value as one of the types that fields have, or None."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return value if value in typing.get_args(kind) else None
    if origin is tuple:
        values = [_as(float, v) for v in value] if isinstance(value, (list, tuple)) and value else [None]
        return None if None in values else tuple(values)
    if origin is dict:
        named = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        return dict(value) if named else None
    if kind is float:
        return _number(value)
    return value if type(value) is kind else None


def _number(value: Any) -> float | None:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            return None
        return number if abs(number) < float("inf") else None
    return None


def _spelt(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    spelt = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}
    return spelt.get(kind, "a list of numbers" if typing.get_origin(kind) is tuple else "a table")


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is between {low:g} and {high:g}, got {value:g}")


def _check_policy(name: str) -> None:
    from timm.data.auto_augment import auto_augment_transform, rand_augment_transform

    make = rand_augment_transform if name.startswith("rand") else auto_augment_transform
    try:
        make(name, {})
    except (AssertionError, KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"augment is a policy of timm, as 3a or rand-m9-mstd0.5-inc1, or null for none, got {name!r}"
        ) from error


def _plain(value: Any) -> Any:
    """Tuples as lists, which YAML has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
