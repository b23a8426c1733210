"""The plan of an experiment: which networks are trained, how often, and for how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated

from annotated_types import MaxLen, MinLen
from pydantic import StringConstraints
from pydantic.dataclasses import dataclass

from flopping.errors import UsageError, as_usage_error
from flopping.files import STRICT, read_text
from flopping.models.paper import ordinary_name
from flopping.training import recipe as recipes
from flopping.training.recipe import Count, GroupName, Recipe
from flopping.training.schema import build, parse_yaml, read_packaged


@dataclass(config=STRICT, frozen=True)
class Arm:
    """A network of each pair, and how it is trained. Others are compared with the first arm."""

    name: Annotated[str, StringConstraints(pattern=r"^[\w-]+$"), "of its runs"]
    label: Annotated[str, "of its network, in tables; empty: the network's name"] = ""
    ordinary: Annotated[bool, "whether X takes the place of the recipe's network"] = False
    changes: Annotated[list[str], "of the recipe, as model_args.group=octic"] = dataclasses.field(default_factory=list)
    fill_time: Annotated[bool, "whether it is trained for as many epochs as fit into the time of the first arm"] = False
    note: Annotated[str, "what to say of its epochs"] = ""
    seeds: Annotated[Count | None, "how many runs; null: as many as the pair has"] = None


X_AND_E = [
    Arm("x", ordinary=True),
    Arm("e", note="as many as X"),
    Arm("e-time", note="in the time of X", fill_time=True),
]


@dataclass(config=STRICT, frozen=True)
class Pair:
    """X and E(X), trained by one recipe with several seeds. The recipe's network is E(X)."""

    recipe: Annotated[str, "its name, or a file of yours"]
    seeds: Annotated[Count, "how many runs of each network"]

    @cached_property
    def content(self) -> Recipe:
        found = recipes.load(self.recipe)
        if ordinary_name(found.model) == found.model:
            raise UsageError(f"recipe {self.recipe!r} of an experiment names E(X) as its model, got {found.model!r}")
        return found

    @property
    def name(self) -> str:
        return Path(self.recipe).name.removesuffix(".yaml")

    def model(self, arm: Arm) -> str:
        return ordinary_name(self.content.model) if arm.ordinary else self.content.model

    def changed(self, arm: Arm) -> Recipe:
        return self.content.override(arm.changes)


@dataclass(config=STRICT, frozen=True)
class Plan:
    title: Annotated[str, "of the page"]
    about: Annotated[str, "what is trained on what"]
    pairs: Annotated[list[Pair], MinLen(1), "the networks"]
    name: Annotated[str, "by default that of the file"]
    arms: Annotated[list[Arm], MinLen(1), MaxLen(8), "what is made of each pair"] = dataclasses.field(
        default_factory=lambda: [*X_AND_E]
    )
    group: Annotated[GroupName, "test images are moved by all of its elements"] = "flop"

    @property
    def runs(self) -> list[Run]:
        """All runs in their order, seed by seed.

        >>> [run.name for run in load("cifar10").runs][:4]
        ['cifar10_vit-x-0', 'cifar10_vit-e-0', 'cifar10_vit-e-time-0', 'cifar10_vit-x-1']
        """
        return [
            Run(pair, arm, seed)
            for pair in self.pairs
            for seed in range(max(arm.seeds or pair.seeds for arm in self.arms))
            for arm in self.arms
            if seed < (arm.seeds or pair.seeds)
        ]


@dataclasses.dataclass(frozen=True)
class Run:
    pair: Pair
    arm: Arm
    seed: int

    @property
    def name(self) -> str:
        return f"{self.pair.name}-{self.arm.name}-{self.seed}"

    @property
    def model(self) -> str:
        return self.pair.model(self.arm)

    def changes(self, epochs: int) -> list[str]:
        """What is changed in the recipe; warm-up keeps its share of the epochs."""
        recipe = self.pair.content
        warmup = recipe.warmup_epochs * epochs / recipe.epochs
        return [*self.arm.changes, f"epochs={epochs}", f"warmup_epochs={warmup:.3g}", f"seed={self.seed}"]


def load(name: str) -> Plan:
    """An experiment of the package by its name, or one of yours by its path, which ends in .yaml."""
    path = Path(name)
    own = path.suffix in (".yaml", ".yml")
    with as_usage_error(UsageError, context=f"experiment {path.stem!r}"):
        content = parse_yaml(read_text(path) if own else read_packaged("flopping.lab.experiment", name, "experiment"))
        lists = content if isinstance(content, Mapping) else {}
        if not isinstance(lists.get("pairs"), list) or not isinstance(lists.get("arms", []), list):
            raise UsageError(f"an experiment is a table with title, about, and a list of pairs, got {content!r}")
        pairs = [build(Pair, row, "a pair") for row in content["pairs"]]
        if own:  # recipes of yours lie beside it
            pairs = [
                dataclasses.replace(p, recipe=str(path.parent / p.recipe)) if p.recipe.endswith(".yaml") else p
                for p in pairs
            ]
        arms = {"arms": [build(Arm, row, "an arm") for row in content["arms"]]} if "arms" in content else {}
        plan = build(Plan, {"name": path.stem, **content, "pairs": pairs, **arms}, "an experiment")
        for run in plan.runs:  # recipes that can't be read or changed are refused now
            with as_usage_error(UsageError, context=f"arm {run.arm.name!r}"):
                run.pair.content.override(run.changes(run.pair.content.epochs))
        recipe_names, arm_names = [pair.name for pair in pairs], [arm.name for arm in plan.arms]
        for kind, names in (("recipe makes one pair", recipe_names), ("arm has a name of its own", arm_names)):
            if len(set(names)) < len(names):
                raise UsageError(f"each {kind}, got {', '.join(names)}")
    return plan
