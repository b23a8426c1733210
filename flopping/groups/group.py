"""Finite groups as values: elements, multiplication, real irreps, Fourier matrix, action on the pixel grid.

The seven groups of the square pixel grid are in grid_groups.py. `Group.from_matrices` makes a group of any
finite set of matrices; without an action on the grid it serves every layer that only looks at channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt

import torch
from torch import Tensor

from flopping.groups import characters, representations
from flopping.groups.irreps import Irrep, Matrix, as_tuples
from flopping.groups.sums import Sums, sums_of
from flopping.groups.symmetries import Symmetry, planes

_TOLERANCE = 1e-9  # laws of a group are checked in float64; its matrices have entries of order one


@dataclass(frozen=True)
class Group:
    """A finite group with its real irreps, the trivial one first.

    The law: `irrep.matrices[table[g][h]] == irrep.matrices[g] @ irrep.matrices[h]` for every irrep, and the
    same for `symmetries`, the group's action on the pixel grid (empty for a group that has none).

    >>> from flopping import flipflop, flop, octic
    >>> flop
    flop
    >>> flipflop.elements
    ('identity', 'flop', 'flip', 'rot180')
    >>> octic.order, [irrep.name for irrep in octic.irreps]
    (8, ['A1', 'A2', 'B1', 'B2', 'E'])
    """

    name: str
    elements: tuple[str, ...]
    table: tuple[tuple[int, ...], ...] = field(repr=False)
    irreps: tuple[Irrep, ...] = field(repr=False)
    symmetries: tuple[Symmetry, ...] = field(default=(), repr=False)
    to_irreps: Sums = field(init=False, compare=False)
    """The rows of the Fourier matrix, as sums over the elements."""
    from_irreps: Sums = field(init=False, compare=False)
    """Its columns, as sums over (irrep, component, copy)."""
    signs: tuple[Sums, Sums] | None = field(init=False, compare=False)
    """Both without their factors, columns first, for irreps of one dimension: compiled code can't look into a cache."""

    def __post_init__(self) -> None:
        table = self._check_table()
        for irrep in self.irreps:
            _check_homomorphism(self.name, irrep, table)
        names = [irrep.name for irrep in self.irreps]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"group {self.name}: irreps need names of their own, got {names}")
        if any(entry != ((1.0,),) for entry in self.irreps[0].matrices):
            raise ValueError(f"group {self.name}: the first irrep must be the trivial one, got {self.irreps[0]}")
        total = sum(irrep.dim * irrep.regular_multiplicity for irrep in self.irreps)
        if total != self.order:
            raise ValueError(
                f"group {self.name}: irreps {list(self.irreps)} fill {total} of the {self.order} dimensions of"
                " the regular representation; one is missing, repeated or not irreducible"
            )
        fourier = self.fourier
        if not torch.allclose(fourier @ fourier.T, torch.eye(self.order, dtype=torch.float64, device="cpu")):
            raise ValueError(f"group {self.name}: two of the irreps {list(self.irreps)} are equivalent")
        object.__setattr__(self, "to_irreps", sums_of(fourier.tolist()))
        object.__setattr__(self, "from_irreps", sums_of(fourier.T.tolist()))
        signs = [sums_of(matrix.sign().tolist()) for matrix in (fourier.T, fourier)] if self.signs_only else None
        object.__setattr__(self, "signs", signs and tuple(signs))
        if self.symmetries:
            self._check_symmetries()

    def _check_table(self) -> Tensor:
        table = torch.tensor(self.table, device="cpu")
        expected = torch.arange(self.order, device="cpu")
        latin = table.shape == (self.order, self.order) and all(
            torch.equal(t.sort(1).values, expected.expand_as(t)) for t in (table, table.T)
        )
        if not latin or not torch.equal(table[0], expected) or not torch.equal(table[:, 0], expected):
            raise ValueError(f"group {self.name}: not a multiplication table with the identity first: {self.table}")
        return table

    def _check_symmetries(self) -> None:
        if len(self.symmetries) != self.order:
            raise ValueError(f"group {self.name}: {len(self.symmetries)} symmetries for {self.order} elements")
        matrices = planes(self.symmetries)
        moved = (matrices[:, None] @ matrices - matrices[torch.tensor(self.table, device="cpu")]).abs().amax((-2, -1))
        if moved.any():
            g, h = (self.elements[i] for i in moved.nonzero()[0].tolist())
            raise ValueError(f"group {self.name}: the symmetries of {g} and {h} do not multiply as the table says")

    def __repr__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash((self.name, self.elements))

    def __deepcopy__(self, memo: object) -> Group:
        return self  # a value: copies of a network share it

    def __reduce__(self) -> tuple[object, ...]:
        if _grid_groups().get(self.name) is self:
            return _grid_group, (self.name,)
        return Group, (self.name, self.elements, self.table, self.irreps, self.symmetries)

    @property
    def order(self) -> int:
        return len(self.elements)

    @property
    def signs_only(self) -> bool:
        """All irreps are 1-dimensional: every feature only changes sign."""
        return all(irrep.dim == 1 for irrep in self.irreps)

    @property
    def mirrors_only(self) -> bool:
        """Rows stay rows and all irreps are 1-dimensional, so grids fold along their axes."""
        return self.signs_only and not self.swaps_axes

    @property
    def swaps_axes(self) -> bool:
        """Some element maps rows to columns, so position-dependent layers need square grids."""
        return any(symmetry.transposes for symmetry in self.symmetries)

    @property
    def fourier(self) -> Tensor:
        """Orthonormal (|G|, |G|) matrix from the regular representation to the irreps.

        Rows are ordered (irrep, component, copy): row (i, a, c) holds sqrt(d_i / |G|) rho_i(g)[a, c] in column
        g, for as many c as there are copies. For flop it is [[1, 1], [1, -1]] / sqrt(2).

        >>> from flopping import flop
        >>> (flop.fourier * 2**0.5).round().tolist()
        [[1.0, 1.0], [1.0, -1.0]]
        """
        rows = []
        for irrep in self.irreps:
            copies = torch.stack(irrep.fixed_vectors([0]), 1)  # component, copy
            rows.append((irrep.tensor @ copies).flatten(1).T * sqrt(irrep.dim / self.order))
        return torch.cat(rows)

    def product(self, left: int, right: int) -> int:
        return self.table[left][right]

    def inverse(self, element: int) -> int:
        return self.table[element].index(0)

    def irrep_product(self, left: int, right: int) -> int:
        """Index of the tensor product of two 1-dimensional irreps, again a 1-dimensional irrep."""
        signs = tuple(a * b for a, b in zip(self.irreps[left].signs, self.irreps[right].signs, strict=True))
        return next(i for i, irrep in enumerate(self.irreps) if irrep.dim == 1 and irrep.signs == signs)

    def require_grid(self, who: str) -> None:
        """Raise ValueError, naming `who`, for a group that doesn't act on pixels."""
        if not self.symmetries:
            names = ", ".join(_grid_groups())
            raise ValueError(f"{who} needs a group that acts on the pixel grid ({names}), got {self}")

    def require_signs(self, who: str) -> None:
        """Raise ValueError, naming `who`, for a group with irreps of dimension above one."""
        if not self.signs_only:
            large = [irrep.name for irrep in self.irreps if irrep.dim > 1]
            supported = ", ".join(name for name, group in _grid_groups().items() if group.signs_only)
            raise ValueError(
                f"{who} supports groups whose irreps are all 1-dimensional ({supported}),"
                f" got {self} with {', '.join(large)}"
            )

    def act(self, element: int, image: Tensor, dims: tuple[int, int] = (-2, -1)) -> Tensor:
        """The image moved by an element; `dims` are the axes of its rows and columns."""
        self.require_grid("acting on an image")
        return self.symmetries[element](image, dims)

    def locate(self, other: Group, element: int) -> int | None:
        """Which element of this group does what `element` of another one does; None where there is none.

        >>> from flopping import flop, octic
        >>> octic.locate(flop, 1), flop.locate(octic, 1)
        (4, None)
        """
        if self == other:
            return element
        if not self.symmetries or not other.symmetries:
            return 0 if element == 0 else None
        symmetry = other.symmetries[element]
        return self.symmetries.index(symmetry) if symmetry in self.symmetries else None

    def embedding(self, subgroup: Group) -> tuple[int, ...]:
        """Where the elements of a subgroup stand among this group's, matched by their action on the grid.

        >>> from flopping import flop, octic
        >>> octic.embedding(flop)
        (0, 4)
        """
        self.require_grid("finding a subgroup")
        subgroup.require_grid("finding a subgroup")
        places = [self.locate(subgroup, element) for element in range(subgroup.order)]
        missing = [name for name, place in zip(subgroup.elements, places, strict=True) if place is None]
        if missing:
            raise ValueError(f"{subgroup} is not a subgroup of {self}: {self} has no {', '.join(missing)}")
        return tuple(place for place in places if place is not None)

    @lru_cache  # noqa: B019 - groups are module constants or live as long as their layers
    def restriction(self, subgroup: Group) -> tuple[tuple[tuple[int, ...], Matrix], ...]:
        """What each irrep becomes on a subgroup: multiplicities of the subgroup's irreps, and the basis Q.

        The law: `rho_i(h) = Q (blockdiag_j sigma_j(h) kron I_m) Q^T` for h in the subgroup.

        >>> from flopping import flop, octic
        >>> [multiplicities for multiplicities, _ in octic.restriction(flop)]
        [(1, 0), (0, 1), (1, 0), (0, 1), (1, 1)]
        """
        indices = list(self.embedding(subgroup))
        return tuple(subgroup._decompose(irrep.tensor[indices]) for irrep in self.irreps)

    @lru_cache  # noqa: B019 - as above
    def tensor_product(self, left: int, right: int) -> tuple[tuple[int, ...], Matrix]:
        """What the tensor product of two irreps becomes: multiplicities of the irreps, and the basis Q.

        The law: `rho_left(g) kron rho_right(g) = Q (blockdiag_k rho_k(g) kron I_m) Q^T`. The columns of Q are ordered
        (irrep, component, copy).

        >>> from flopping import octic, rot90
        >>> octic.tensor_product(1, 4)[0], octic.tensor_product(4, 4)[0], rot90.tensor_product(2, 2)[0]
        ((0, 0, 0, 0, 1), (1, 1, 1, 1, 0), (2, 2, 0))
        """
        a, b = self.irreps[left].tensor, self.irreps[right].tensor
        return self._decompose(torch.einsum("gab,gcd->gacbd", a, b).flatten(3, 4).flatten(1, 2))

    def _decompose(self, matrices: Tensor) -> tuple[tuple[int, ...], Matrix]:
        """Multiplicities and basis of a representation of this group."""
        with torch.device("cpu"):
            irreps = [irrep.real for irrep in self.irreps]
            found = representations.decompose(matrices, torch.tensor(self.table), irreps)
        return found.multiplicities, as_tuples(characters.round_to_halves(found.basis))

    @classmethod
    def from_matrices(cls, name: str, matrices: Tensor | Sequence[Tensor]) -> Group:
        """The abstract group that `matrices` generate; irreps are found numerically.

        It has no action on the pixel grid: layers that only look at channels take it.

        >>> turn = torch.tensor([[0.0, -1.0], [1.0, -1.0]])
        >>> Group.from_matrices("C3", [turn]).irreps
        (Irrep('irrep0', dim=1, type=real), Irrep('irrep1', dim=2, type=complex))
        """
        elements = characters.close([m.double() for m in matrices])
        table = characters.multiplication_table(elements)
        irreps = tuple(
            Irrep(f"irrep{i}", tuple(as_tuples(m) for m in irrep.matrices))
            for i, irrep in enumerate(representations.real_irreps(table))
        )
        names = ("identity", *(f"g{i}" for i in range(1, len(elements))))
        return cls(name, names, as_indices(table), irreps)


def as_indices(table: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in table.tolist())


def _check_homomorphism(group: str, irrep: Irrep, table: Tensor) -> None:
    matrices = irrep.tensor
    if len(matrices) != len(table):
        raise ValueError(f"group {group}: {irrep} has {len(matrices)} matrices for {len(table)} elements")
    error = (torch.einsum("gab,hbc->ghac", matrices, matrices) - matrices[table]).abs().amax()
    if error > _TOLERANCE:
        raise ValueError(f"group {group}: {irrep} does not follow the group's multiplication, by {error:.1e}")


def _grid_groups() -> dict[str, Group]:
    from flopping.groups.grid_groups import grid_groups  # it imports this module

    return grid_groups()


def _grid_group(name: str) -> Group:
    return _grid_groups()[name]
