"""Pure equivariant operations on features. The layers of `flopping.nn` hold parameters and call these.

Legend: B batch, N tokens, H heads, D head width, m copies, d components of an irrep, G order of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout
from flopping.sums import combine

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


def layer_norm(
    x: Feature, layout: Layout, weight: Sequence[Tensor], bias: Tensor, eps: float, invariant_only: bool = False
) -> Feature:
    """Remove the mean over the copies of each component, divide by one joint deviation, scale, shift.

    The joint variance is the mean square over all channels after the means are gone; for flop with equal
    shares (var(even) + var(odd)) / 2. `weight` has one tensor per irrep of the result that occurs; only the
    trivial irrep is shifted. With `invariant_only` the other parts of the result have no channels.
    """
    used = [i for i, m in enumerate(layout.multiplicities) if m]
    if used == [0]:
        return F.layer_norm(x[0], (layout.dim,), weight[0], bias, eps), *x[1:]
    wanted = 1 if invariant_only and used[0] == 0 else len(used)
    normed = _normalise([x[i] for i in used], [layout.irrep_dims[i] for i in used], layout, eps, wanted)
    parts = [part.narrow(-1, 0, 0) if invariant_only else part for part in x]
    for i, value, w in zip(used, normed, weight, strict=False):
        dtype = torch.promote_types(x[i].dtype, w.dtype)  # rounded once, at the end
        if i == 0:
            parts[i] = torch.addcmul(bias, value, w).to(dtype)
        elif not invariant_only:
            parts[i] = (value * w).to(dtype)
    return tuple(parts)


def _normalise(parts: Sequence[Tensor], dims: Sequence[int], layout: Layout, eps: float, wanted: int) -> list[Tensor]:
    """The first `wanted` parts, written out, with statistics in float32 at least: compilers make one pass of it.

    Torch's kernel on the packed parts would take their joint mean, which is gone, once more: eager it takes nearly
    twice as long (1576 x 768 values, one thread). And only written out a sign passes through exactly.
    """
    exact = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
    centred = [part - part.mean(-1, keepdim=True) for part in exact]
    squares = [(c * c).sum(-1, keepdim=True) for c in centred]
    joint = [square if d == 1 else square.sum(-2) for square, d in zip(squares, dims, strict=True)]
    scale = (sum(joint[1:], joint[0]) / layout.dim + eps).rsqrt()
    return [c * (scale if d == 1 else scale.unsqueeze(-2)) for c, d in zip(centred[:wanted], dims, strict=False)]


def attention(qkv: Feature, layout: Layout, num_heads: int, dropout: float = 0.0) -> Feature:
    """Multi-head attention on tokens; each head owns an equal slice of every part.

    `qkv` has three times the copies of `layout`, ordered (3, heads, copies per head) in each part. The dot
    product runs over all parts of a head together, so it is invariant, and the same weights mix all values.
    """
    q, k, v = heads(qkv, layout, num_heads)
    mixed_BHND = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    mixed_BNHD = mixed_BHND.transpose(1, 2)
    parts = []
    start = 0
    for d, m in zip(layout.irrep_dims, layout.multiplicities, strict=True):
        width = d * m // num_heads
        part = mixed_BNHD.narrow(-1, start, width)
        parts.append(part.flatten(-2) if d == 1 else part.unflatten(-1, (d, -1)).transpose(-3, -2).flatten(-2))
        start += width
    return tuple(parts)


def heads(qkv: Feature, layout: Layout, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `(B, H, N, D)` from `qkv` as in `attention`: of each head all parts, one behind another.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> [tuple(part.shape) for part in heads((layout * 3).random(2, 5), layout, num_heads=2)]
    [(2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)]
    """
    split_B3HND = [
        _split_heads(qkv[i], d, num_heads) for i, d in enumerate(layout.irrep_dims) if layout.multiplicities[i]
    ]
    q, k, v = (split_B3HND[0] if len(split_B3HND) == 1 else torch.cat(split_B3HND, -1)).unbind(1)
    return q, k, v


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """What each token takes from each: `(B, H, N, N)`, rows of which sum to 1. `attention` itself never holds them.

    >>> attention_weights(torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 2, 4)).tolist()
    [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    products: Tensor = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return products.softmax(-1)


def _split_heads(part: Tensor, d: int, num_heads: int) -> Tensor:
    """`(B, N, [d,] 3 m)` to `(B, 3, H, N, d m / H)`."""
    split: Tensor = part.unflatten(-1, (3, num_heads, -1))
    return split.permute(0, 2, 3, 1, 4) if d == 1 else split.permute(0, 3, 4, 1, 2, 5).flatten(-2)
