"""Recipes: how a network is trained, as data that is checked when it is read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from flopping.training.families import Family, family_of
from flopping.training.fields import Range, check, described, known_name, make
from flopping.training.plain_yaml import dump, parse

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

SHARE = Range(at_least=0, at_most=1)
PART = Range(at_least=0, below=1)
MOST = Range(above=0, at_most=1)
COUNT = Range(at_least=1)
POSITIVE = Range(above=0)
NOT_NEGATIVE = Range(at_least=0)

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

DECIDED = {"img_size": "img_size", "in_chans": "in_chans", "drop_path_rate": "drop_path", "drop_rate": "dropout"}
"""Arguments of networks that fields of a recipe decide, and which ones."""

_NUMBER = r"\d+(\.\d+)?"
_POLICIES = (
    rf"(3a|v0r?|originalr?)(-mstd{_NUMBER})?",
    rf"rand(-(m|n|inc|mmax)\d+|-(p|mstd){_NUMBER}|-t(weights|3aw?))*",
    rf"augmix(-(m|w|d|b)\d+|-(a|mstd){_NUMBER})*",
)
"""The policies of timm's that have a meaning; timm itself ignores some of what it doesn't know."""


@dataclass(frozen=True)
class About:
    """The header of a recipe."""

    source: Annotated[str, "where the values come from"] = ""
    command: Annotated[str, "the command that runs it"] = ""
    expected: Annotated[
        dict[str, float], Range(at_least=0, at_most=100), "top-1 accuracy in per cent, by the network's name"
    ] = field(default_factory=dict)
    cost: Annotated[str, "an estimate of what a run costs"] = ""
    notes: Annotated[str, "what else to know"] = ""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All that decides what is learned. What only decides how fast (devices, processes, workers) is no part of it."""

    about: Annotated[About, "the header: source, command, expected, cost, notes"] = field(default_factory=About)
    family: Annotated[Family, "the networks it is for"]

    model: Annotated[str, "the network, if none is named on the command line"] = ""
    model_args: Annotated[dict[str, Any], "arguments of the network beyond its name, as its width"] = field(
        default_factory=dict
    )
    drop_path: Annotated[float, PART, "stochastic depth"] = 0.0
    drop_path_rises: Annotated[bool, "whether stochastic depth rises linearly from 0 over the blocks"] = False
    dropout: Annotated[float, PART, "dropout before the classifier"] = 0.0

    img_size: Annotated[int, COUNT, "height and width of images"] = 224
    in_chans: Annotated[int, COUNT, "3 for colour images, 1 for grey ones"] = 3
    mean: Annotated[tuple[float, ...] | None, "mean of the images' channels; null: the network's"] = None
    std: Annotated[
        tuple[float, ...] | None, POSITIVE, "standard deviation of the images' channels; null: the network's"
    ] = None
    interpolation: Annotated[Literal["nearest", "bilinear", "bicubic"], "how images are resized"] = "bicubic"
    test_crop: Annotated[float, MOST, "share of a test image's side that is kept"] = 1.0

    epochs: Annotated[int, COUNT, "passes over the images"]
    batch_size: Annotated[int, COUNT, "images per step, over all processes"]
    optimizer: Annotated[Literal["lamb", "adamw", "sgd"], "timm's optimiser"]
    lr: Annotated[float, POSITIVE, "highest learning rate, for the whole batch; it is not rescaled"]
    lr_schedule: Annotated[Literal["cosine"], "how the learning rate falls after warm-up"] = "cosine"
    warmup_epochs: Annotated[float, NOT_NEGATIVE, "epochs of linear warm-up"] = 0.0
    warmup_lr: Annotated[float, NOT_NEGATIVE, "learning rate at the beginning of warm-up"] = 1e-6
    min_lr: Annotated[float, NOT_NEGATIVE, "learning rate at the end"] = 1e-5
    weight_decay: Annotated[float, NOT_NEGATIVE, "weight decay, on matrices and filters only"] = 0.0
    clip_grad: Annotated[
        float | None, POSITIVE, "largest norm of the gradient; null: any, LAMB's own limit off too"
    ] = None
    ema: Annotated[
        float | None, Range(above=0, below=1), "decay of a moving average of the weights, kept and tested beside them"
    ] = None
    precision: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"],
        "arithmetic: bfloat16 and float16 by autocast, float64 throughout",
    ] = "float32"

    loss: Annotated[Literal["ce", "bce"], "cross-entropy over classes, or binary for each class"] = "ce"
    label_smoothing: Annotated[float, PART, "share of the target that is spread over all classes"] = 0.0

    augment: Annotated[str | None, "timm's name of a policy: 3a is 3-Augment, rand-m9-mstd0.5-inc1 RandAugment"] = None
    color_jitter: Annotated[
        float | None, NOT_NEGATIVE, "strength of colour jitter; policies other than 3a replace it, as in timm"
    ] = None
    crop_scale: Annotated[float, MOST, "smallest share of the image's area that a random crop keeps"] = 0.08
    flip: Annotated[float, SHARE, "probability of mirroring an image; skipped where mirroring changes nothing"] = 0.5
    erase: Annotated[float, SHARE, "probability of random erasing"] = 0.0
    mixup: Annotated[float, NOT_NEGATIVE, "alpha of mixup"] = 0.0
    cutmix: Annotated[float, NOT_NEGATIVE, "alpha of CutMix"] = 0.0
    repeats: Annotated[
        int, COUNT, "repeated augmentation: how often an image comes in a batch, each time augmented anew"
    ] = 1
    seed: Annotated[
        int,
        Range(at_least=0, below=2**32),
        "decides the weights' start, the order of images and all that is random",
    ] = 0

    def __post_init__(self) -> None:
        check(self)
        self._check_network()
        self._check_combinations()

    def _check_network(self) -> None:
        for name in self.model_args:
            if not name.isidentifier():
                raise ValueError(f"model_args are named as in Python, got {name!r}")
            if name in DECIDED:
                raise ValueError(f"{name} is decided by the field {DECIDED[name]}, and can't be in model_args too")
            if name == "num_classes":
                raise ValueError("num_classes is decided by the images, and can't be in model_args")
        if self.model:
            self.require_family(self.model)

    def _check_combinations(self) -> None:
        if self.warmup_epochs and self.warmup_epochs >= self.epochs:
            raise ValueError(
                f"warm-up takes {self.warmup_epochs:g} of {self.epochs} epochs, and nothing is left after it:"
                " set warmup_epochs too"
            )
        if self.warmup_epochs and self.warmup_lr > self.lr:
            raise ValueError(f"warm-up rises from warmup_lr={self.warmup_lr:g} to lr={self.lr:g}, which is lower")
        if self.min_lr > self.lr:
            raise ValueError(f"the learning rate falls from lr={self.lr:g} to min_lr={self.min_lr:g}, which is higher")
        if self.loss == "bce" and self.label_smoothing:
            raise ValueError(
                f"loss=bce takes a class that has any share in a target for present, and label_smoothing="
                f"{self.label_smoothing:g} gives every class a share: set label_smoothing=0"
            )
        if self.repeats > self.batch_size:
            raise ValueError(
                f"a batch of batch_size={self.batch_size} can't hold an image repeats={self.repeats} times"
            )
        if (self.mixup or self.cutmix) and self.batch_size % 2:
            raise ValueError(f"mixup and CutMix mix pairs of images: batch_size is even, got {self.batch_size}")
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None and len(value) not in (1, self.in_chans):
                raise ValueError(
                    f"{name} has one value, or one for each of the in_chans={self.in_chans} channels, got {list(value)}"
                )
        if self.augment is not None and not re.fullmatch("|".join(_POLICIES), self.augment):
            raise ValueError(
                f"augment is a policy of timm's, as 3a or rand-m9-mstd0.5-inc1, or null for none, got {self.augment!r}"
            )

    def require_family(self, model_name: str) -> None:
        """Refuse a network of another family, by its name; one whose name tells nothing is yours to judge.

        >>> load("deit3_base").require_family("resmlp_24_224")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: resmlp_24_224 is a ResMLP and the recipe is for ViT; for ResMLP there are ...resmlp_tiny, ...
        """
        found = family_of(model_name)
        if found not in (None, self.family):
            fitting = ", ".join(name for name, family in _families().items() if family == found)
            raise ValueError(
                f"{model_name} is a {found} and the recipe is for {self.family}; for {found} there are {fitting}"
            )

    @property
    def mixes(self) -> bool:
        """Whether images are mixed in pairs."""
        return bool(self.mixup or self.cutmix)

    def to_yaml(self) -> str:
        """The recipe with all its fields, as `read` takes it."""
        return dump(asdict(self))

    def override(self, changes: Iterable[str]) -> Recipe:
        """A recipe with some fields changed, each by KEY=VALUE; model_args.KEY=VALUE changes one argument.

        >>> load("deit3_base").override(["lr=1e-3", "epochs=10", "model_args.embed_dim=384"]).lr
        0.001
        """
        values: dict[str, Any] = {}
        for change in changes:
            key, equals, text = change.partition("=")
            if not equals or not text.strip():
                raise ValueError(f"a field is changed by KEY=VALUE, as lr=1e-3 or clip_grad=null, got {change!r}")
            field_name, dot, _ = key.partition(".")
            if field_name == "about":
                raise ValueError(f"the header of a recipe (about) can't be changed on the command line, got {change!r}")
            if not (dot and field_name == "model_args"):
                known_name(key, described(Recipe), "a recipe", SYNONYMS)
            if key in values:
                raise ValueError(f"{key} is given twice")
            try:
                values[key] = parse(text)
            except ValueError as error:
                raise ValueError(f"the value of {change!r} can't be read: {error}") from error
        arguments = {key: values.pop(key) for key in list(values) if "." in key}
        if arguments:
            table = described(Recipe)["model_args"].fit(values.get("model_args", self.model_args))
            values["model_args"] = table | {key.partition(".")[2]: value for key, value in arguments.items()}
        return replace(self, **values)


def documentation() -> list[tuple[str, str, str]]:
    """Every field of a recipe: its name, its default as text (empty where one must be given), and what it means."""
    rows = []
    for name, description in described(Recipe).items():
        default = {} if isinstance(description.default, About) else description.default
        text = "" if default is MISSING else dump(default).removesuffix("...\n").strip()
        rows.append((name, text, f"{description.meaning} ({description.takes})"))
    return rows


def names() -> list[str]:
    """The recipes in the package, small networks first."""
    sizes = ("tiny", "small", "base", "large", "huge")
    found = [path.name.removesuffix(".yaml") for path in _folder().iterdir() if path.name.endswith(".yaml")]

    def place(name: str) -> tuple[str, int, str]:
        family, _, size = name.rpartition("_")
        return (family, sizes.index(size), name) if size in sizes else (name, 0, name)

    return sorted(found, key=place)


def load(name: str | Path) -> Recipe:
    """A recipe of the package by its name, or one of yours by its path, which ends in .yaml."""
    return read(text_of(name), str(name))


def text_of(name: str | Path) -> str:
    """The file of a recipe that `load` reads, comments included."""
    text = str(name)
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            raise ValueError(f"no recipe {text!r}: there is no such file")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{text}: a recipe is text in UTF-8, got {error}") from error
    if text not in names():
        near = get_close_matches(text.lower(), names(), n=3, cutoff=0.4) or names()
        raise ValueError(
            f"no recipe is called {text!r}; the closest are {', '.join(near)}. A file of yours ends in .yaml"
        )
    return _folder().joinpath(f"{text}.yaml").read_text(encoding="utf-8")


def read(text: str, where: str) -> Recipe:
    """A recipe from the text of its file; `where` is the file's name, for errors."""
    try:
        content = parse(text)
        if content is None:
            raise ValueError("a recipe is a table of fields, and there is nothing in it")
        return make(Recipe, content, "a recipe", SYNONYMS)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _folder() -> Traversable:
    return files("flopping.recipes")


@lru_cache
def _families() -> dict[str, str]:
    """The families of the package's recipes, which aren't checked for it: one that is refused may ask."""
    return {name: parse(text_of(name))["family"] for name in names()}
