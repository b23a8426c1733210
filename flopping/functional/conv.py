"""Convolution of maps at a fraction of the multiply-adds: half for flop, a quarter for flipflop.

A group maps the taps of a window onto each other. Shifted maps are added and subtracted accordingly, which gives
maps of every irrep; what is left of the filter is one ordinary convolution per irrep. For flop and a kernel of 3 an
even channel gives x and left + right, which are even, and left - right, which is odd; a 3 x 1 convolution follows.

Legend: B batch, H W places, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout
from flopping.functional.basis import from_regular, to_regular
from flopping.functional.column_conv import conv2d, convolve_columns
from flopping.functional.grid import Grid, symmetric_functions
from flopping.functional.realize import realize
from flopping.functional.window import Window, mirrored_axes
from flopping.groups import Group
from flopping.groups.sums import Sums, combine, sums_of


@dataclass(frozen=True)
class ConvPlan:
    """Which maps a convolution reads and how its parameters make filters. No data.

    The weight of irrep j of the result is `(copies, folded channels / groups, *rest)`. Folded channels are ordered
    (irrep of the input, free tap, copy). `rest` is the kernel along the axes that the group does not touch. For irreps
    of one dimension every free tap is a tap of the dense filter; the others are its images, negated or not, or zero.
    For an irrep of complex type there are two such weights, stacked, as in `Linear`.

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
    sources: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    """For each irrep of the result which irreps of the input it reads."""
    folds: tuple[tuple[tuple[tuple[int, int], ...], Sums], ...] = field(init=False, compare=False)
    """For each irrep of the input (irrep of the result, component) of every folded map, and the sums that give them.

    They are sums over (component, tap): shifted maps of each component.
    """
    taps: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    """How many maps of irrep j a copy of irrep i gives: a row for each i."""
    spreads: dict[tuple[int, int, int], tuple[tuple[int, ...], Sums]] = field(init=False, compare=False)
    """By (i, j, component of j) how free taps fill a filter: see `_spread`."""

    def __post_init__(self) -> None:
        group, window = self.in_layout.group, self.window
        touched = (0, 1) if group.swaps_axes else mirrored_axes(group)
        kernel = window.kernel
        grid = (kernel[0] if 0 in touched else 1, kernel[1] if 1 in touched else 1)
        irreps = range(len(group.irreps))
        sources = tuple(
            tuple(i for i in irreps if self.in_layout.multiplicities[i] and len(filters_between(group, grid, i, j)))
            if m
            else ()
            for j, m in enumerate(self.out_layout.multiplicities)
        )
        folds = [_fold(group, grid, i, tuple(j for j in irreps if i in sources[j])) for i in irreps]
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "rest", (kernel[0] // grid[0], kernel[1] // grid[1]))
        object.__setattr__(self, "sources", sources)
        object.__setattr__(self, "folds", tuple(folds))
        # Stored here: a compiler would trace the functions that compute them into the graph.
        object.__setattr__(
            self, "taps", tuple(tuple(len(filters_between(group, grid, i, j)) for j in irreps) for i in irreps)
        )
        spreads = {
            (i, j, c): _spread(group, grid, i, j, c)
            for j in irreps
            for i in sources[j]
            for c in range(group.irreps[j].dim)
        }
        object.__setattr__(self, "spreads", spreads)

    @property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The weight of each irrep of the result; without rows or columns where there is none."""
        group, counts = self.in_layout.group, self.in_layout.multiplicities
        return tuple(
            (m * irrep.type.degree, sum(counts[i] * self.taps[i][j] for i in read) // self.groups, *self.rest)
            for j, (irrep, m, read) in enumerate(
                zip(group.irreps, self.out_layout.multiplicities, self.sources, strict=True)
            )
        )

    def fan_in(self, irrep: int) -> int:
        """The squared norm of a filter of this irrep whose free taps are all 1.

        For irreps of one dimension: how many taps of the dense filter are not zero by symmetry.
        """
        group, counts = self.in_layout.group, self.in_layout.multiplicities
        squares = {i: filters_between(group, self.grid, i, irrep)[:, 0].square().sum() for i in self.sources[irrep]}
        total = sum(counts[i] * round(float(square)) for i, square in squares.items())
        return total * group.irreps[irrep].type.degree * prod(self.rest) // self.groups

    def is_sliced(self, axis: int) -> bool:
        """Whether stride and padding along an axis are done by slices; else the convolution does them."""
        return self.grid[axis] > 1 or (self.rest[axis] == 1 and not self.window.padding[axis])


@cache
def filters_between(group: Group, grid: Grid, i: int, j: int) -> Tensor:
    """The filters on a grid that lead from irrep i to irrep j, `(free, d_j, d_i, places)` in float64.

    Followed by the matrices that commute with irrep j, they span all equivariant filters.

    >>> from flopping import octic
    >>> [len(filters_between(octic, (3, 3), 0, j)) for j in range(5)]  # what an invariant channel can become
    [3, 0, 1, 1, 2]
    """
    return torch.cat([_filters_of(group, grid, i, j, k) for k in range(len(group.irreps))])


@cache
def _filters_of(group: Group, grid: Grid, i: int, j: int, k: int) -> Tensor:
    """The filters whose taps are functions of irrep k.

    A channel of irrep i times such a function transforms by the product of i and k, of which this is the part of
    irrep j.
    """
    counts, basis = group.tensor_product(i, k)
    dims = [irrep.dim for irrep in group.irreps]
    with torch.device("cpu"):  # a cached value must not follow the caller's default device
        columns = torch.tensor(basis, dtype=torch.float64).split([n * d for n, d in zip(counts, dims, strict=True)], 1)
        copies = columns[j].unflatten(0, (dims[i], dims[k])).unflatten(2, (dims[j], counts[j]))
        # functions that differ by what commutes with irrep k are one copy of it
        functions = symmetric_functions(group, grid, k)[..., :: group.irreps[k].type.degree]
        return torch.einsum("abcm,pbn->mncap", copies, functions).flatten(0, 1)


@lru_cache
def _fold(group: Group, grid: Grid, i: int, irreps: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], Sums]:
    """What irrep i gives for some irreps: (irrep, component) of each folded map, and the sums over (component, tap)."""
    targets: list[tuple[int, int]] = []
    rows: list[list[float]] = []
    for k in range(len(group.irreps)):
        for j in irreps:
            for filters in _filters_of(group, grid, i, j, k):
                targets += [(j, c) for c in range(len(filters))]
                rows += filters.flatten(1).tolist()
    return tuple(targets), sums_of(rows)


@lru_cache
def _spread(group: Group, grid: Grid, i: int, j: int, component: int) -> tuple[tuple[int, ...], Sums]:
    """How free taps fill a filter to a component of irrep j: which (component, place) are not zero, and their values.

    Values are sums over (endomorphism of irrep j, free tap).
    """
    endomorphisms = group.irreps[j].endomorphisms[:, component]
    matrix = torch.einsum("ec,ncap->apen", endomorphisms, filters_between(group, grid, i, j)).flatten(2).flatten(0, 1)
    places = tuple(matrix.any(-1).nonzero().flatten().tolist())
    return places, sums_of(matrix[list(places)].tolist())


def folded_conv2d(x: Feature, weight: Sequence[Tensor | None], bias: Tensor | None, plan: ConvPlan) -> Feature:
    """Add and subtract shifted maps, then one convolution per irrep of the result."""
    maps = [_folded_maps(part, i, plan) for i, part in enumerate(x)]
    found: list[list[Tensor]] = []
    for j, (irrep, filters) in enumerate(zip(plan.out_layout.group.irreps, weight, strict=True)):
        if filters is None:
            found.append([])
            continue
        shift = bias if j == 0 else None
        stacked = _unstack(filters, irrep.type.degree)
        joined = _joined_maps(maps, j, plan)
        values = [_convolve(x_BHWC, each, shift, plan) for each in stacked for x_BHWC in joined]
        found.append(values if irrep.type.degree == 1 else combine(values, irrep.turns))
    return _fill(found, plan.out_layout)


def read_patches(x: Feature, irrep: int, plan: ConvPlan) -> Tensor:
    """What the filters of an irrep of the result read at all places, `(places, folded channels and taps)`."""
    maps = [_folded_maps(part, i, plan) for i, part in enumerate(x)]
    stride, padding, dilation = _remaining_window(plan)
    unfolded = [
        F.unfold(x_BHWC.permute(0, 3, 1, 2), plan.rest, dilation, padding, stride)
        for x_BHWC in _joined_maps(maps, irrep, plan)
    ]
    return torch.cat(unfolded).transpose(1, 2).flatten(0, 1)


def dense_filters(weight: Tensor, irrep: int, plan: ConvPlan) -> list[Tensor]:
    """The filters of each component of an irrep of the result, `(copies, channels / groups, kh, kw)`, from free taps.

    Within a group of channels all irreps of the input stand one after another, with their components.
    """
    value = plan.in_layout.group.irreps[irrep]
    stacked = _unstack(weight, value.type.degree)
    return [torch.cat(_filter_blocks(stacked, irrep, component, plan), 1) for component in range(value.dim)]


def _filter_blocks(stacked: Sequence[Tensor], irrep: int, component: int, plan: ConvPlan) -> list[Tensor]:
    places = prod(plan.grid)
    blocks, start = [], 0
    for i, (m, d) in enumerate(zip(plan.in_layout.multiplicities, plan.in_layout.irrep_dims, strict=True)):
        shape = (len(stacked[0]), m // plan.groups, *plan.window.kernel)
        if i not in plan.sources[irrep]:
            blocks += [stacked[0].new_zeros(shape)] * d
            continue
        size = (plan.taps[i][irrep], m // plan.groups)
        taps = [tap for w in stacked for tap in w.narrow(1, start, prod(size)).unflatten(1, size).unbind(1)]
        start += prod(size)
        where, sums = plan.spreads[i, irrep, component]
        values = dict(zip(where, combine(taps, sums), strict=True))
        zero = torch.zeros_like(taps[0])
        for a in range(d):
            every = torch.stack([values.get(a * places + p, zero) for p in range(places)], 2)
            # folded rows and columns, then those that are left: either axis has the one or the other
            blocks.append(every.unflatten(2, plan.grid).transpose(3, 4).reshape(shape))
    return blocks


def _folded_maps(part: Tensor, i: int, plan: ConvPlan) -> dict[tuple[int, int], list[Tensor]]:
    """The maps that irrep i gives, by the irrep of the result and its component."""
    targets, sums = plan.folds[i]
    if not targets:
        return {}
    part = realize(part) if prod(plan.grid) > 1 else part
    shifted = [each for component in _components(part, i, plan) for each in _shifted_maps(component, plan)]
    found: dict[tuple[int, int], list[Tensor]] = {}
    for target, value in zip(targets, combine(shifted, sums), strict=True):
        found.setdefault(target, []).append(value)
    return found


def _joined_maps(maps: Sequence[dict[tuple[int, int], list[Tensor]]], j: int, plan: ConvPlan) -> list[Tensor]:
    """What the convolution to each component of irrep j of the result reads."""
    dim = plan.out_layout.irrep_dims[j]
    return [_join([m for i in plan.sources[j] for m in maps[i][j, c]], plan.groups) for c in range(dim)]


def _unstack(weight: Tensor, degree: int) -> list[Tensor]:
    """The weights of an irrep of complex or quaternionic type."""
    return [weight] if degree == 1 else [weight.unflatten(0, (degree, -1)).select(0, k) for k in range(degree)]


def _components(part: Tensor, i: int, plan: ConvPlan) -> Sequence[Tensor]:
    """The components of irrep i of the input, `(B, H, W, C)` each."""
    d = plan.in_layout.irrep_dims[i]
    return [part] if d == 1 else [part.select(-2, a) for a in range(d)]


def _shifted_maps(part: Tensor, plan: ConvPlan) -> list[Tensor]:
    """What each folded tap reads, `(B, H, W, C)`, in the order of the grid."""
    window = plan.window
    pads = [p if plan.is_sliced(axis) else 0 for axis, p in enumerate(window.padding)]
    padded = F.pad(part, (0, 0, pads[1], pads[1], pads[0], pads[0])) if any(pads) else part
    rows, columns = (
        [_slice(t, plan.grid[axis], window.stride[axis], window.dilation[axis]) for t in range(plan.grid[axis])]
        if plan.is_sliced(axis)
        else [slice(None)]
        for axis in (0, 1)
    )
    # the middle of a window that keeps the size is the map itself: compiled code need not look for its border
    middle = tuple(slice(p or None, -p or None) for p in pads) if any(pads) else (slice(None),) * 2
    return [part if (r, c) == middle else padded[:, r, c] for r in rows for c in columns]


def _slice(tap: int, taps: int, stride: int, dilation: int) -> slice:
    """The slice of places that one tap reads as the window moves."""
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
    """The convolution that is left."""
    window = _remaining_window(plan)
    if plan.is_sliced(1):
        (stride, _), (padding, _), (dilation, _) = window
        return convolve_columns(x, filters, bias, plan.rest[0], stride, padding, dilation, plan.groups)
    return conv2d(x, filters, bias, *window, plan.groups)


def _remaining_window(plan: ConvPlan) -> tuple[Grid, Grid, Grid]:
    """Stride, padding and dilation of the convolution that is left: those along the axes that were not sliced."""
    sliced, window = [plan.is_sliced(axis) for axis in (0, 1)], plan.window
    (s0, s1), (p0, p1), (d0, d1) = (
        [none if s else n for s, n in zip(sliced, of, strict=True)]
        for of, none in ((window.stride, 1), (window.padding, 0), (window.dilation, 1))
    )
    return (s0, s1), (p0, p1), (d0, d1)


def _fill(found: Sequence[Sequence[Tensor]], layout: Layout) -> Feature:
    """Assemble the parts of a result from their components; what was not computed is zero or has no channels."""
    like = next(components[0] for components in found if components)
    parts = []
    for components, m, d in zip(found, layout.multiplicities, layout.irrep_dims, strict=True):
        components = components or [F.pad(like.narrow(-1, 0, 0), (0, m))] * d
        parts.append(components[0] if d == 1 else torch.stack(list(components), -2))
    return tuple(parts)


def regular_depthwise(x: Feature, filters: Tensor, bias: Tensor | None, layout: Layout) -> Feature:
    """One filter per channel of the regular basis, `(dim, 1, k, k)`: (element, copy), then the extra channels.

    It is equivariant if the filters of an element are those of the identity, moved by it. The bias is one of the
    trivial irrep.
    """
    order, (copies, extra) = layout.group.order, layout.require_regular("a depthwise convolution")
    values, rest = to_regular(x, layout)
    x_BHWC = torch.cat([*values, rest], -1)
    if bias is not None:
        shift = bias.narrow(0, 0, copies) * order**-0.5
        bias = torch.cat([shift.repeat(order), bias.narrow(0, copies, extra)])
    padding = filters.shape[-1] // 2
    y_BCHW = F.conv2d(x_BHWC.permute(0, 3, 1, 2), filters, bias, padding=padding, groups=layout.dim)
    y_BHWC = y_BCHW.permute(0, 2, 3, 1)
    values = [y_BHWC.narrow(-1, g * copies, copies) for g in range(order)]
    return from_regular(values, y_BHWC.narrow(-1, order * copies, extra), layout)


def regular_matrix(layout: Layout) -> Tensor:
    """The orthonormal change of basis `(dim, dim)` in float64: packed channel x channel of the regular basis."""
    values, rest = to_regular(layout.split(torch.eye(layout.dim, dtype=torch.float64)), layout)
    return torch.cat([*values, rest], -1)
