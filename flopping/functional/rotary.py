"""Rotary positions: channels of queries and keys turn in planes, by angles that grow with the place of a token.

The rotation of a plane by the angle of an axis is equivariant if the group acts on the plane as on the angle. An
element that keeps the coordinate of the axis keeps the plane's orientation; one that negates the coordinate reflects
the plane. So a plane of the horizontal angle pairs, for flop, an even with an odd channel, and one of the vertical
angle pairs two channels of one parity.

In general the two channels of a plane belong to irreps whose product is the irrep of the coordinate. Groups that swap
rows and columns take one plane to another: sum and difference of a channel that stays and one that then changes its
sign (A1 and B1, A2 and B2) turn with the two components of the irrep E, one by each axis.

Legend: N tokens, D head width, n copies of the regular representation in a head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import pi, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Layout
from flopping.functional.grid import Grid
from flopping.groups import Group, octic, rot90

Plane = tuple[int, int, int, int]
"""Two channels of a head, the axis (0 for rows, 1 for columns) whose angle turns the first to the second, its step."""
Run = tuple[int, int]
"""Channels in a row: the first, and how many."""


@dataclass(frozen=True)
class Planes:
    """The pairs of channels of a head that form planes, and their frequencies. No data; made by `rotary_planes`."""

    partners: tuple[Run, ...]
    """The head's channels, in an order in which each stands where its partner stood; one that doesn't turn stays."""
    sums: tuple[tuple[int, int, int], ...]
    """Runs (first, second, length) that sum and difference replace; the tables hold their factor."""
    kept: tuple[Run, ...]
    """The runs between them."""
    rates: tuple[tuple[float, ...], tuple[float, ...]]
    """Radians per unit of each coordinate, for every channel."""
    cos_scales: tuple[float, ...]
    sin_scales: tuple[float, ...]


@lru_cache
def rotary_planes(layout: Layout, num_heads: int, temperature: float) -> Planes:
    """The planes of each head: a quarter of its channels are the planes of each axis, at as many different rates.

    Rates are those of DINOv3, 2 pi / temperature^(step / steps), for coordinates from -1 to 1. Invariant channels
    beyond the copies of the regular representation don't turn.

    >>> planes = rotary_planes(Layout.regular("flop", 8), num_heads=1, temperature=100.0)
    >>> planes.partners  # even 0 and 2, odd 4 and 6 turn by the vertical angle; 1 and 5, 3 and 7 by the horizontal one
    ((2, 1), (5, 1), (0, 1), (7, 1), (6, 1), (1, 1), (4, 1), (3, 1))
    """
    group = layout.group
    group.require_grid("rotary positions")
    copies = layout.require_regular("rotary positions")[0]
    if not group.mirrors_only and group not in (rot90, octic):
        raise ValueError(f"rotary positions support groups of mirrors, rot180, rot90 and octic, got {group}")
    unit = 4 if group.mirrors_only else 1
    n, rest = divmod(copies, num_heads)
    if rest or n % unit or not n:
        raise ValueError(
            f"rotary positions of {group} need a multiple of {unit * group.order} regular channels in every head,"
            f" got {copies * group.order} in {num_heads} heads of {layout}"
        )
    width = layout.dim // num_heads
    starts = [sum(layout.part_dims[:i]) // num_heads for i in range(len(group.irreps))]
    found = list(_planes_of_signs(group, starts, n) if group.mirrors_only else _planes_of_turns(starts, n))
    sums = () if group.mirrors_only else tuple((a, b, n) for a, b in _sum_starts(starts))
    return _assemble(found, sums, width, temperature)


def _planes_of_signs(group: Group, starts: list[int], n: int) -> Iterator[Plane]:
    """Of each part quarters 0 and 2 turn with the rows, 1 and 3 with the columns: as in timm for the trivial group."""
    signs = [irrep.signs for irrep in group.irreps]
    for axis in (0, 1):
        coordinate = [-1 if axis in symmetry.flipped_axes else 1 for symmetry in group.symmetries]
        pairs = [
            (i, signs.index(tuple(a * b for a, b in zip(s, coordinate, strict=True)))) for i, s in enumerate(signs)
        ]
        quarters = [axis * n // 4, (axis + 2) * n // 4]
        runs = [(starts[i] + quarters[0], starts[i] + quarters[1]) for i, j in pairs if i == j]
        runs += [(starts[i] + quarter, starts[j] + quarter) for quarter in quarters for i, j in pairs if i < j]
        for number, (first, second) in enumerate(runs):
            for copy in range(n // 4):
                yield first + copy, second + copy, axis, copy * len(runs) + number


def _planes_of_turns(starts: list[int], n: int) -> Iterator[Plane]:
    """E is a vector (x, y). Rows turn (y, A1 + B1) and (A2 + B2, x), columns turn (A1 - B1, x) and (A2 - B2, y)."""
    pairs = _sum_starts(starts)
    plane, components = starts[-1], n * len(pairs)  # copies of E in a head
    for number, both in enumerate(pairs):
        for axis in (0, 1):
            component = plane + (1 - axis if number == 0 else axis) * components + number * n
            for copy in range(n):
                channel, partner = both[axis] + copy, component + copy
                step = copy * len(pairs) + number
                yield (partner, channel, axis, step) if (number, axis) == (0, 0) else (channel, partner, axis, step)


def _sum_starts(starts: list[int]) -> list[tuple[int, int]]:
    """Where a part starts that keeps its sign when rows and columns swap, and where its twin that changes it."""
    half = (len(starts) - 1) // 2
    return list(zip(starts[:half], starts[half:-1], strict=True))


def _assemble(planes: list[Plane], sums: tuple[tuple[int, int, int], ...], width: int, temperature: float) -> Planes:
    partners = list(range(width))
    rates = [[0.0] * width, [0.0] * width]
    sin_scales = [0.0] * width
    steps = len(planes) // 2
    for first, second, axis, step in planes:
        partners[first], partners[second] = second, first
        rates[axis][first] = rates[axis][second] = 2 * pi / temperature ** (step / steps)
        sin_scales[first], sin_scales[second] = -1.0, 1.0
    summed = {channel for a, b, n in sums for start in (a, b) for channel in range(start, start + n)}
    cos_scales = [sqrt(0.5) if channel in summed else 1.0 for channel in range(width)]
    sin_scales = [s * cos_scales[partner] for s, partner in zip(sin_scales, partners, strict=True)]
    kept = _runs(channel for channel in range(width) if channel not in summed)
    by_axis = (tuple(rates[0]), tuple(rates[1]))
    return Planes(_runs(partners), sums, kept, by_axis, tuple(cos_scales), tuple(sin_scales))


def _runs(channels: Iterable[int]) -> tuple[Run, ...]:
    """
    >>> _runs([4, 5, 0, 1, 2])
    ((4, 2), (0, 3))
    """
    runs: list[Run] = []
    for channel in channels:
        if runs and channel == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((channel, 1))
    return tuple(runs)


def rotary_tables(
    planes: Planes, grid: Grid, prefix: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines `(prefix + N, D)` for the tokens of a grid, after some that have no place and don't turn.

    Coordinates are those of patch centres, from -1 to 1 across the image, so the group negates and swaps them.
    """
    exact = partial(torch.tensor, dtype=torch.float64, device=device)
    y, x = [(2 * torch.arange(size, dtype=torch.float64, device=device) + (1 - size)) / size for size in grid]
    by_row, by_column = exact(planes.rates[0]), exact(planes.rates[1])
    angles = (y[:, None, None] * by_row + x[:, None] * by_column).flatten(0, 1)
    angles = F.pad(angles, (0, 0, prefix, 0))
    cos, sin = angles.cos() * exact(planes.cos_scales), angles.sin() * exact(planes.sin_scales)
    return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, planes: Planes, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys `(..., N, D)` turned by the tables of their tokens.

    For groups that swap rows and columns the result stands in another orthonormal basis: dot products are the same.
    """
    if planes.sums:
        x = _sum_and_difference(x, planes)
    partners = torch.cat([x.narrow(-1, *run) for run in planes.partners], -1)
    return torch.addcmul(x * cos, partners, sin).to(x.dtype)


def _sum_and_difference(x: Tensor, planes: Planes) -> Tensor:
    pieces = {start: x.narrow(-1, start, length) for start, length in planes.kept}
    for first, second, length in planes.sums:
        a, b = x.narrow(-1, first, length), x.narrow(-1, second, length)
        pieces[first], pieces[second] = a + b, a - b
    return torch.cat([pieces[start] for start in sorted(pieces)], -1)
