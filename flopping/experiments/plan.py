"""The plan of an experiment: which networks are trained, how often, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import Enum
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from flopping.paper import ordinary_name
from flopping.training import recipe as recipes
from flopping.training.fields import Range, check, make
from flopping.training.plain_yaml import parse
from flopping.training.recipe import Recipe


class Arm(Enum):
    """Which of a pair is trained, and for how long."""

    ORDINARY = "x"
    EQUIVARIANT = "e"
    """As many epochs as X."""
    LONGER = "e-time"
    """As many epochs as fit into the time that X takes."""


@dataclass(frozen=True)
class Pair:
    """X and E(X), trained by one recipe with several seeds. The recipe's network is E(X)."""

    recipe: Annotated[str, "its name, or a file of yours"]
    seeds: Annotated[int, Range(at_least=1), "how many runs of each network"]

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def content(self) -> Recipe:
        found = recipes.load(self.recipe)
        if ordinary_name(found.model) == found.model:
            raise ValueError(f"recipe {self.recipe!r} of an experiment names E(X) as its model, got {found.model!r}")
        return found

    @property
    def name(self) -> str:
        return Path(self.recipe).name.removesuffix(".yaml")

    def model(self, arm: Arm) -> str:
        """The network's name."""
        return ordinary_name(self.content.model) if arm is Arm.ORDINARY else self.content.model

    def runs(self, arm: Arm) -> list[Run]:
        return [Run(self, arm, seed) for seed in range(self.seeds)]


@dataclass(frozen=True)
class Run:
    """One training run of an experiment."""

    pair: Pair
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.pair.name}-{self.arm.value}-{self.seed}"

    @property
    def model(self) -> str:
        return self.pair.model(self.arm)

    def changes(self, epochs: int) -> list[str]:
        """What is changed in the recipe; warm-up keeps its share of the epochs."""
        recipe = self.pair.content
        warmup = recipe.warmup_epochs * epochs / recipe.epochs
        return [f"epochs={epochs}", f"warmup_epochs={warmup:.3g}", f"seed={self.seed}"]

    def command(self, epochs: int, data: str, folder: Path) -> list[str]:
        """The words behind `flopping` that carry it out, or go on with it."""
        where = ["--model", self.model, "--data", data, "-o", str(folder / self.name), "--resume"]
        return ["train", self.pair.recipe, *self.changes(epochs), *where]


@dataclass(frozen=True)
class Heading:
    """How the report begins."""

    title: Annotated[str, "of the page"]
    about: Annotated[str, "what is trained on what"]

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Plan:
    """An experiment."""

    name: str
    heading: Heading
    pairs: tuple[Pair, ...]

    @property
    def runs(self) -> list[Run]:
        """All runs in their order, seed by seed, so that what has finished can soon be compared.

        >>> [run.name for run in load("cifar10").runs][:4]
        ['cifar10_vit-x-0', 'cifar10_vit-e-0', 'cifar10_vit-e-time-0', 'cifar10_vit-x-1']
        """
        return [Run(pair, arm, seed) for pair in self.pairs for seed in range(pair.seeds) for arm in Arm]


def scaled(epochs: int, scale: float) -> int:
    """Epochs on a machine that is so many times as fast.

    >>> scaled(8, 1.0), scaled(8, 2.5), scaled(8, 0.01)
    (8, 20, 1)
    """
    if not scale > 0 or scale == float("inf"):
        raise ValueError(f"scale is positive, got {scale}")
    return max(1, round(epochs * scale))


def names() -> list[str]:
    """The experiments in the package."""
    folder = files("flopping.experiments")
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))


def load(name: str) -> Plan:
    """An experiment of the package by its name, or one of yours by its path, which ends in .yaml."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise ValueError(f"no experiment {name!r}: there is no such file")
        return read(path.read_text(encoding="utf-8"), path.stem, path.parent)
    if name not in names():
        near = get_close_matches(name, names(), n=3, cutoff=0.4) or names()
        raise ValueError(f"no experiment is called {name!r}; there is {', '.join(near)}. A file of yours ends in .yaml")
    return read(files("flopping.experiments").joinpath(f"{name}.yaml").read_text(encoding="utf-8"), name, None)


def read(text: str, name: str, folder: Path | None) -> Plan:
    """A plan from the text of its file; recipes of yours lie beside it."""
    try:
        content = parse(text)
        if not isinstance(content, Mapping) or not isinstance(content.get("pairs"), list) or not content["pairs"]:
            raise ValueError(f"an experiment is a table with title, about, and a list of pairs, got {content!r}")
        heading = make(Heading, {key: value for key, value in content.items() if key != "pairs"}, "an experiment")
        pairs = tuple(_placed(make(Pair, row, "a pair"), folder) for row in content["pairs"])
        doubled = {pair.name for pair in pairs if sum(other.name == pair.name for other in pairs) > 1}
        if doubled:
            raise ValueError(f"a recipe makes one pair, and {', '.join(sorted(doubled))} is there more than once")
        for pair in pairs:
            _ = pair.content  # a recipe that can't be read is refused before anything runs
    except ValueError as error:
        raise ValueError(f"experiment {name!r}: {error}") from error
    return Plan(name, heading, pairs)


def _placed(pair: Pair, folder: Path | None) -> Pair:
    """With the path of a recipe that lies in the folder of the plan."""
    if folder is None or not pair.recipe.endswith((".yaml", ".yml")):
        return pair
    return replace(pair, recipe=str(folder / pair.recipe))
