"""Numbers of a feature that the group does not change: lengths, and polynomials."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from flopping.features import Feature, Layout
from flopping.functional.basis import invariant_only
from flopping.functional.operation import operation
from flopping.groups import Group, flip, flipflop, flop, octic, rot90, rot180, trivial

POLYNOMIALS: dict[Group, str] = {
    trivial: "0",
    **dict.fromkeys((flop, flip, rot180), "0 11"),
    flipflop: "0 11 22 33 123",
    rot90: "0 11 22+33 122-133 123 2222+3333 2223-2333",
    octic: "0 66+77 46+57 44+55 33 22 11 367 356+347 345 266-277 246-257 244-255 156-147 123"
    " 6666+7777 4666+5777 4466+5577 4446+5557 4444+5555 2356-2347 1366-1377 1346-1357 1344-1355 1267 1256+1247 1245"
    " 16667-16777 15666-14777 14566-14577 14456-14557 14445-14555",
}
"""Invariant polynomials of one copy of the regular representation: a digit is a number of `slots`, 66 its square.

Those of octic are the ones of octic-vits, in their order. Other generators of the same invariants are no linear maps of
these, and its checkpoints could not be read with them; so this is a table, and not computed from the group.
"""


def slots(x: Feature, layout: Layout) -> list[Tensor]:
    """The numbers of each copy of the regular representation: |G| tensors `(..., copies)`, and extra channels if any.

    They are ordered by irrep, then by its copies, then by component.

    >>> layout = Layout.regular("octic", 16)
    >>> [tuple(slot.shape) for slot in slots(layout.random(5), layout)] == [(5, 2)] * 8
    True
    """
    copies, extra = layout.require_regular("numbers by copies")
    found = []
    for part, irrep in zip(x, layout.group.irreps, strict=True):
        components = [part] if irrep.dim == 1 else [part.select(-2, a) for a in range(irrep.dim)]
        for number in range(irrep.regular_multiplicity):
            found += [component.narrow(-1, number * copies, copies) for component in components]
    return [*found, x[0].narrow(-1, copies, extra)] if extra else found


@operation(recompute=True)
def lengths(x: Feature, layout: Layout) -> Feature:
    """The trivial irrep, and the length of every other copy over its components: for flop [even | |odd|].

    >>> lengths((torch.tensor([-2.0]), torch.tensor([-3.0])), Layout.regular("flop", 2))
    (tensor([-2.,  3.]), tensor([]))
    """
    even, *none = invariant_only(x)
    others = zip(x[1:], layout.irrep_dims[1:], strict=True)
    found = [part.abs() if d == 1 else torch.linalg.vector_norm(part, dim=-2) for part, d in others]
    return torch.cat([even, *found], -1), *none


class PolynomialPlan(NamedTuple):
    """How to compute the polynomials of a group from the |G| numbers of a copy of the regular representation."""

    products: tuple[tuple[int, int], ...]
    """Which two values make another one, numbered after the others."""
    sums: tuple[tuple[int, int, int], ...]
    """For each polynomial a value, a sign, and the value that is added or subtracted; a sign of 0 for none."""


@lru_cache
def polynomial_plan(group: Group) -> PolynomialPlan:
    """The plan of a group's polynomials; products that several polynomials share are computed once.

    >>> polynomial_plan(flop)
    PolynomialPlan(products=((1, 1),), sums=((0, 0, 0), (2, 0, 0)))
    """
    if group not in POLYNOMIALS:
        known = ", ".join(str(group) for group in POLYNOMIALS)
        raise ValueError(f"invariant polynomials are known for {known}, got {group}")
    numbers = {str(i): i for i in range(group.order)}
    products: list[tuple[int, int]] = []

    def number_of(monomial: str) -> int:
        if monomial not in numbers:
            products.append((number_of(monomial[:-1]), numbers[monomial[-1]]))
            numbers[monomial] = group.order + len(products) - 1
        return numbers[monomial]

    sums = []
    for polynomial in POLYNOMIALS[group].split():
        first, sign, second = polynomial.partition("-" if "-" in polynomial else "+")
        sums.append((number_of(first), {"": 0, "+": 1, "-": -1}[sign], number_of(second) if sign else 0))
    return PolynomialPlan(tuple(products), tuple(sums))


@operation(recompute=True)
def polynomials(x: Feature, layout: Layout, plan: PolynomialPlan) -> Feature:
    """The polynomials of the group, each for all copies, and extra channels as they are.

    >>> polynomials((torch.tensor([-2.0]), torch.tensor([-3.0])), Layout.regular("flop", 2), polynomial_plan(flop))
    (tensor([-2.,  9.]), tensor([]))
    """
    _, *none = invariant_only(x)
    given = slots(x, layout)
    values, extra = given[: layout.group.order], given[layout.group.order :]
    for i, j in plan.products:
        values.append(values[i] * values[j])
    found = []
    for i, sign, j in plan.sums:
        found.append(values[i] if sign == 0 else values[i] + values[j] if sign > 0 else values[i] - values[j])
    return torch.cat([*found, *extra], -1), *none
