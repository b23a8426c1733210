"""Invariant layers. The law: moving a feature permutes the places of the result and changes nothing else."""

from __future__ import annotations

from functools import reduce

import torch

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout
from flopping.functional.invariants import polynomial_plan
from flopping.nn.linear import Linear
from flopping.nn.module import Module


class AbsToInvariant(Module):
    """Lengths: the trivial irrep, and of each other copy its length over the components. For flop [even | |odd|].

    >>> from flopping import flop
    >>> layer = AbsToInvariant(Layout.regular(flop, 4))
    >>> layer((torch.ones(1, 2), -torch.ones(1, 2)))[0].tolist()
    [[1.0, 1.0, 1.0, 1.0]]
    >>> AbsToInvariant(Layout.regular("octic", 16)).out_layout
    Layout(octic, A1=12, A2=0, B1=0, B2=0, E=2x0)
    """

    in_layout: Layout
    out_layout: Layout

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, Layout.invariant(layout.group, sum(layout.multiplicities)))

    def forward(self, x: Feature) -> Feature:
        return functional.lengths(self.in_layout.parts(x, "AbsToInvariant"), self.in_layout)


class MaxFilter(Module):
    """Max filtering: the largest dot product with a reference, over all elements of the group that move the reference.

    The dot products with all moved references are one equivariant map to copies of the regular representation, where
    the group permutes them. So they cost what `Linear` costs, for octic 3/16 of the products written out.

    >>> layer = MaxFilter(Layout.regular("octic", 16), references=5)
    >>> sum(p.numel() for p in layer.parameters()), layer.out_layout.dim
    (80, 5)
    """

    in_layout: Layout
    out_layout: Layout

    def __init__(
        self, layout: Layout, references: int | None = None, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        count = 2 * layout.dim if references is None else references
        if count < 1:
            raise ValueError(f"max filtering needs at least 1 reference, got {references}")
        super().__init__(layout, Layout.invariant(layout.group, count))
        moved = Layout.regular(layout.group, count * layout.group.order)
        self.references = Linear(layout, moved, bias=False, device=device, dtype=dtype)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "MaxFilter")
        products, _ = functional.to_regular(self.references(x), self.references.out_layout)
        _, *none = functional.invariant_only(x)
        return reduce(torch.maximum, products), *none


class Polynomials(Module):
    """Invariant polynomials of each copy of the regular representation, up to degree 5: 32 for octic.

    >>> Polynomials(Layout.regular("octic", 16)).out_layout.dim, Polynomials(Layout.regular("flop", 16)).out_layout.dim
    (64, 16)
    """

    in_layout: Layout
    out_layout: Layout

    def __init__(self, layout: Layout) -> None:
        copies, extra = layout.require_regular("Polynomials")
        plan = polynomial_plan(layout.group)
        super().__init__(layout, Layout.invariant(layout.group, len(plan.sums) * copies + extra))
        self.plan = plan

    def forward(self, x: Feature) -> Feature:
        return functional.polynomials(self.in_layout.parts(x, "Polynomials"), self.in_layout, self.plan)
