"""Finite groups for the tests, those that images have and some that they haven't."""

import math
from functools import cache, cached_property

import torch
from torch import Tensor

from flopping import Group
from flopping.groups import characters
from flopping.groups.characters import SchurType
from flopping.groups.representations import RealIrrep, real_irreps

REAL, COMPLEX, QUATERNIONIC = SchurType


def cycle(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64).roll(1, 0)


def turn(n: int) -> Tensor:
    angle = 2 * math.pi / n
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)


def permutation(*images: int) -> Tensor:
    return torch.eye(len(images), dtype=torch.float64)[:, list(images)]


def quaternion(a: float, b: float, c: float, d: float) -> Tensor:
    """Left multiplication by a + bi + cj + dk."""
    return torch.tensor([[a, -b, -c, -d], [b, a, -d, c], [c, d, a, -b], [d, -c, b, a]], dtype=torch.float64)


MIRROR = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
UNIT_I, UNIT_J = quaternion(0, 1, 0, 0), quaternion(0, 0, 1, 0)

# name: generators, order, (dimension, type) of each real irrep
GROUPS: dict[str, tuple[list[Tensor], int, list[tuple[int, SchurType]]]] = {
    **{
        f"C{n}": ([cycle(n)], n, [(1, REAL)] * (2 - n % 2 if n > 1 else 1) + [(2, COMPLEX)] * ((n - 1) // 2))
        for n in range(1, 9)
    },
    **{
        f"D{n}": ([turn(n), MIRROR], 2 * n, [(1, REAL)] * (4 - 2 * (n % 2)) + [(2, REAL)] * ((n - 1) // 2))
        for n in range(3, 7)
    },
    "C2xC2": ([MIRROR, -MIRROR], 4, [(1, REAL)] * 4),
    "S3": ([permutation(1, 0, 2), permutation(1, 2, 0)], 6, [(1, REAL)] * 2 + [(2, REAL)]),
    "S4": (
        [permutation(1, 0, 2, 3), permutation(1, 2, 3, 0)],
        24,
        [(1, REAL)] * 2 + [(2, REAL)] + [(3, REAL)] * 2,
    ),
    "Q8": ([UNIT_I, UNIT_J], 8, [(1, REAL)] * 4 + [(4, QUATERNIONIC)]),
    # All types at once, and a complex one of more than one component over the complex numbers.
    "SL(2,3)": (
        [UNIT_I, quaternion(-0.5, 0.5, 0.5, 0.5)],
        24,
        [(1, REAL), (2, COMPLEX), (3, REAL), (4, COMPLEX), (4, QUATERNIONIC)],
    ),
}
NAMES = list(GROUPS)
ABSTRACT = ["C3", "S3", "Q8"]  # no groups of the pixel grid; one has an irrep of complex type, one of quaternionic


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Case:
    """A group with everything the package says about it."""

    def __init__(self, name: str) -> None:
        self.generators, self.order, self.expected = GROUPS[name]
        self.matrices = characters.close(self.generators)
        self.table = characters.multiplication_table(self.matrices)

    @cached_property
    def classes(self) -> tuple[tuple[int, ...], ...]:
        return characters.conjugacy_classes(self.table)

    @cached_property
    def sizes(self) -> Tensor:
        return torch.tensor([len(c) for c in self.classes], dtype=torch.float64)

    @cached_property
    def characters(self) -> Tensor:
        return characters.character_table(self.table)

    @cached_property
    def irreps(self) -> tuple[RealIrrep, ...]:
        return real_irreps(self.table)


@cache
def case_of(name: str) -> Case:
    return Case(name)


@cache
def abstract(name: str) -> Group:
    """The group as layers take it, without an action on pixels."""
    return Group.from_matrices(name, case_of(name).generators)


def table_of(group: Group) -> Tensor:
    return torch.tensor(group.table)


def near(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def numbers(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def orthogonal(n: int, seed: int = 0) -> Tensor:
    q: Tensor = torch.linalg.qr(random(n, n, seed=seed))[0]
    return q


def direct_sum(*parts: Tensor) -> Tensor:
    """One block-diagonal matrix per element, of stacks (|G|, n, n)."""
    blocks = zip(*parts, strict=True)
    return torch.stack([torch.block_diag(*matrices) for matrices in blocks])


def conjugated(rho: Tensor, basis: Tensor) -> Tensor:
    out: Tensor = basis @ rho @ torch.linalg.inv(basis)
    return out
