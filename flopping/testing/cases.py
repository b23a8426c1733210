"""One example of every layer for every group it supports: what `flopping verify` and the tests run through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.features import Feature, Layout
from flopping.functional.grid import Grid
from flopping.groups import Group, flop, grid_groups, rot180
from flopping.testing import randomize_


@dataclass(frozen=True)
class Shape:
    """The sizes that a case is built with."""

    name: str
    group: Group
    grid: Grid
    patch: Grid
    extra: int

    @property
    def layout(self) -> Layout:
        copies = 4 if self.group.order < 8 else 2
        return Layout.regular(self.group, copies * self.group.order + self.extra, extra=self.extra)

    @property
    def image(self) -> Grid:
        return self.grid[0] * self.patch[0], self.grid[1] * self.patch[1]


def shapes(group: Group) -> tuple[Shape, ...]:
    """Even and odd widths, rectangles where the group allows them, extra invariant channels."""
    if group.swaps_axes:
        return Shape("even", group, (4, 4), (4, 4), 0), Shape("odd", group, (3, 3), (5, 5), 2)
    return Shape("even", group, (4, 6), (2, 4), 0), Shape("odd", group, (3, 5), (4, 3), 2)


SUBGROUPS = {"flipflop": flop, "rot90": rot180, "octic": flop}
"""A group to step down to; the others have none but the trivial one and stay."""

Build = Callable[[Shape], nn.Module]
POOL = {"even": (4, 2, 1), "odd": (3, 1, 1)}
"""Kernel, stride and padding; the maps of all cases have even sizes."""

# name: (kind of input, how to build it); what gives up the group has nothing to check
LAYERS: dict[str, tuple[str, Build]] = {
    "Linear": ("rows", lambda s: fnn.Linear(s.layout, s.layout * 2)),
    "Activation": ("rows", lambda s: fnn.Activation(s.layout)),
    "LayerNorm": ("rows", lambda s: fnn.LayerNorm(s.layout)),
    "Affine": ("rows", lambda s: fnn.Affine(s.layout)),
    "LayerScale": ("rows", lambda s: fnn.LayerScale(s.layout)),
    "Dropout": ("rows", lambda s: fnn.Dropout(s.layout, 0.3)),
    "DropPath": ("tokens", lambda s: fnn.DropPath(s.layout, 0.3)),
    "GatedActivation": ("rows", lambda s: fnn.GatedActivation(s.layout * 0.5)),
    "Mlp": ("rows", lambda s: fnn.Mlp(s.layout)),
    "Mlp (gated)": ("rows", lambda s: fnn.Mlp(s.layout, function=F.silu, gated=True)),
    "Attention": ("tokens", lambda s: fnn.Attention(s.layout, num_heads=2)),
    "Attention (qk_norm)": ("tokens", lambda s: fnn.Attention(s.layout, num_heads=1, qk_norm=True)),
    "Attention (rotary)": (
        "tokens",
        lambda s: fnn.Attention(s.layout, num_heads=1, rope=fnn.RotaryEmbed(s.layout, 1, s.grid)),
    ),
    "TransformerBlock": ("tokens", lambda s: fnn.TransformerBlock(s.layout, num_heads=2)),
    "PatchEmbed": ("image", lambda s: fnn.PatchEmbed(s.layout, s.image, s.patch)),
    "PosEmbed": ("tokens", lambda s: fnn.PosEmbed(s.layout, s.grid)),
    "ClassToken": ("tokens", lambda s: fnn.ClassToken(s.layout)),
    "RegisterTokens": ("tokens", lambda s: fnn.RegisterTokens(s.layout, 3)),
    "DepthwiseConv2d": ("map", lambda s: fnn.DepthwiseConv2d(s.layout, kernel_size=5)),
    "Downsample": ("map", lambda s: fnn.Downsample(s.layout, s.layout * 2, 2 if s.name == "even" else 3)),
    "Conv2d": ("map", lambda s: fnn.Conv2d(s.layout, s.layout * 2, *POOL[s.name])),
    "BatchNorm": ("map", lambda s: fnn.BatchNorm(s.layout)),
    "GroupNorm": ("map", lambda s: fnn.GroupNorm(s.layout, num_groups=2)),
    "MaxPool2d": ("map", lambda s: fnn.MaxPool2d(s.layout, *POOL[s.name], F.relu)),
    "AvgPool2d": ("map", lambda s: fnn.AvgPool2d(s.layout, *POOL[s.name])),
    "GlobalPool": ("map", lambda s: fnn.GlobalPool(s.layout, "avg" if s.name == "even" else "max")),
    "Upsample": ("map", lambda s: fnn.Upsample(s.layout, 2, mode="nearest" if s.name == "even" else "bilinear")),
    "SqueezeExcite": ("map", lambda s: fnn.SqueezeExcite(s.layout)),
    "TokenMix": ("tokens", lambda s: fnn.TokenMix(s.layout, s.grid)),
    "OrientedBias": ("tokens", lambda s: fnn.OrientedBias(s.layout, s.grid)),
    "Orient": ("tokens", lambda s: fnn.Orient(s.layout, s.grid)),
    "ToInvariant": (
        "tokens",
        lambda s: fnn.ToInvariant(s.layout, invariants="linear" if s.name == "even" else "power_spectrum"),
    ),
    "MaxFilter": ("tokens", lambda s: fnn.MaxFilter(s.layout, references=3)),
    "Polynomials": ("tokens", lambda s: fnn.Polynomials(s.layout)),
    "AbsToInvariant": ("tokens", lambda s: fnn.AbsToInvariant(s.layout)),
    "Restrict": ("tokens", lambda s: fnn.Restrict(s.layout, SUBGROUPS.get(s.group.name, s.group))),
    "InvariantHead": ("tokens", lambda s: fnn.InvariantHead(s.layout, num_classes=5)),
}


@dataclass(frozen=True)
class Case:
    """A layer, a group and a shape; `make` builds the layer with random parameters, and an input."""

    layer: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.layer}-{self.shape.group}-{self.shape.name}"

    @property
    def grid(self) -> Grid | None:
        """How the tokens of the input lie; images and maps show it by themselves, and rows have no places."""
        return self.shape.grid if LAYERS[self.layer][0] == "tokens" else None

    def make(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[nn.Module, Tensor | Feature]:
        kind, build = LAYERS[self.layer]
        generator = torch.Generator().manual_seed(seed)
        module = randomize_(build(self.shape).to(dtype), seed)
        (h, w), layout = self.shape.grid, self.shape.layout
        if kind == "image":
            return module, torch.randn(2, 3, *self.shape.image, generator=generator, dtype=dtype)
        if kind == "map":  # a multiple of every downsampling factor
            return module, layout.random(2, 2 * h * 3, 2 * w * 3, generator=generator, dtype=dtype)
        leading = (7,) if kind == "rows" else (3, h * w)
        return module, layout.random(*leading, generator=generator, dtype=dtype)


def cases(group: Group | None = None, layer: str | None = None) -> Iterator[Case]:
    """All cases of all groups of the pixel grid but the trivial one, or of one group, or of one layer."""
    groups = [g for g in grid_groups().values() if g.order > 1] if group is None else [group]
    for g in groups:
        for name in LAYERS:
            if layer in (None, name, name.partition(" ")[0]):
                yield from (Case(name, shape) for shape in shapes(g))
