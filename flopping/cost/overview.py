"""The table of all networks: names, parameters and FLOPs, beside what the paper reports."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from importlib.resources import files
from typing import Any

import timm
from torch import nn

from flopping.cost.count import count
from flopping.cost.meta import build_on_meta
from flopping.models import ZOO, names_in_paper, registered_name
from flopping.models.paper import Published, published
from flopping.nn import DepthwiseConv2d

STORED = ("params", "constants", "flops", "macs", "linear_params")
"""The figures of a row that `networks.csv` holds, as tools/count_networks.py counted them: it takes three minutes."""
TOLERANCE = 0.005
"""FLOPs count as met up to this share above the paper's."""


@dataclass(frozen=True)
class Row:
    """A network: what it costs, and what was published."""

    paper: str | None
    name: str
    params: int
    constants: int
    """Zeros that our network builds in and the reference code stores, and counts, as parameters."""
    flops: float
    macs: float
    reported: Published | None
    linear_params: int | None = None
    """Parameters with the linear hand-off, the default of I(X), which is counted with |odd| as in the paper."""

    @property
    def group(self) -> str:
        return first_group(self.name)

    @property
    def family(self) -> str:
        """The architecture, as the paper calls it."""
        families = {"deit3": "ViT", "vit": "ViT", "resmlp": "ResMLP", "convnext": "ConvNeXt", "resnet": "ResNet"}
        return next((family for start, family in families.items() if self.name.startswith(start)), "others")

    @property
    def params_met(self) -> bool | None:
        """Whether the parameters are the published ones, at their rounding; constants counted as they did."""
        if self.reported is None or self.reported.params_m is None:
            return None
        counts, digits = (self.params, self.params + self.constants), self.reported.digits
        return self.reported.params_m in {round(n / 1e6, digits) for n in counts}

    @property
    def flops_met(self) -> bool | None:
        """Whether the FLOPs are the published ones at their rounding; of others than X, or fewer, or a little more."""
        if self.reported is None:
            return None
        giga, wanted, digits = self.flops / 1e9, self.reported.flops_g, self.reported.digits
        if self.reported.ordinary == self.reported.name:
            return round(giga, digits) == wanted
        return round(giga, digits) <= wanted or giga <= wanted * (1 + TOLERANCE)


def match_names(pattern: str = "*") -> dict[str, str | None]:
    """Registered names of our networks and of the paper's ordinary ones that fit a pattern, with the paper's names.

    >>> match_names("deit3_octic*_base*")
    {'deit3_octic_base_patch16_224': 'octic E(ViT-B)', 'deit3_octic_stepdown_base_patch16_224': 'octic S(ViT-B)'}
    """
    papers = names_in_paper()
    every = {name: papers.get(name) for name in [*papers, *ZOO]}
    if not set(pattern) & set("*?["):
        with suppress(ValueError):
            pattern = registered_name(pattern)  # a name of the paper in any spelling
    return {name: paper for name, paper in every.items() if fnmatch(name, pattern) or fnmatch(paper or "", pattern)}


def first_group(name: str) -> str:
    """The group that the first block of a network follows, by its registered name."""
    return ZOO[name].group if name in ZOO else "trivial"


def count_network(name: str, paper: str | None = None) -> Row:
    """What one network costs, from shapes alone. I(ViT) is counted with the |odd| hand-off, as the paper did.

    >>> count_network("deit3_flop_test_patch16_64").params
    158952
    """
    model = build_on_meta(lambda: timm.create_model(name))
    linear = None
    handoffs = ZOO[name].args.get("handoffs", {}) if name in ZOO else {}
    if "invariant" in handoffs.values() and first_group(name) == "flop":
        linear = _params(model)
        model = build_on_meta(lambda: timm.create_model(name, handoffs=dict.fromkeys(handoffs, "abs")))
    cost = count(lambda: model, model.pretrained_cfg["input_size"])
    # the middle line of antisymmetric depthwise filters
    constants = sum(layer.constant_taps for layer in model.modules() if isinstance(layer, DepthwiseConv2d))
    return Row(paper, name, _params(model), constants, cost.flops, cost.macs, _published(paper), linear)


def network_row(name: str, paper: str | None = None) -> Row:
    """The same as `count_network`, from the stored figures; a network that has none is counted.

    >>> network_row("deit3_flop_test_patch16_64") == count_network("deit3_flop_test_patch16_64")
    True
    """
    stored = stored_figures().get(name)
    return count_network(name, paper) if stored is None else Row(paper, name, reported=_published(paper), **stored)


@lru_cache
def stored_figures() -> dict[str, dict[str, Any]]:
    """What is stored, by registered names."""
    table = csv.DictReader(files(__package__).joinpath("networks.csv").read_text(encoding="utf-8").splitlines())
    return {row["name"]: {key: int(row[key]) if row[key] else None for key in STORED} for row in table}


def describe_columns(found: Sequence[Row], wide: bool) -> str:
    """What the columns mean, and what the figures don't show."""
    text = "Parameters in millions, FLOPs (paper's convention) in G for one image."
    if wide:
        text += (
            " MACs: multiply-adds. 'met': equal at the published rounding; FLOPs also if fewer, or at most"
            f" {TOLERANCE:.1%} more."
        )
    groups = sorted({row.group for row in found if row.paper} - {"flop", "trivial"})
    if groups:
        example = next(row.paper for row in found if row.group == groups[0] and row.paper)
        text += f' Names of networks that follow {" and ".join(groups)} begin with their group: "{example}".'
    linear = [f"{row.paper} {row.linear_params / 1e6:.1f}" for row in found if row.paper and row.linear_params]
    if linear:
        text += (
            " I(X) is counted with the |odd| hand-off, as in the paper; with the linear one, its default, it has"
            f" {', '.join(linear)}."
        )
    zeros = [f"{row.paper} {row.constants / 1e6:.2f}" for row in found if row.constants and row.reported]
    if zeros:
        text += f" The paper counts as parameters zeros that we don't store: {', '.join(zeros)}."
    return text


def _published(paper: str | None) -> Published | None:
    return published().get(paper or "")


def _params(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
