"""Time of equivariant layers against ordinary ones of the same width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.cost.timing import interleave
from flopping.errors import as_usage_error
from flopping.features import Feature, Layout
from flopping.groups import Group, flop

BATCH, IMAGE, PATCH = 8, 224, 16
TOKENS = (IMAGE // PATCH) ** 2 + 1  # with a class token: 8 x 197 = 1576 rows
GOALS_FOR = 768, flop


@dataclass(frozen=True)
class Pair:
    """An ordinary layer and its equivariant twin, and the speed-up that the twin must reach, by mode."""

    name: str
    ordinary: nn.Module
    equivariant: nn.Module
    packed: Tensor
    feature: Tensor | Feature
    bars: dict[str, float]


@dataclass(frozen=True)
class Result:
    """Medians of one pair in one mode; speed-up is ordinary time over equivariant time."""

    name: str
    mode: str
    ordinary_ms: float
    equivariant_ms: float
    speedup: float
    bar: float | None

    @property
    def met(self) -> bool | None:
        return None if self.bar is None else self.speedup >= self.bar


def pairs(width: int = 768, group: Group = flop) -> list[Pair]:
    """The layers of a ViT of this width; every head has 64 channels."""
    if width < 64 or width % 64:
        raise ValueError(f"heads have 64 channels, so the width is a multiple of 64, got {width}")
    layout = Layout.regular(group, width)
    hidden = layout * 4

    def tokens(of: Layout) -> tuple[Tensor, Feature]:
        packed = torch.randn(BATCH, TOKENS, of.dim)
        return packed, tuple(part.contiguous() for part in of.split(packed))

    narrow, wide = tokens(layout), tokens(hidden)
    image = torch.randn(BATCH, 3, IMAGE, IMAGE)
    block = Block(width, width // 64, qkv_bias=True, init_values=1e-4)
    twin = fnn.TransformerBlock(layout, width // 64, qkv_bias=True, init_values=1e-4)
    patch, folded = PatchEmbed(IMAGE, PATCH, 3, width), fnn.PatchEmbed(layout, IMAGE, PATCH)
    norm = nn.LayerNorm(width, eps=1e-6)
    linear, blocks = nn.Linear(width, 4 * width), fnn.Linear(layout, hidden)
    as_fast = {"compiled": 1 / 1.15}  # nothing to save here: at most 15 % slower
    return [
        Pair("Linear", linear, blocks, *narrow, {"eager": 1.8, "compiled": 1.8}),
        Pair("Mlp", Mlp(width, 4 * width), fnn.Mlp(layout, hidden), *narrow, {"compiled": 1.7}),
        Pair("Block", block, twin, *narrow, {"compiled": 1.6}),
        Pair("PatchEmbed", patch, folded, image, image, {"eager": 1.4, "compiled": 1.4}),
        Pair("LayerNorm", norm, fnn.LayerNorm(layout), *narrow, as_fast),
        Pair("GELU", nn.GELU(), fnn.Activation(hidden), *wide, as_fast),
    ]


def bench_layers(
    width: int = 768,
    group: Group = flop,
    modes: tuple[str, ...] = ("eager", "compiled"),
    repeats: int = 50,
    progress: Callable[[], object] | None = None,
) -> Iterator[Result]:
    """Time every pair, all layers of one mode interleaved in one run, without gradients."""
    for mode in modes:
        with as_usage_error(ValueError, context=f"width {width}"):
            table = pairs(width, group)
        functions: dict[str, Callable[[], object]] = {}
        for pair in table:
            functions[f"{pair.name} ordinary"] = _call(pair.ordinary.eval(), pair.packed, mode)
            functions[f"{pair.name} equivariant"] = _call(pair.equivariant.eval(), pair.feature, mode)
        with torch.no_grad():
            timings = interleave(functions, repeats, progress=lambda _: progress and progress())
        for pair in table:
            bar = pair.bars.get(mode) if (width, group) == GOALS_FOR else None
            x, e = timings[f"{pair.name} ordinary"], timings[f"{pair.name} equivariant"]
            yield Result(pair.name, mode, 1e3 * x.median, 1e3 * e.median, x.interval_over(e).value, bar)


def caption(width: int, repeats: int) -> str:
    """What the columns of the results mean, and which tensors were used."""
    return (
        f"Medians of {repeats} rounds, in which all layers run in turn. The speed-up is the median of the ratios"
        " ordinary / equivariant of each round, which is not quite the ratio of the medians. Goals are set for width"
        f" {GOALS_FOR[0]} and {GOALS_FOR[1]}. Float32, no gradients; tokens are {BATCH} x {TOKENS} x {width} (GELU:"
        f" {4 * width}), images {BATCH} x 3 x {IMAGE} x {IMAGE}."
    )


def _call(module: nn.Module, x: Tensor | Feature, mode: str) -> Callable[[], object]:
    function = torch.compile(module, fullgraph=True) if mode == "compiled" else module
    return lambda: function(x)
