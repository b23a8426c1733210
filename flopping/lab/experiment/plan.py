"""The plan of an experiment: which networks are trained, how often, and for how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from annotated_types import Interval, MinLen
from pydantic.dataclasses import dataclass

from flopping.cost.records import STRICT
from flopping.errors import UsageError, as_usage_error
from flopping.files import require_regular
from flopping.models.paper import ordinary_name
from flopping.training import recipe as recipes
from flopping.training.recipe import Recipe
from flopping.training.schema import build, parse_yaml

ARMS = {"x": "ordinary", "e": "as many epochs as X", "e-time": "for the training time of X"}
"""The runs of a pair and a seed: X, E(X), and E(X) again for as many epochs as fit into the time of X."""


@dataclass(config=STRICT, frozen=True)
class Pair:
    """X and E(X), trained by one recipe with several seeds. The recipe's network is E(X)."""

    recipe: Annotated[str, "its name, or a file of yours"]
    seeds: Annotated[int, Interval(ge=1), "how many runs of each network"]

    @cached_property
    def content(self) -> Recipe:
        found = recipes.load(self.recipe)
        if ordinary_name(found.model) == found.model:
            raise UsageError(f"recipe {self.recipe!r} of an experiment names E(X) as its model, got {found.model!r}")
        return found

    @property
    def name(self) -> str:
        return Path(self.recipe).name.removesuffix(".yaml")

    def model(self, arm: str) -> str:
        return ordinary_name(self.content.model) if arm == "x" else self.content.model


@dataclass(config=STRICT, frozen=True)
class Plan:
    """An experiment."""

    title: Annotated[str, "of the page"]
    about: Annotated[str, "what is trained on what"]
    pairs: Annotated[list[Pair], MinLen(1), "the networks"]
    name: Annotated[str, "by default that of the file"]

    @property
    def runs(self) -> list[Run]:
        """All runs in their order, seed by seed.

        >>> [run.name for run in load("cifar10").runs][:4]
        ['cifar10_vit-x-0', 'cifar10_vit-e-0', 'cifar10_vit-e-time-0', 'cifar10_vit-x-1']
        """
        return [Run(pair, arm, seed) for pair in self.pairs for seed in range(pair.seeds) for arm in ARMS]


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run of an experiment."""

    pair: Pair
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.pair.name}-{self.arm}-{self.seed}"

    @property
    def model(self) -> str:
        return self.pair.model(self.arm)

    def changes(self, epochs: int) -> list[str]:
        """What is changed in the recipe; warm-up keeps its share of the epochs."""
        recipe = self.pair.content
        warmup = recipe.warmup_epochs * epochs / recipe.epochs
        return [f"epochs={epochs}", f"warmup_epochs={warmup:.3g}", f"seed={self.seed}"]


def load(name: str) -> Plan:
    """An experiment of the package by its name, or one of yours by its path, which ends in .yaml."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        with as_usage_error(OSError, UsageError, context="experiment"):
            require_regular(path)
            with as_usage_error(UnicodeDecodeError, context=f"{name!r} is no text in UTF-8"):
                text = path.read_text(encoding="utf-8")
        return read(text, path.stem, path.parent)
    folder = files("flopping.lab.experiment")
    names = sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))
    if name not in names:
        near = get_close_matches(name, names, n=3, cutoff=0.4) or names
        raise UsageError(f"no experiment is called {name!r}; there is {', '.join(near)}. A file of yours ends in .yaml")
    return read(folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8"), name, None)


def read(text: str, name: str, folder: Path | None) -> Plan:
    """A plan from the text of its file; recipes of yours lie beside it."""
    with as_usage_error(UsageError, context=f"experiment {name!r}"):
        content = parse_yaml(text)
        if not isinstance(content, Mapping) or not isinstance(content.get("pairs"), list):
            raise UsageError(f"an experiment is a table with title, about, and a list of pairs, got {content!r}")
        pairs = [build(Pair, row, "a pair") for row in content["pairs"]]
        if folder is not None:
            pairs = [Pair(str(folder / p.recipe) if p.recipe.endswith(".yaml") else p.recipe, p.seeds) for p in pairs]
        plan = build(Plan, {"name": name, **content, "pairs": pairs}, "an experiment")
        names = [pair.name for pair in pairs if pair.content]  # recipes that can't be read are refused now
        if len(set(names)) < len(names):
            raise UsageError(f"each recipe makes one pair, got {', '.join(names)}")
    return plan
