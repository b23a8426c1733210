"""Sums of features, their trivial irrep, and the regular basis, in which a group only permutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from flopping.features import Feature, Layout
from flopping.groups.sums import combine

Pointwise = Callable[[Tensor], Tensor]


def add(x: Feature, y: Feature) -> Feature:
    """Sum of two features of one layout, part by part.

    >>> [part.tolist() for part in add((torch.ones(1), torch.zeros(2)), (torch.ones(1), torch.ones(2)))]
    [[2.0], [1.0, 1.0]]
    """
    return tuple([a + b for a, b in zip(x, y, strict=True)])


def invariant_only(x: Feature) -> Feature:
    """The trivial irrep alone; the other parts stay, without channels.

    >>> [tuple(part.shape) for part in invariant_only((torch.ones(2, 3), torch.ones(2, 4)))]
    [(2, 3), (2, 0)]
    """
    return x[0], *[part.narrow(-1, 0, 0) for part in x[1:]]


def residual(x: Feature, branch: Feature, invariant_branch: bool) -> Feature:
    """A branch added to its input, of which only the trivial irrep goes on where the branch has no more.

    >>> even, odd = residual((torch.ones(2), torch.ones(2)), (torch.ones(2), torch.ones(0)), invariant_branch=True)
    >>> even.tolist(), odd.tolist()
    ([2.0, 2.0], [])
    """
    return add(invariant_only(x) if invariant_branch else x, branch)


def to_regular(x: Feature, layout: Layout) -> tuple[list[Tensor], Tensor | None]:
    """From irreps to the regular basis: one `(..., copies)` tensor per group element, and the extra channels.

    A group element permutes the tensors of the list and leaves the extra channels alone.

    >>> from flopping import flop
    >>> values, extra = to_regular((torch.ones(1, 3), torch.ones(1, 1)), Layout(flop, (3, 1)))
    >>> [v.round(decimals=3).tolist() for v in values], extra.tolist()
    ([[[1.4140000343322754]], [[0.0]]], [[1.0, 1.0]])
    """
    copies, extra = layout.require_regular("the regular basis")
    slots: list[Tensor] = []  # rows of the Fourier matrix: (irrep, component, copy)
    for i, irrep in enumerate(layout.group.irreps):
        for a in range(irrep.dim):
            component = x[i] if irrep.dim == 1 else x[i].select(-2, a)
            for c in range(irrep.regular_multiplicity):
                slots.append(component.narrow(-1, c * copies, copies))
    values = combine(slots, layout.group.from_irreps) if copies else []
    return values, x[0].narrow(-1, copies, extra) if extra else None


def from_regular(values: Sequence[Tensor], extra: Tensor | None, like: Feature, layout: Layout) -> Feature:
    """Inverse of `to_regular`; `like` gives parts of width zero their shape."""
    parts: list[Tensor] = []
    slots = iter(combine(values, layout.group.to_irreps) if values else [])
    for i, irrep in enumerate(layout.group.irreps):
        if not values:
            parts.append(extra if i == 0 and extra is not None else like[i])
            continue
        components = []
        for _ in range(irrep.dim):
            copies = [next(slots) for _ in range(irrep.regular_multiplicity)]
            if i == 0 and extra is not None:
                copies.append(extra)
            components.append(copies[0] if len(copies) == 1 else torch.cat(copies, -1))
        parts.append(components[0] if irrep.dim == 1 else torch.stack(components, -2))
    return tuple(parts)


def pointwise(x: Feature, layout: Layout, function: Pointwise) -> Feature:
    """Apply an elementwise function in the regular basis, where the group only permutes.

    For flop: s = f((e + o)/sqrt 2), t = f((e - o)/sqrt 2), then (s + t)/sqrt 2 and (s - t)/sqrt 2. Extra
    invariant channels go through f directly.
    """
    if layout.group.order == 1:
        return (function(x[0]),)
    values, extra = to_regular(x, layout)
    return from_regular([function(v) for v in values], None if extra is None else function(extra), x, layout)
