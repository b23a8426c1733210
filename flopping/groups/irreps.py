"""The value `Irrep`: a named irrep as plain numbers, which hashes, pickles and crosses into compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flopping.groups.characters import SchurType
from flopping.groups.representations import RealIrrep, endomorphisms, schur_type
from flopping.groups.sums import Sums, sums_of

Matrix = tuple[tuple[float, ...], ...]


def as_tuples(matrix: Tensor) -> Matrix:
    """A matrix as plain numbers."""
    return tuple(tuple(row) for row in matrix.tolist())


@dataclass(frozen=True)
class Irrep:
    """A real irreducible representation: one orthogonal matrix per element of its group, in their order.

    >>> from flopping import octic
    >>> octic.irreps[-1]
    Irrep('E', dim=2, type=real)
    """

    name: str
    matrices: tuple[Matrix, ...]
    real: RealIrrep = field(init=False, compare=False)
    """The same for the theory: tensors, type, and what commutes with them."""
    type: SchurType = field(init=False, compare=False)
    turns: Sums = field(init=False, compare=False)
    """The components of sum_k E_k x_k, where E_k commute with the irrep, as sums over (k, component of x_k)."""

    def __post_init__(self) -> None:
        with torch.device("cpu"):  # a value must not follow the caller's default device
            tensor = torch.tensor(self.matrices, dtype=torch.float64)
            real = RealIrrep(tensor, schur_type(tensor), endomorphisms(tensor))
        # derived once, here: compiled code can't run the locks of a cached property
        object.__setattr__(self, "real", real)
        object.__setattr__(self, "type", real.type)
        object.__setattr__(self, "turns", sums_of(real.endomorphisms.transpose(0, 1).flatten(1).tolist()))

    @property
    def tensor(self) -> Tensor:
        """All matrices, (|G|, d, d) in float64."""
        return self.real.matrices

    @property
    def endomorphisms(self) -> Tensor:
        """Orthogonal basis of the matrices that commute with the irrep, (1, 2 or 4, d, d), identity first."""
        return self.real.endomorphisms

    def __repr__(self) -> str:
        return f"Irrep({self.name!r}, dim={self.dim}, type={self.type.value})"

    @property
    def dim(self) -> int:
        return len(self.matrices[0])

    @property
    def regular_multiplicity(self) -> int:
        """How often the regular representation contains this irrep."""
        return self.dim // self.type.degree

    def fixed_vectors(self, stabiliser: Sequence[int]) -> list[Tensor]:
        """Orthonormal vectors that some elements leave alone, one for each copy of the irrep on their cosets.

        Vectors that endomorphisms turn into each other belong to one copy.

        >>> from flopping import octic
        >>> [v.tolist() for v in octic.irreps[-1].fixed_vectors([0])]
        [[1.0, 0.0], [0.0, 1.0]]
        """
        invariant = self.tensor[list(stabiliser)].mean(0)
        taken = torch.zeros(self.dim, 0, dtype=torch.float64, device="cpu")
        vectors: list[Tensor] = []
        for column in invariant.T:
            rest = column - taken @ (taken.T @ column)
            if rest.norm() > 1e-6:  # a projection's columns are zero or of order one
                vectors.append(rest / rest.norm())
                taken = torch.cat([taken, (self.endomorphisms @ vectors[-1]).T], 1)
        return vectors

    @property
    def signs(self) -> tuple[int, ...]:
        """The character of a 1-dimensional irrep: +1 or -1 per element."""
        if self.dim != 1:
            raise ValueError(f"signs belong to 1-dimensional irreps, got {self}")
        return tuple(round(matrix[0][0]) for matrix in self.matrices)
