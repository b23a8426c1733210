"""Sums of features, their trivial irrep, and the regular basis, in which a group only permutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import sqrt
from operator import add as add_layouts
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout, is_exporting, is_symbolic
from flopping.functional.operation import operation
from flopping.groups import Group
from flopping.groups.sums import Sums, combine

Pointwise = Callable[[Tensor], Tensor]
_SQRT_HALF = sqrt(0.5)


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


@operation()
def residual(x: Feature, branch: Feature, layout: Layout, scale: Sequence[Tensor | None] | None = None) -> Feature:
    """x + scale * branch, with one scale per copy, or without a scale.

    The result has only the irreps that the branch has.

    >>> even, odd = residual((torch.ones(2), torch.ones(2)), (torch.ones(2), torch.ones(0)), Layout("flop", (2, 0)))
    >>> even.tolist(), odd.tolist()
    ([2.0, 2.0], [])
    """
    parts = []
    for i, m in enumerate(layout.multiplicities):
        factor = None if scale is None else scale[i]
        if m:
            parts.append(x[i] + branch[i] if factor is None else torch.addcmul(x[i], branch[i], factor))
        else:
            parts.append(branch[i])
    return tuple(parts)


def cat(features: Sequence[Feature]) -> Feature:
    """Features side by side, copies of each irrep after one another; the layout of the result is the sum of theirs.

    >>> one, two = Layout.regular("flop", 4), Layout.regular("flop", 8, extra=2)
    >>> [tuple(part.shape) for part in cat([one.random(5), two.random(5)])], one + two
    ([(5, 7), (5, 5)], Layout(flop, even=7, odd=5))
    """
    return tuple([torch.cat(parts, -1) for parts in zip(*features, strict=True)])


def split(x: Feature, layouts: Sequence[Layout]) -> list[Feature]:
    """Inverse of `cat`: features of the given layouts, as views.

    >>> one, two = Layout.regular("octic", 8), Layout.regular("octic", 16)
    >>> [layout.merge(part).shape[-1] for part, layout in zip(split((one + two).random(5), [one, two]), [one, two])]
    [8, 16]
    """
    x = reduce(add_layouts, layouts).parts(x, "split")
    by_irrep = [part.split([layout.multiplicities[i] for layout in layouts], -1) for i, part in enumerate(x)]
    return list(zip(*by_irrep, strict=True))


def to_regular(x: Feature, layout: Layout, sums: Sums | None = None) -> tuple[list[Tensor], Tensor]:
    """From irreps to the regular basis: one `(..., copies)` tensor per group element, and the extra channels.

    A group element permutes the tensors of the list and leaves the extra channels alone. So any function that treats
    all tensors of the list alike, elementwise or with weights, keeps the symmetry. `sums` replaces the orthonormal
    change of basis, for example by one without its factors.

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
    return combine(slots, sums or layout.group.from_irreps), x[0].narrow(-1, copies, extra)


def from_regular(values: Sequence[Tensor], extra: Tensor, layout: Layout, sums: Sums | None = None) -> Feature:
    """Inverse of `to_regular`. `sums` replaces the orthonormal change of basis, for example by one without its factors.

    >>> layout = Layout.regular("octic", 18, extra=2)
    >>> x = layout.random(5)
    >>> all(torch.allclose(a, b, atol=1e-6) for a, b in zip(from_regular(*to_regular(x, layout), layout), x))
    True
    """
    has_extra = layout.require_regular("the regular basis")[1] > 0
    parts: list[Tensor] = []
    slots = iter(combine(values, sums or layout.group.to_irreps))
    for i, irrep in enumerate(layout.group.irreps):
        components = []
        for _ in range(irrep.dim):
            copies = [next(slots) for _ in range(irrep.regular_multiplicity)]
            if i == 0 and has_extra:
                copies.append(extra)
            components.append(copies[0] if len(copies) == 1 else torch.cat(copies, -1))
        parts.append(components[0] if irrep.dim == 1 else torch.stack(components, -2))
    return tuple(parts)


@operation(recompute=True)
def pointwise(x: Feature, layout: Layout, function: Pointwise, scaled: bool = True) -> Feature:
    """Apply an elementwise function in the regular basis, where the group only permutes.

    For flop: s = f((e + o)/sqrt 2), t = f((e - o)/sqrt 2), then (s + t)/sqrt 2 and (s - t)/sqrt 2. Extra invariant
    channels go through f directly. With `scaled=False`, for irreps of one dimension, the factors are left out.
    """
    group, function = layout.group, recompute_mask(function, x[0])
    copies, extra_channels = layout.require_regular("a pointwise function")
    if group.order == 1 or not copies:  # invariant channels only
        return function(x[0]), *x[1:]
    if group.order == 2:
        return _pointwise_of_two(x, copies, extra_channels, function, scaled)
    to, back = (group.from_irreps, group.to_irreps) if scaled else _signs(group)
    values, extra = to_regular(x, layout, to)
    return from_regular([function(v) for v in values], function(extra) if extra_channels else extra, layout, back)


@operation(recompute=True)
def gated(x: Feature, layout: Layout, function: Pointwise, scaled: bool = True) -> Feature:
    """An elementwise function of the first half of the copies of each irrep, times the second half.

    Function and product are applied elementwise in the regular basis, where the group only permutes. `layout` is
    that of each half and of the result. `scaled` is as in `pointwise`.

    >>> gated((torch.tensor([2.0, 3.0]),), Layout.regular("trivial", 1), torch.square)[0].tolist()
    [12.0]
    """
    function = recompute_mask(function, x[0])
    gate, value = [
        tuple([part.narrow(-1, i * m, m) for part, m in zip(x, layout.multiplicities, strict=True)]) for i in (0, 1)
    ]
    group = layout.group
    copies, extra_channels = layout.require_regular("a gate")
    if group.order == 1 or not copies:  # invariant channels only
        return function(gate[0]) * value[0], *value[1:]
    to, back = (group.from_irreps, group.to_irreps) if scaled else _signs(group)
    (gates, extra_gate), (values, extra) = to_regular(gate, layout, to), to_regular(value, layout, to)
    extra = function(extra_gate) * extra if extra_channels else extra
    return from_regular([function(g) * v for g, v in zip(gates, values, strict=True)], extra, layout, back)


def recompute_mask(function: Pointwise, x: Tensor) -> Pointwise:
    """For ReLU in compiled training on a CPU, a form whose mask is recomputed in the backward pass; else the function.

    Compiled code would store the mask of torch's ReLU, one byte per element. With AVX2 that takes 15 times as long as
    the rest of a batch norm and ReLU.
    """
    trains = torch.compiler.is_compiling() and not is_exporting() and torch.is_grad_enabled()
    is_relu = function is F.relu or function is torch.relu
    return _Relu.apply if is_relu and trains and x.device.type == "cpu" else function


class _Relu(torch.autograd.Function):
    """ReLU with a derivative of floating-point operations."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.relu(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return gradient * x.sign().clamp_min(0)


def _pointwise_of_two(x: Feature, copies: int, extra: int, function: Pointwise, scaled: bool) -> Feature:
    """For groups of order 2; reuses the memory of inputs after their last use."""
    even, more = (x[0].narrow(-1, 0, copies), x[0].narrow(-1, copies, extra)) if extra else (x[0], None)
    own = not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_symbolic(x))
    left = function((even + x[1]).mul_(_SQRT_HALF) if scaled else even + x[1])
    right = function((even - x[1]).mul_(_SQRT_HALF) if scaled else even - x[1])
    result = [left + right, left.sub_(right) if own else left - right]
    if scaled:
        result = [part.mul_(_SQRT_HALF) for part in result]
    return result[0] if more is None else torch.cat([result[0], function(more)], -1), result[1]


def _signs(group: Group) -> tuple[Sums, Sums]:
    """The changes of basis of a group with irreps of one dimension, without their factors."""
    if group.signs is None:
        group.require_signs("a change of basis without factors")
    return cast("tuple[Sums, Sums]", group.signs)
