"""Functions on a small grid (pixels of a patch, tokens of an image, taps of a filter), split by irrep.

A group permutes the places of a grid, so functions on it fall apart into irreps. `Fold` does that split, an
orthonormal change of basis made of slices, mirror images and sums; patch embedding, downsampling and token
mixing are a fold and a `Linear`. `Symmetric` builds functions of one irrep from their free values; position
embeddings and depthwise filters store only those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, prod, sqrt

import torch
from torch import Tensor, nn

from flopping.features import Feature, Layout, is_symbolic
from flopping.groups import Group
from flopping.sums import Sums, combine, sums_of

Grid = tuple[int, int]


def as_pair(size: int | Grid, what: str) -> Grid:
    """Height and width from one number or two.

    >>> as_pair(16, "patch_size")
    (16, 16)
    """
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or any(not isinstance(n, int) or n < 1 for n in pair):
        raise ValueError(f"{what} is a positive number or two of them, got {size!r}")
    return pair[0], pair[1]


_HALF = sqrt(0.5)


def check_square(group: Group, grid: Grid, who: str) -> None:
    """Refuse, on behalf of `who`, a rectangle whose rows and columns the group would swap."""
    group.require_grid(who)
    if group.swaps_axes and grid[0] != grid[1]:
        raise ValueError(f"{who}: {group} turns rows into columns and needs a square grid, got {grid}")


def check_tokens(x: Feature, grid: Grid, who: str) -> None:
    """Refuse, on behalf of `who`, tokens `(B, N, ...)` that are not as many as the places of a grid."""
    if not is_symbolic(x) and x[0].shape[1] != prod(grid):
        raise ValueError(f"{who}: grid {grid} has {prod(grid)} places, got {x[0].shape[1]} tokens")


class Fold(nn.Module):
    """Split two axes `(dim, dim + 1)` of a tensor, a grid of places, into irreps.

    `fold(x)[irrep][component]` has one axis in place of the two, as long as the irrep's multiplicity. The
    law: folding the moved grid gives the folded grid, components mixed by the irrep. The fold is orthonormal. With
    `scaled=False`, for groups of mirrors, it is sqrt |G| times that, and so is its inverse: there is less to multiply.

    >>> from flopping import flop
    >>> (even,), (odd,) = Fold(flop, (1, 3), dim=-2)(torch.tensor([[1.0, 5.0, 1.0]]))
    >>> even.tolist(), odd.tolist()
    ([1.4142135381698608, 5.0], [0.0])
    >>> (even,), (odd,) = Fold(flop, (1, 4), dim=-2, scaled=False)(torch.tensor([[1.0, 5.0, 4.0, 0.0]]))
    >>> even.tolist(), odd.tolist()
    ([1.0, 9.0], [1.0, 1.0])
    """

    places: Tensor

    def __init__(
        self, group: Group, grid: Grid, dim: int, scaled: bool = True, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        check_square(group, grid, "fold")
        if not scaled and not group.mirrors_only:
            raise ValueError(f"a fold without scales needs a group of mirrors, got {group}")
        if dim >= -1:
            raise ValueError(f"dim counts from the end and has a neighbour: -2 or less, got {dim}")
        self.group, self.grid, self.dim, self.scaled = group, grid, dim, scaled
        if group.mirrors_only:
            self.one_line, self.axes, self.parities = _mirrors(group)
        else:
            places, self.rows = _orbit_rows(group, grid)
            self.register_buffer("places", torch.empty(len(places), device=device, dtype=torch.long), persistent=False)
        self.init_non_persistent_buffers()

    @torch.no_grad()
    def init_non_persistent_buffers(self) -> None:
        """Fill in the constants; again after `to_empty`, for a network built on the meta device."""
        if not self.group.mirrors_only:
            self.places.copy_(_orbit_rows(self.group, self.grid)[0])

    @property
    def layout(self) -> Layout:
        """The irreps that one channel on the grid splits into.

        >>> from flopping import flop, octic
        >>> Fold(flop, (7, 7), dim=-2).layout
        Layout(flop, even=28, odd=21)
        >>> Fold(octic, (16, 16), dim=-2).layout
        Layout(octic, A1=36, A2=28, B1=28, B2=36, E=2x64)
        """
        kinds = _kinds(self.group, self.grid)
        irreps = self.group.irreps
        return Layout(
            self.group, tuple(sum(len(p) * len(i.fixed_vectors(k)) for k, p in kinds.items()) for i in irreps)
        )

    def extra_repr(self) -> str:
        return f"{self.group}, grid={self.grid}, dim={self.dim}"

    def forward(self, x: Tensor) -> list[list[Tensor]]:
        if not is_symbolic(x) and (x.shape[self.dim], x.shape[self.dim + 1]) != self.grid:
            raise ValueError(f"expected a grid {self.grid} at axis {self.dim}, got shape {tuple(x.shape)}")
        if not self.group.mirrors_only:
            return self._fold_orbits(x.flatten(self.dim, self.dim + 1))
        if self.one_line:
            x = x.flatten(self.dim, self.dim + 1).unsqueeze(self.dim)
        blocks: dict[tuple[int, ...], Tensor] = {(): x}
        for axis in self.axes:
            halves = {p: _mirror(b, self.dim + axis, self._lines[axis], self.scaled) for p, b in blocks.items()}
            blocks = {(*p, side): pair[side] for p, pair in halves.items() for side in (0, 1)}
        return [[blocks[parity].flatten(self.dim, self.dim + 1)] for parity in self.parities]

    def inverse(self, parts: Sequence[Tensor]) -> Tensor:
        """Back to the two axes; for groups that only mirror them."""
        if not self.group.mirrors_only:
            raise ValueError(f"the inverse of a fold needs a group of mirrors, got {self.group}")
        along = self.dim + 1  # the places of a part are one axis, at the later of the two positions
        blocks: dict[tuple[int, ...], Tensor] = {
            parity: part.unflatten(along, self._block_shape(parity))
            for parity, part in zip(self.parities, parts, strict=True)
        }
        for axis in reversed(self.axes):
            stems = {parity[:-1]: None for parity in blocks}
            blocks = {
                stem: _unmirror(blocks[(*stem, 0)], blocks[(*stem, 1)], self.dim + axis, self._lines[axis], self.scaled)
                for stem in stems
            }
        whole = blocks[()]
        return whole.flatten(self.dim, along).unflatten(along, self.grid) if self.one_line else whole

    @property
    def _lines(self) -> Grid:
        return (1, prod(self.grid)) if self.one_line else self.grid

    def _block_shape(self, parity: tuple[int, ...]) -> list[int]:
        shape = list(self._lines)
        for axis, odd in zip(self.axes, parity, strict=True):
            shape[axis] = shape[axis] // 2 if odd else ceil(shape[axis] / 2)
        return shape

    def _fold_orbits(self, x: Tensor) -> list[list[Tensor]]:
        along = self.dim + 1
        slabs = x.index_select(along, self.places)
        parts: list[list[list[Tensor]]] = [[[] for _ in range(irrep.dim)] for irrep in self.group.irreps]
        start = 0
        for size, targets, sums in self.rows:
            terms = [slabs.narrow(along, start + g * size, size) for g in range(self.group.order)]
            start += size * self.group.order
            for (i, a), value in zip(targets, combine(terms, sums), strict=True):
                parts[i][a].append(value)
        none = x.narrow(along, 0, 0)  # an irrep that this grid doesn't have
        return [[torch.cat(copies or [none], along) for copies in components] for components in parts]


@lru_cache
def basis_of(group: Group, grid: Grid) -> tuple[Tensor, ...]:
    """The orthonormal basis that `Fold` uses: for each irrep `(d, multiplicity, h * w)` in float64."""
    with torch.device("cpu"):  # a cached value must not follow the caller's default device
        places = torch.eye(prod(grid), dtype=torch.float64).unflatten(1, grid)
        return tuple(torch.stack(components).transpose(1, 2) for components in Fold(group, grid, dim=-2)(places))


class Symmetric(nn.Module):
    """Functions f on a grid that follow one irrep, `f(g p) = rho(g) f(p)`, given by their free values.

    A 1-dimensional irrep makes every place of an orbit hold the same free value, up to a sign, or zero on a
    mirror line. One of dimension d makes a function with d components.

    >>> from flopping import flop
    >>> odd = Symmetric(flop, (1, 3), irrep=1)
    >>> odd.free, odd(torch.tensor([[7.0]])).flatten().tolist()
    (1, [7.0, 0.0, -7.0])
    """

    index: Tensor
    coefficient: Tensor

    def __init__(
        self,
        group: Group,
        grid: Grid,
        irrep: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_square(group, grid, "symmetric functions")
        self.group, self.grid, self.irrep = group, grid, irrep
        index, coefficient, self.free = _free_values(group, grid, irrep)
        self.register_buffer("index", torch.empty(index.shape, device=device, dtype=torch.long), persistent=False)
        self.register_buffer(
            "coefficient", torch.empty(coefficient.shape, device=device, dtype=dtype), persistent=False
        )
        self.init_non_persistent_buffers()

    @torch.no_grad()
    def init_non_persistent_buffers(self) -> None:
        """Fill in the constants; again after `to_empty`, for a network built on the meta device."""
        index, coefficient, _ = _free_values(self.group, self.grid, self.irrep)
        self.index.copy_(index)
        self.coefficient.copy_(coefficient)

    def extra_repr(self) -> str:
        return f"{self.group.irreps[self.irrep].name}, grid={self.grid}, free={self.free}"

    def forward(self, values: Tensor) -> Tensor:
        """Free values `(free, m)` to functions on all places, `(h * w, [d,] m)`."""
        if not is_symbolic(values) and (values.dim() != 2 or len(values) != self.free):
            raise ValueError(f"expected free values ({self.free}, m), got shape {tuple(values.shape)}")
        chosen = values.index_select(0, self.index.flatten())
        if self.coefficient.shape[1:] == (1, 1):
            return chosen * self.coefficient.flatten(1)
        table: Tensor = self.coefficient @ chosen.unflatten(0, self.index.shape)
        return table.squeeze(1) if self.group.irreps[self.irrep].dim == 1 else table

    def fit(self, table: Tensor) -> Tensor:
        """The free values nearest to given functions: inverse of `forward`."""
        table = table.view(len(self.index), -1, table.shape[-1])  # places, components, m
        weight = self.coefficient.to(table)
        total, size = table.new_zeros(self.free, table.shape[-1]), table.new_zeros(self.free, 1)
        for v, index in enumerate(self.index.unbind(1)):
            total.index_add_(0, index, (weight[:, :, v, None] * table).sum(1))
            size.index_add_(0, index, weight[:, :, v].square().sum(1, keepdim=True))
        return total / size


@lru_cache
def _free_values(group: Group, grid: Grid, irrep: int) -> tuple[Tensor, Tensor, int]:
    """Which free values a place depends on, `(places, v)`, and how, `(places, d, v)`; how many there are.

    They are counted orbit by orbit, in the order of the first places. The function of one free value is
    rho(g) v on the place g p, for a vector v that the stabiliser of p leaves alone.
    """
    value = group.irreps[irrep]
    with torch.device("cpu"):  # a cached value must not follow the caller's default device
        moved = _moved(group, grid)
        kinds = {places: value.fixed_vectors(kind) for kind, places in _kinds(group, grid).items()}
        turned = {
            places: [e @ vector for vector in vectors for e in value.endomorphisms] for places, vectors in kinds.items()
        }
        counts = torch.zeros(moved.shape[1], dtype=torch.long)
        for places, vectors in turned.items():
            counts[list(places)] = len(vectors)
        start = counts.cumsum(0) - counts
        width = max(map(len, turned.values()))
        index = torch.zeros(moved.shape[1], width, dtype=torch.long)
        coefficient = torch.zeros(moved.shape[1], value.dim, width, dtype=torch.float64)
        for places, vectors in turned.items():
            for v, vector in enumerate(vectors):
                for g, matrix in enumerate(value.tensor):
                    index[moved[g, list(places)], v] = start[list(places)] + v
                    coefficient[moved[g, list(places)], :, v] = matrix @ vector
        return index, coefficient, int(counts.sum())


@lru_cache
def sides_of(group: Group, grid: Grid) -> Tensor:
    """On which side a place lies, for each irrep of a group with 1-dimensional ones: `(irreps, h * w)` of -1, 0, 1.

    The function that follows the irrep and is 1 on the first place of every orbit; 0 where it can't be.

    >>> from flopping import flop
    >>> sides_of(flop, (1, 3)).tolist()
    [[1.0, 1.0, 1.0], [1.0, 0.0, -1.0]]
    """
    group.require_signs("sides")
    fields = []
    for irrep in range(len(group.irreps)):
        _, coefficient, _ = _free_values(group, grid, irrep)
        fields.append(coefficient[:, 0].sum(-1).sign())
    return torch.stack(fields)


def _mirror(x: Tensor, dim: int, places: int, scaled: bool) -> tuple[Tensor, Tensor]:
    half = places // 2
    left, right = x.narrow(dim, 0, half), x.narrow(dim, places - half, half).flip(dim)
    even, odd = _sum_and_difference(left, right, scaled)
    if places % 2:
        even = torch.cat([even, _middle(x, dim, half, scaled)], dim)
    return even, odd


def _unmirror(even: Tensor, odd: Tensor, dim: int, places: int, scaled: bool) -> Tensor:
    half = places // 2
    left, right = _sum_and_difference(even.narrow(dim, 0, half), odd, scaled)
    middle = [_middle(even, dim, half, scaled)] if places % 2 else []
    return torch.cat([left, *middle, right.flip(dim)], dim)


def _sum_and_difference(a: Tensor, b: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
    return ((a + b).mul_(_HALF), (a - b).mul_(_HALF)) if scaled else (a + b, a - b)


def _middle(x: Tensor, dim: int, place: int, scaled: bool) -> Tensor:
    """The place that a mirror leaves alone: without scales it grows as much as a sum of two."""
    middle = x.narrow(dim, place, 1)
    return middle if scaled else middle / _HALF


@lru_cache
def _mirrors(group: Group) -> tuple[bool, tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """How a group of mirrors folds: places read as one line?, mirrored axes, parity of each irrep along them.

    A rotation by 180 degrees is the mirror image of the places read row by row.
    """
    flips = {symmetry.flipped_axes: element for element, symmetry in enumerate(group.symmetries)}
    one_line = (0, 1) in flips and len(flips) == 2
    axes = (1,) if one_line else tuple(axis for axis in (1, 0) if (axis,) in flips)
    elements = [flips[(0, 1)]] if one_line else [flips[(axis,)] for axis in axes]
    parities = tuple(tuple(int(irrep.signs[e] < 0) for e in elements) for irrep in group.irreps)
    return one_line, axes, parities


def _moved(group: Group, grid: Grid) -> Tensor:
    """Where each element takes each place: `(|G|, places)`."""
    index = torch.arange(prod(grid), device="cpu").view(grid)
    return torch.stack([group.act(group.inverse(g), index).flatten() for g in range(group.order)])


@lru_cache
def _kinds(group: Group, grid: Grid) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The first place of every orbit, by the elements that leave it where it is."""
    moved = _moved(group, grid)
    first = (moved >= moved[0]).all(0).nonzero().flatten()
    kinds: dict[tuple[int, ...], list[int]] = {}
    for place, fixed in zip(first.tolist(), (moved[:, first] == first).T.tolist(), strict=True):
        kinds.setdefault(tuple(g for g, stays in enumerate(fixed) if stays), []).append(place)
    return {kind: tuple(places) for kind, places in kinds.items()}


@lru_cache
def _orbit_rows(group: Group, grid: Grid) -> tuple[Tensor, list[tuple[int, list[tuple[int, int]], Sums]]]:
    """The general fold: places sorted by orbits, and how each kind of orbit splits into irreps.

    A kind has a number of orbits, and sums over the elements for (irrep, component), copy by copy.

    On orbits with stabiliser S of the first place p, component a of a copy is
    sqrt(d / |G||S|) sum_g (rho(g) v)[a] x[g p].
    """
    moved, kinds = _moved(group, grid), _kinds(group, grid)
    rows = []
    for kind, found in kinds.items():
        targets, matrix = [], []
        for i, irrep in enumerate(group.irreps):
            scale = sqrt(irrep.dim / (group.order * len(kind)))
            copies = [(irrep.tensor @ vector).T * scale for vector in irrep.fixed_vectors(kind)]  # component, element
            targets += [(i, a) for a in range(irrep.dim) for _ in copies]
            matrix += [copy[a].tolist() for a in range(irrep.dim) for copy in copies]
        rows.append((len(found), targets, sums_of(matrix)))
    return torch.cat([moved[:, list(found)].flatten() for found in kinds.values()]), rows
