"""Time of equivariant layers against ordinary ones of the same width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from flopping import nn as fnn
from flopping.cost.timing import Timing, interleave
from flopping.errors import UsageError
from flopping.features import Feature, Layout
from flopping.functional.operation import allow_graphs
from flopping.functional.product import products_by_onednn
from flopping.groups import flop
from flopping.machine import onednn_is_faster

BATCH, WIDTH, IMAGE, PATCH = 8, 768, 224, 16
TOKENS = (IMAGE // PATCH) ** 2 + 1  # with a class token: 8 x 197 = 1576 rows
MODES = ("eager", "compiled", "training")
"""Without gradients, eager and compiled; or forward and backward, compiled."""
NO_LOSS = 0.9
"""The least speed-up of convolutions that are too narrow to gain anything."""
# channels and height of a map: the least speed-up without gradients, and in a training step
CONVOLUTIONS: dict[tuple[int, int], tuple[float, float]] = {
    (64, 56): (1.25, NO_LOSS),
    (128, 28): (1.5, 1.25),
    (256, 14): (1.5, 1.45),
    (512, 7): (1.5, 1.45),
    (64, 32): (NO_LOSS, NO_LOSS),
    (64, 16): (NO_LOSS, NO_LOSS),
    (32, 32): (NO_LOSS, NO_LOSS),
}


@dataclass(frozen=True)
class Case:
    """A layer and what it gets."""

    layer: nn.Module
    x: Tensor | Feature

    def prepare(self, mode: str) -> Callable[[], object]:
        """The function that is timed."""
        training = mode == "training"
        function = self.layer.train(training)
        run = function if mode == "eager" else torch.compile(function, fullgraph=True, dynamic=False)
        if not training:
            return torch.no_grad()(lambda: run(self.x))
        inputs = [part.detach().requires_grad_() for part in _tensors(self.x)]
        given = inputs[0] if isinstance(self.x, Tensor) else tuple(inputs)
        wanted = [*inputs, *self.layer.parameters()]
        gradients = [torch.randn_like(part) for part in _tensors(function(given))]
        return lambda: torch.autograd.grad(_tensors(run(given)), wanted, gradients)


@dataclass(frozen=True)
class Pair:
    """An ordinary layer in the ways in which it may run, its equivariant twin, and goals of the speed-up by mode.

    The twin is compared with the fastest of the ordinary ones.
    """

    name: str
    ordinary: Sequence[Case]
    equivariant: Case
    goals: dict[str, float]
    modes: tuple[str, ...] = ("eager", "compiled")


@dataclass(frozen=True)
class Result:
    """Medians of one pair in one mode; speed-up is ordinary time over equivariant time, with its 95 % interval."""

    name: str
    mode: str
    ordinary_ms: float
    equivariant_ms: float
    speedup: float
    low: float
    high: float
    goal: float | None

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.speedup >= self.goal


def transformer_pairs() -> list[Pair]:
    """The layers of a ViT, every head with 64 channels."""
    layout = Layout.regular(flop, WIDTH)
    hidden = layout * 4

    def pair(name: str, ordinary: nn.Module, equivariant: nn.Module, of: Layout | None, **goals: float) -> Pair:
        x = torch.randn(BATCH, 3, IMAGE, IMAGE) if of is None else torch.randn(BATCH, TOKENS, of.dim)
        feature = x if of is None else tuple(part.contiguous() for part in of.split(x))
        return Pair(name, [Case(ordinary, x)], Case(equivariant, feature), goals)

    block = Block(WIDTH, WIDTH // 64, qkv_bias=True, init_values=1e-4)
    twin = fnn.TransformerBlock(layout, WIDTH // 64, qkv_bias=True, init_values=1e-4)
    patch, folded = PatchEmbed(IMAGE, PATCH, 3, WIDTH), fnn.PatchEmbed(layout, IMAGE, PATCH)
    norm = nn.LayerNorm(WIDTH, eps=1e-6)
    linear, blocks = nn.Linear(WIDTH, 4 * WIDTH), fnn.Linear(layout, hidden)
    as_fast = 1 / 1.15  # nothing to save here: at most 15 % slower
    return [
        pair("Linear", linear, blocks, layout, eager=1.8, compiled=1.8),
        pair("Mlp", Mlp(WIDTH, 4 * WIDTH), fnn.Mlp(layout, hidden), layout, compiled=1.7),
        pair("Block", block, twin, layout, compiled=1.6),
        pair("PatchEmbed", patch, folded, None, eager=1.4, compiled=1.4),
        pair("LayerNorm", norm, fnn.LayerNorm(layout), layout, compiled=as_fast),
        pair("GELU", nn.GELU(), fnn.Activation(hidden), hidden, compiled=as_fast),
    ]


def convolution_pairs() -> list[Pair]:
    """3 x 3 convolutions against torch's, which run on maps `(B, C, H, W)` in both of torch's memory formats."""
    found = []
    for (channels, size), least in CONVOLUTIONS.items():
        layout = Layout.regular(flop, channels)
        maps = torch.randn(BATCH, channels, size, size)
        feature = tuple(part.contiguous() for part in layout.split(maps.permute(0, 2, 3, 1)))
        ordinary = [
            Case(nn.Conv2d(channels, channels, 3, padding=1).to(memory_format=form), maps.to(memory_format=form))
            for form in (torch.contiguous_format, torch.channels_last)
        ]
        modes = ("compiled", "training")
        twin = Case(fnn.Conv2d(layout, layout, 3, padding=1), feature)
        found.append(Pair(f"Conv2d {channels}@{size}", ordinary, twin, dict(zip(modes, least, strict=True)), modes))
    return found


@dataclass(frozen=True)
class Run:
    """What runs interleaved: the pairs of one kind in one mode."""

    mode: str
    pairs: Sequence[Pair]
    by_onednn: bool
    """Whether oneDNN multiplies in our layers."""


def select_runs(only: Sequence[str] = ()) -> list[Run]:
    """All runs, or those with pairs whose names begin so.

    torch computes ordinary convolutions by oneDNN and ordinary linear layers by MKL; ours do the same here.
    """
    tables = [(transformer_pairs(), False), (convolution_pairs(), onednn_is_faster())]
    names = [pair.name for table, _ in tables for pair in table]
    starts = tuple(name.lower() for name in only) or ("",)
    found = [
        Run(mode, pairs, by_onednn)
        for mode in MODES
        for table, by_onednn in tables
        if (pairs := [pair for pair in table if mode in pair.modes and pair.name.lower().startswith(starts)])
    ]
    if not found:
        raise UsageError(f"no layer is called {', '.join(only)}; there are {', '.join(names)}")
    return found


def bench_layers(
    runs: Sequence[Run], repeats: int = 50, progress: Callable[[], object] = lambda: None
) -> Iterator[Result]:
    """Time all pairs of each run; `progress` is called after every round."""
    allow_graphs(16 * sum(len(run.pairs) for run in runs))
    for run in runs:
        with products_by_onednn(run.by_onednn):
            timings = _time(run.pairs, run.mode, repeats, progress)
        for pair in run.pairs:
            yield _compare(pair, run.mode, timings)


def _time(pairs: Sequence[Pair], mode: str, repeats: int, progress: Callable[[], object]) -> dict[str, Timing]:
    functions: dict[str, Callable[[], object]] = {}
    for pair in pairs:
        for number, case in enumerate(pair.ordinary):
            functions[f"{pair.name} {number}"] = case.prepare(mode)
        functions[pair.name] = pair.equivariant.prepare(mode)
    return interleave(functions, repeats, progress=lambda _: progress())


def _compare(pair: Pair, mode: str, timings: dict[str, Timing]) -> Result:
    x = min((timings[f"{pair.name} {number}"] for number in range(len(pair.ordinary))), key=lambda each: each.median)
    e = timings[pair.name]
    return Result(pair.name, mode, 1e3 * x.median, 1e3 * e.median, *x.interval_over(e), pair.goals.get(mode))


def _tensors(x: Tensor | Feature) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x)


def caption(repeats: int) -> str:
    """What the columns of the results mean, and which tensors were used."""
    return (
        f"Medians of {repeats} rounds, in which all layers run in turn. The speed-up is the median of the ratios"
        " ordinary / equivariant of each round, which is not quite the ratio of the medians, with its 95 % interval."
        f" Float32; tokens are {BATCH} x {TOKENS} x {WIDTH} (GELU: {4 * WIDTH}), images {BATCH} x 3 x {IMAGE} x"
        f" {IMAGE}. Conv2d C@S is 3 x 3 on {BATCH} x C x S x S, against the faster of torch's two memory formats;"
        " training is forward and backward. On CPUs where it is faster, oneDNN multiplies in Conv2d, as it does in"
        " torch's."
    )
