"""Functions on a small grid (pixels of a patch, tokens of an image, taps of a filter), split by irrep.

A group permutes the places of a grid, so functions on it fall apart into irreps. `Fold` does that split, an
orthonormal change of basis made of slices, mirror images and sums; patch embedding, downsampling and token
mixing are a fold and a `Linear`. `Symmetric` builds functions of one irrep from their free values; position
embeddings and depthwise filters store only those.

No gradient of these operations adds several values to one place in an order that varies: on GPUs they are reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod, sqrt

import torch
from torch import Tensor, nn

from flopping.features import Device, Feature, Layout, is_symbolic
from flopping.groups import Group
from flopping.groups.sums import Sums, combine, sums_of

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


_SQRT_HALF = sqrt(0.5)


def check_square(group: Group, grid: Grid, who: str) -> None:
    """Raise ValueError, naming `who`, for a rectangle whose rows and columns the group would swap."""
    group.require_grid(who)
    if group.swaps_axes and grid[0] != grid[1]:
        raise ValueError(f"{who}: {group} turns rows into columns and needs a square grid, got {grid}")


def check_tokens(x: Feature, grid: Grid, who: str) -> None:
    """Raise ValueError, naming `who`, for tokens `(B, N, ...)` that are not as many as the places of a grid."""
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

    order: Tensor
    """Where each place stands once places are sorted by orbits; for groups that do more than mirror."""
    places: Tensor
    """The places sorted by orbits: the inverse of `order`."""

    def __init__(self, group: Group, grid: Grid, dim: int, scaled: bool = True, *, device: Device = None) -> None:
        super().__init__()
        check_square(group, grid, "fold")
        if not scaled and not group.mirrors_only:
            raise ValueError(f"scaled=False needs a group of mirrors, got {group}")
        if dim >= -1:
            raise ValueError(f"the axes of a grid are dim and dim + 1, from the end: dim is -2 or less, got {dim}")
        self.group, self.grid, self.dim, self.scaled = group, grid, dim, scaled
        if group.mirrors_only:
            self.mirrors = _mirrors(group, grid)
        else:
            _, self.orbits = _sorted_orbits(group, grid)
            for name in ("order", "places"):
                self.register_buffer(name, torch.empty(prod(grid), device=device, dtype=torch.long), persistent=False)
        self.init_non_persistent_buffers()

    @torch.no_grad()
    def init_non_persistent_buffers(self) -> None:
        """Fill in the constants; again after `to_empty`, for a network built on the meta device."""
        if not self.group.mirrors_only:
            places, _ = _sorted_orbits(self.group, self.grid)
            self.places.copy_(places)
            self.order.copy_(places.argsort())

    @property
    def layout(self) -> Layout:
        """The irreps that one channel on the grid splits into.

        >>> from flopping import flop, octic
        >>> Fold(flop, (7, 7), dim=-2).layout
        Layout(flop, even=28, odd=21)
        >>> Fold(octic, (16, 16), dim=-2).layout
        Layout(octic, A1=36, A2=28, B1=28, B2=36, E=2x64)
        """
        degrees = [irrep.type.degree for irrep in self.group.irreps]
        return Layout(self.group, tuple(free_values(self.group, self.grid, i) // d for i, d in enumerate(degrees)))

    def extra_repr(self) -> str:
        return f"{self.group}, grid={self.grid}, dim={self.dim}"

    def forward(self, x: Tensor) -> list[list[Tensor]]:
        if not is_symbolic(x) and (x.shape[self.dim], x.shape[self.dim + 1]) != self.grid:
            raise ValueError(f"expected a grid {self.grid} at axis {self.dim}, got shape {tuple(x.shape)}")
        if not self.group.mirrors_only:
            return self._fold_orbits(x.flatten(self.dim, self.dim + 1))
        grid, axes, parities = self.mirrors
        if grid != self.grid:
            x = x.flatten(self.dim, self.dim + 1).unsqueeze(self.dim)
        blocks: dict[tuple[int, ...], Tensor] = {(): x}
        for axis in axes:
            halves = {p: _fold_mirror(b, self.dim + axis, grid[axis], self.scaled) for p, b in blocks.items()}
            blocks = {(*p, side): pair[side] for p, pair in halves.items() for side in (0, 1)}
        return [[blocks[parity].flatten(self.dim, self.dim + 1)] for parity in parities]

    def inverse(self, parts: Sequence[Sequence[Tensor]]) -> Tensor:
        """Back to the two axes, from `parts[irrep][component]`."""
        along = self.dim + 1  # the places of a part are one axis, at the later of the two positions
        if not self.group.mirrors_only:
            whole: Tensor = self._unfold_orbits(parts).unflatten(along, self.grid)
            return whole
        grid, axes, parities = self.mirrors
        blocks: dict[tuple[int, ...], Tensor] = {
            parity: part.unflatten(along, _block_shape(grid, axes, parity))
            for parity, (part,) in zip(parities, parts, strict=True)
        }
        for axis in reversed(axes):
            blocks = {
                stem: _unfold_mirror(blocks[(*stem, 0)], blocks[(*stem, 1)], self.dim + axis, grid[axis], self.scaled)
                for stem in {parity[:-1]: None for parity in blocks}
            }
        whole = blocks[()]
        return whole if grid == self.grid else whole.flatten(self.dim, along).unflatten(along, self.grid)

    def _fold_orbits(self, x: Tensor) -> list[list[Tensor]]:
        along = self.dim + 1
        # unlike `index_select`, whose gradient adds to places, this one's gradient picks from them
        slabs = torch.empty_like(x).index_copy_(along, self.order, x)
        parts: list[list[list[Tensor]]] = [[[] for _ in range(irrep.dim)] for irrep in self.group.irreps]
        start = 0
        for count, targets, sums, _ in self.orbits:
            terms = [slabs.narrow(along, start + k * count, count) for k in range(len(targets))]
            start += count * len(targets)
            for (i, a), value in zip(targets, combine(terms, sums), strict=True):
                parts[i][a].append(value)
        none = x.narrow(along, 0, 0)  # an irrep that this grid doesn't have
        return [[torch.cat(copies or [none], along) for copies in components] for components in parts]

    def _unfold_orbits(self, parts: Sequence[Sequence[Tensor]]) -> Tensor:
        along = self.dim + 1
        slabs: list[Tensor] = []
        starts = [[0] * len(components) for components in parts]
        for count, targets, _, sums in self.orbits:
            terms = []
            for i, a in targets:
                terms.append(parts[i][a].narrow(along, starts[i][a], count))
                starts[i][a] += count
            slabs += combine(terms, sums)
        sorted_places = torch.cat(slabs, along)
        return torch.empty_like(sorted_places).index_copy_(along, self.places, sorted_places)


@lru_cache
def basis_of(group: Group, grid: Grid) -> tuple[Tensor, ...]:
    """The orthonormal basis that `Fold` uses: for each irrep `(d, multiplicity, h * w)` in float64."""
    with torch.device("cpu"):  # a cached value must not follow the caller's default device
        places = torch.eye(prod(grid), dtype=torch.float64).unflatten(1, grid)
        return tuple(torch.stack(components).transpose(1, 2) for components in Fold(group, grid, dim=-2)(places))


def free_values(group: Group, grid: Grid, irrep: int) -> int:
    """How many numbers decide a function f on a grid that follows an irrep, `f(g p) = rho(g) f(p)`.

    >>> from flopping import flop
    >>> free_values(flop, (1, 3), 0), free_values(flop, (1, 3), 1)
    (2, 1)
    """
    check_square(group, grid, "symmetric functions")
    value = group.irreps[irrep]
    orbits = sum(len(places) * len(value.fixed_vectors(kind)) for kind, places in _kinds(group, grid).items())
    return orbits * value.type.degree


@dataclass
class Symmetric:
    """Functions f on a grid that follow one irrep, `f(g p) = rho(g) f(p)`, given by their free values. No data.

    A 1-dimensional irrep makes every place of an orbit hold the same free value, up to a sign, or zero on a
    mirror line. One of dimension d makes a function with d components.

    >>> from flopping import flop
    >>> odd = Symmetric(flop, (1, 3), irrep=1)
    >>> odd.free, odd.build(torch.tensor([[7.0]])).flatten().tolist()
    (1, [7.0, 0.0, -7.0])
    """

    group: Group
    grid: Grid
    irrep: int

    def __post_init__(self) -> None:
        self.free = free_values(self.group, self.grid, self.irrep)
        self.dim = self.group.irreps[self.irrep].dim
        if self.group.mirrors_only:
            self.lines, self.axes, parities = _mirrors(self.group, self.grid)
            self.parity = parities[self.irrep]

    @property
    def matrix(self) -> Tensor:
        """What each free value adds to a function: `(h * w, d, free)` in float64."""
        return symmetric_functions(self.group, self.grid, self.irrep)

    def build(self, values: Tensor, matrix: Tensor | None = None, dim: int = 0) -> Tensor:
        """Free values `(free, m)` to functions on all places, `(h * w, [d,] m)`; with `dim=1`, for d = 1, transposed.

        A group of mirrors copies the values; any other needs `matrix`, in their precision and on their device.
        """
        if not is_symbolic(values) and (values.dim() != 2 or values.shape[dim] != self.free or not self.free):
            raise ValueError(f"expected free values ({self.free}, m), got shape {tuple(values.shape)}")
        if matrix is not None:
            table: Tensor = torch.tensordot(matrix, values, ([2], [dim]))
            table = table.squeeze(1) if self.dim == 1 else table
            return table.T if dim else table
        whole: Tensor = values.unflatten(dim, _block_shape(self.lines, self.axes, self.parity))
        for axis, odd in reversed(list(zip(self.axes, self.parity, strict=True))):
            whole = _reflect(whole, dim + axis, self.lines[axis], bool(odd))
        return whole.flatten(dim, dim + 1)

    def fit(self, table: Tensor) -> Tensor:
        """The free values whose functions are nearest to given ones: inverse of `build`."""
        matrix = self.matrix.flatten(0, 1).to(table)
        return matrix.T @ table.reshape(len(matrix), -1) / matrix.square().sum(0)[:, None]


@lru_cache
def symmetric_functions(group: Group, grid: Grid, irrep: int) -> Tensor:
    """What each free value adds to a function: `(h * w, d, free)` in float64; the columns are orthogonal.

    Values are counted orbit by orbit, in the order of the first places. The function of one value is rho(g) v on the
    place g p, for a vector v that the stabiliser of p leaves alone.
    """
    free = free_values(group, grid, irrep)
    value = group.irreps[irrep]
    with torch.device("cpu"):  # a cached value must not follow the caller's default device
        moved = _moved(group, grid)
        found = torch.zeros(prod(grid), value.dim, free, dtype=torch.float64)
        kinds = sorted((place, kind) for kind, places in _kinds(group, grid).items() for place in places)
        vectors = [(p, e @ v) for p, kind in kinds for v in value.fixed_vectors(kind) for e in value.endomorphisms]
        for column, (place, vector) in enumerate(vectors):
            found[moved[:, place], :, column] = value.tensor @ vector
        return found


@lru_cache
def sides_of(group: Group, grid: Grid) -> tuple[Tensor, ...]:
    """On which side a place lies: for each irrep the matrices T(p), `(d, d, h * w)` in float64.

    The law: T(g p) = rho(g) T(p). For the first place p of an orbit T(g p) is sqrt(d) rho(g), averaged over all g that
    lead to the same place. For an irrep of one dimension it is 1, -1, or 0 on a mirror line.

    >>> from flopping import flop
    >>> [side.flatten().tolist() for side in sides_of(flop, (1, 3))]
    [[1.0, 1.0, 1.0], [1.0, 0.0, -1.0]]
    """
    check_square(group, grid, "sides")
    with torch.device("cpu"):  # a cached value must not follow the caller's default device
        moved, found = _moved(group, grid), []
        for irrep in group.irreps:
            sides = torch.zeros(irrep.dim, irrep.dim, prod(grid), dtype=torch.float64)
            for kind, places in _kinds(group, grid).items():
                for matrix, images in zip(irrep.tensor, moved[:, list(places)], strict=True):
                    sides[..., images] += matrix[..., None] / len(kind)
            found.append(sides * sqrt(irrep.dim))
    return tuple(found)


def _fold_mirror(x: Tensor, dim: int, places: int, scaled: bool) -> tuple[Tensor, Tensor]:
    half = places // 2
    left, right = x.narrow(dim, 0, half), x.narrow(dim, places - half, half).flip(dim)
    even, odd = _sum_and_difference(left, right, scaled)
    if places % 2:
        even = torch.cat([even, _middle(x, dim, half, scaled)], dim)
    return even, odd


def _unfold_mirror(even: Tensor, odd: Tensor, dim: int, places: int, scaled: bool) -> Tensor:
    half = places // 2
    left, right = _sum_and_difference(even.narrow(dim, 0, half), odd, scaled)
    middle = [_middle(even, dim, half, scaled)] if places % 2 else []
    return torch.cat([left, *middle, right.flip(dim)], dim)


def _reflect(x: Tensor, dim: int, places: int, odd: bool) -> Tensor:
    """A half, after it zeros or nothing in the middle, and its mirror image, negated if it is odd."""
    image = x.narrow(dim, 0, places // 2).flip(dim)
    if not odd:
        return torch.cat([x, image], dim)
    middle = [torch.zeros_like(x.narrow(dim, 0, 1))] if places % 2 else []
    return torch.cat([x, *middle, -image], dim)


def _sum_and_difference(a: Tensor, b: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
    return ((a + b).mul_(_SQRT_HALF), (a - b).mul_(_SQRT_HALF)) if scaled else (a + b, a - b)


def _middle(x: Tensor, dim: int, place: int, scaled: bool) -> Tensor:
    """The place that a mirror does not move; without scales it is multiplied by sqrt 2, as a sum of two is."""
    middle = x.narrow(dim, place, 1)
    return middle if scaled else middle / _SQRT_HALF


@lru_cache
def _mirrors(group: Group, grid: Grid) -> tuple[Grid, tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """How a group of mirrors folds: the grid, its mirrored axes, and the parity of each irrep along them.

    A rotation by 180 degrees is the mirror image of the places read row by row, a grid of one line.
    """
    flips = {symmetry.flipped_axes: element for element, symmetry in enumerate(group.symmetries)}
    one_line = (0, 1) in flips and len(flips) == 2
    axes = (1,) if one_line else tuple(axis for axis in (1, 0) if (axis,) in flips)
    elements = [flips[(0, 1)]] if one_line else [flips[(axis,)] for axis in axes]
    parities = tuple(tuple(int(irrep.signs[e] < 0) for e in elements) for irrep in group.irreps)
    return (1, prod(grid)) if one_line else grid, axes, parities


def _block_shape(grid: Grid, axes: tuple[int, ...], parity: tuple[int, ...]) -> list[int]:
    """The grid's places that one irrep reads: half of each mirrored axis, with the middle for even ones."""
    shape = list(grid)
    for axis, odd in zip(axes, parity, strict=True):
        shape[axis] = shape[axis] // 2 if odd else ceil(shape[axis] / 2)
    return shape


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
def _sorted_orbits(group: Group, grid: Grid) -> tuple[Tensor, list[tuple[int, list[tuple[int, int]], Sums, Sums]]]:
    """The general fold: places sorted by orbits, and how each kind of orbit splits into irreps.

    A kind has a number of orbits, an (irrep, component) for each place of an orbit, copy by copy, the sums over an
    orbit that give these, and the sums that lead back.

    On orbits with stabiliser S of the first place p, component a of a copy is
    sqrt(d |S| / |G|) sum_g (rho(g) v)[a] x[g p], with one g for each place of the orbit.
    """
    moved, kinds = _moved(group, grid), _kinds(group, grid)
    places, orbits = [], []
    for kind, found in kinds.items():
        elements = list({place: g for g, place in reversed(list(enumerate(moved[:, found[0]].tolist())))}.values())
        elements.sort()
        targets, matrix = [], []
        for i, irrep in enumerate(group.irreps):
            scale = sqrt(irrep.dim * len(kind) / group.order)
            copies = [(irrep.tensor[elements] @ vector).T * scale for vector in irrep.fixed_vectors(kind)]
            targets += [(i, a) for a in range(irrep.dim) for _ in copies]
            matrix += [copy[a].tolist() for a in range(irrep.dim) for copy in copies]
        orbits.append((len(found), targets, sums_of(matrix), sums_of(list(zip(*matrix, strict=True)))))
        places.append(moved[elements][:, list(found)].flatten())
    return torch.cat(places), orbits
