"""Convolution of maps, at the cost that the group leaves: half of the multiply-adds for flop, a quarter for flipflop.

A group maps the taps of a window onto each other. Shifted maps are added and subtracted accordingly, which gives
maps of every parity; what is left of the filter is one ordinary convolution per parity. For flop and a kernel of 3 an
even channel gives x and left + right, which are even, and left - right, which is odd; a 3 x 1 convolution follows.

Legend: B batch, H W places, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout
from flopping.functional.grid import Grid, free_values, symmetric_functions
from flopping.functional.window import Window, mirrored_axes
from flopping.groups import Group
from flopping.groups.sums import Sums, combine, sums_of

Form = Literal["folded", "expanded"]


def choose_form(in_layout: Layout, out_layout: Layout, window: Window) -> Form:
    """The rule: which form a convolution takes where nobody says. This is its only place.

    It is provisional, and always "folded". Measured so far, relative to the dense layer, on two cores in float32:
    forward and compiled "folded" reaches 1.32 (64 channels at 56 x 56) to 1.65 (256 at 14 x 14); a training step
    1.44 to 1.52 (256 channels), 1.22 to 1.28 (128), 0.85 to 0.91 (64), 0.65 (32 at 32 x 32). "Expanded" reached 0.64 to
    0.72 on narrow layers, so no width is known where it clearly wins. Narrow layers have to be measured again.
    """
    return "folded"


@dataclass(frozen=True)
class ConvPlan:
    """Which maps a convolution reads and how its parameters make filters. No data.

    The weight of irrep j of the result is `(copies, folded channels / groups, *rest)`. Folded channels are ordered
    (irrep of the input, free tap, copy). `rest` is the kernel along the axes that the group does not touch. Every free
    tap is a tap of the dense filter; the others are its images, negated or not, or zero.

    >>> from flopping import flop
    >>> width = Layout.regular(flop, 8)
    >>> ConvPlan(width, width, Window.of(3)).weight_shapes
    ((4, 12, 3, 1), (4, 12, 3, 1))
    """

    in_layout: Layout
    out_layout: Layout
    window: Window
    groups: int = 1
    grid: Grid = field(init=False, compare=False)
    """The taps that are folded."""
    rest: Grid = field(init=False, compare=False)
    """The kernel that is left."""
    sources: tuple[tuple[tuple[int, int], ...], ...] = field(init=False, compare=False)
    """For each irrep of the result what it reads: (irrep of the input, parity of the filter)."""
    folds: tuple[tuple[tuple[int, ...], Sums | None], ...] = field(init=False, compare=False)
    """For each irrep of the input the parity of each folded map, and the sums of shifted maps that give them."""

    def __post_init__(self) -> None:
        group, window = self.in_layout.group, self.window
        touched = (0, 1) if group.swaps_axes else mirrored_axes(group)
        kernel = window.kernel
        grid = (kernel[0] if 0 in touched else 1, kernel[1] if 1 in touched else 1)
        free = [free_values(group, grid, k) for k in range(len(group.irreps))]
        counts = self.in_layout.multiplicities
        irreps = range(len(group.irreps))
        sources = tuple(
            tuple((i, k) for i in irreps if counts[i] and free[k := group.irrep_product(i, j)]) if m else ()
            for j, m in enumerate(self.out_layout.multiplicities)
        )
        folds = []
        for i in irreps:
            parities = sorted({k for pairs in sources for source, k in pairs if source == i})
            folds.append((tuple(k for k in parities for _ in range(free[k])), _fold(group, grid, tuple(parities))))
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "rest", (kernel[0] // grid[0], kernel[1] // grid[1]))
        object.__setattr__(self, "sources", sources)
        object.__setattr__(self, "folds", tuple(folds))

    @property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The weight of each irrep of the result; without rows or columns where there is none."""
        group, counts = self.in_layout.group, self.in_layout.multiplicities
        return tuple(
            (m, sum(counts[i] * free_values(group, self.grid, k) for i, k in pairs) // self.groups, *self.rest)
            for m, pairs in zip(self.out_layout.multiplicities, self.sources, strict=True)
        )

    def fan_in(self, irrep: int) -> int:
        """How many taps of the dense filter a channel of this irrep reads that are not zero by symmetry."""
        group, counts = self.in_layout.group, self.in_layout.multiplicities
        taps = [int(symmetric_functions(group, self.grid, k).any(-1).sum()) for k in range(len(group.irreps))]
        return sum(counts[i] * taps[k] for i, k in self.sources[irrep]) * prod(self.rest) // self.groups

    def is_sliced(self, axis: int) -> bool:
        """Whether stride and padding along an axis are done by slices; else the convolution does them."""
        return self.grid[axis] > 1 or (self.rest[axis] == 1 and not self.window.padding[axis])


@lru_cache
def _fold(group: Group, grid: Grid, parities: tuple[int, ...]) -> Sums | None:
    """The sums of shifted maps that follow the given parities; None where nothing is added."""
    rows = [row for k in parities for row in symmetric_functions(group, grid, k)[:, 0].T.tolist()]
    return sums_of(rows) if rows and prod(grid) > 1 else None


@lru_cache
def _spread(group: Group, grid: Grid, parity: int) -> tuple[tuple[int, ...], Sums]:
    """How free taps fill a filter: the places that are not zero, and their values as sums of one term."""
    matrix = symmetric_functions(group, grid, parity)[:, 0]
    places = tuple(matrix.any(-1).nonzero().flatten().tolist())
    return places, sums_of(matrix[list(places)].tolist())


def folded_conv2d(x: Feature, weight: Sequence[Tensor | None], bias: Tensor | None, plan: ConvPlan) -> Feature:
    """Add and subtract shifted maps, then one convolution per irrep of the result."""
    maps = [_folded_maps(part, i, plan) for i, part in enumerate(x)]
    found: list[Tensor | None] = []
    for j, (pairs, filters) in enumerate(zip(plan.sources, weight, strict=True)):
        if filters is None:
            found.append(None)
            continue
        joined_BHWC = _join([part for i, k in pairs for part in maps[i][k]], plan.groups)
        found.append(_convolve(joined_BHWC, filters, bias if j == 0 else None, plan))
    return _fill(found, plan.out_layout)


def expanded_conv2d(x: Feature, weight: Sequence[Tensor | None], bias: Tensor | None, plan: ConvPlan) -> Feature:
    """Write the filters out and run one dense convolution on joined channels: no saving, and the same result."""
    window, groups, out = plan.window, plan.groups, plan.out_layout
    joined_BHWC = _join([part for part in x if part.shape[-1]], groups)
    blocks = [dense_filters(w, j, plan) for j, w in enumerate(weight) if w is not None]
    filters = torch.cat([block.unflatten(0, (groups, -1)) for block in blocks], 1).flatten(0, 1)
    y_BCHW = F.conv2d(
        joined_BHWC.permute(0, 3, 1, 2), filters, None, window.stride, window.padding, window.dilation, groups
    )
    y_BHWGC = y_BCHW.permute(0, 2, 3, 1).unflatten(-1, (groups, -1))
    found: list[Tensor | None] = []
    start = 0
    for w, m in zip(weight, out.multiplicities, strict=True):
        width = 0 if w is None else m // groups
        found.append(y_BHWGC.narrow(-1, start, width).flatten(-2) if width else None)
        start += width
    if bias is not None and found[0] is not None:
        found[0] = found[0] + bias
    return _fill(found, out)


FORMS = {"folded": folded_conv2d, "expanded": expanded_conv2d}
"""Both forms compute the same."""


def dense_filters(weight: Tensor, irrep: int, plan: ConvPlan) -> Tensor:
    """The filters of one irrep of the result `(copies, channels / groups, kh, kw)`, written out from free taps.

    Within a group of channels all irreps of the input stand one after another.
    """
    group = plan.in_layout.group
    counts = [m // plan.groups for m in plan.in_layout.multiplicities]
    read = dict(plan.sources[irrep])
    blocks, start = [], 0
    for i, m in enumerate(counts):
        shape = (len(weight), m, *plan.window.kernel)
        if i not in read:
            blocks.append(weight.new_zeros(shape))
            continue
        free = free_values(group, plan.grid, read[i])
        taps = weight.narrow(1, start, free * m).unflatten(1, (free, m)).unbind(1)
        start += free * m
        places, sums = _spread(group, plan.grid, read[i])
        values = dict(zip(places, combine(taps, sums), strict=True))
        zero = torch.zeros_like(taps[0])
        every = torch.stack([values.get(p, zero) for p in range(prod(plan.grid))], 2)
        # folded rows and columns, then those that are left: either axis has the one or the other
        blocks.append(every.unflatten(2, plan.grid).transpose(3, 4).reshape(shape))
    return torch.cat(blocks, 1)


def _folded_maps(part: Tensor, i: int, plan: ConvPlan) -> dict[int, list[Tensor]]:
    """The maps that irrep i gives, by their parity."""
    parities, sums = plan.folds[i]
    if not parities:
        return {}
    shifted = _shifted_maps(part, plan)
    found: dict[int, list[Tensor]] = {}
    for parity, value in zip(parities, shifted if sums is None else combine(shifted, sums), strict=True):
        found.setdefault(parity, []).append(value)
    return found


def _shifted_maps(part: Tensor, plan: ConvPlan) -> list[Tensor]:
    """What each folded tap reads, `(B, H, W, C)`, in the order of the grid."""
    window = plan.window
    pads = [p if plan.is_sliced(axis) else 0 for axis, p in enumerate(window.padding)]
    if any(pads):
        part = F.pad(part, (0, 0, pads[1], pads[1], pads[0], pads[0]))
    rows, columns = (
        [_slice(t, plan.grid[axis], window.stride[axis], window.dilation[axis]) for t in range(plan.grid[axis])]
        if plan.is_sliced(axis)
        else [slice(None)]
        for axis in (0, 1)
    )
    whole = slice(None)
    return [part if r == whole and c == whole else part[:, r, c] for r in rows for c in columns]


def _slice(tap: int, taps: int, stride: int, dilation: int) -> slice:
    """Where one of the taps stands as the window moves."""
    behind = dilation * (taps - 1 - tap)
    return slice(dilation * tap or None, -behind or None, None if stride == 1 else stride)


def _join(parts: Sequence[Tensor], groups: int) -> Tensor:
    """Parts one after another, within each group of channels."""
    if len(parts) == 1:
        return parts[0]
    if groups == 1:
        return torch.cat(list(parts), -1)
    return torch.cat([part.unflatten(-1, (groups, -1)) for part in parts], -1).flatten(-2)


def _convolve(x: Tensor, filters: Tensor, bias: Tensor | None, plan: ConvPlan) -> Tensor:
    """The convolution that is left, with stride and padding along the axes that were not sliced."""
    sliced = [plan.is_sliced(axis) for axis in (0, 1)]
    if plan.groups == 1 and all(sliced):  # every axis is sliced: what is left is 1 x 1
        return F.linear(x, filters.flatten(1), bias)
    window = plan.window
    stride, dilation = (
        [1 if s else n for s, n in zip(sliced, of, strict=True)] for of in (window.stride, window.dilation)
    )
    padding = [0 if s else p for s, p in zip(sliced, window.padding, strict=True)]
    y_BCHW = F.conv2d(x.permute(0, 3, 1, 2), filters, bias, stride, padding, dilation, plan.groups)
    return y_BCHW.permute(0, 2, 3, 1)


def _fill(found: Sequence[Tensor | None], layout: Layout) -> Feature:
    """The parts of a result; what nothing was computed for is zero, or has no channels."""
    like = next(part for part in found if part is not None)
    return tuple(
        F.pad(like.narrow(-1, 0, 0), (0, m)) if part is None else part
        for part, m in zip(found, layout.multiplicities, strict=True)
    )
