"""Pure equivariant operations on features. The layers of `flopping.nn` hold parameters and call these.

Legend: B batch, N tokens, H heads, D head width, m copies, d components of an irrep, G order of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout

Pointwise = Callable[[Tensor], Tensor]


def combine(terms: Sequence[Tensor], coefficients: Sequence[float]) -> Tensor:
    """Linear combination of equally shaped tensors; zero coefficients cost nothing.

    Terms of equal weight are added first, so what cancels in theory cancels exactly.

    >>> combine([torch.ones(2), torch.ones(2)], [0.5, -2.0]).tolist()
    [-1.5, -1.5]
    """
    weights: dict[float, float] = {}
    sums: dict[float, Tensor] = {}
    for term, c in sorted(zip(terms, coefficients, strict=True), key=lambda pair: -pair[1]):
        size = round(abs(c), 12)  # equal but for the rounding of where they come from
        if not size:
            continue
        if size not in sums:
            weights[size], sums[size] = abs(c), term if c > 0 else -term
        else:
            sums[size] = sums[size] + term if c > 0 else sums[size] - term
    if not sums:
        raise ValueError(f"a combination needs a coefficient that is not zero, got {list(coefficients)}")
    total, *others = (sums[size] if size == 1 else sums[size] * weights[size] for size in sums)
    return sum(others, total)


def add(x: Feature, y: Feature) -> Feature:
    """Sum of two features of one layout, part by part.

    >>> [part.tolist() for part in add((torch.ones(1), torch.zeros(2)), (torch.ones(1), torch.ones(2)))]
    [[2.0], [1.0, 1.0]]
    """
    return tuple(a + b for a, b in zip(x, y, strict=True))


def to_regular(x: Feature, layout: Layout) -> tuple[list[Tensor], Tensor | None]:
    """From irreps to the regular basis: one `(..., copies)` tensor per group element, and the extra channels.

    A group element permutes the tensors of the list and leaves the extra channels alone.

    >>> from flopping import flop
    >>> values, extra = to_regular((torch.ones(1, 3), torch.ones(1, 1)), Layout(flop, (3, 1)))
    >>> [v.round(decimals=3).tolist() for v in values], extra.tolist()
    ([[[1.4140000343322754]], [[0.0]]], [[1.0, 1.0]])
    """
    copies, extra = layout.copies, layout.extra
    slots: list[Tensor] = []  # rows of the Fourier matrix: (irrep, component, copy)
    for i, irrep in enumerate(layout.group.irreps):
        for a in range(irrep.dim):
            component = x[i] if irrep.dim == 1 else x[i].select(-2, a)
            for c in range(irrep.regular_multiplicity):
                slots.append(component.narrow(-1, c * copies, copies))
    columns = layout.group.fourier_rows
    values = [combine(slots, [row[g] for row in columns]) for g in range(layout.group.order)] if copies else []
    return values, x[0].narrow(-1, copies, extra) if extra else None


def from_regular(values: Sequence[Tensor], extra: Tensor | None, like: Feature, layout: Layout) -> Feature:
    """Inverse of `to_regular`; `like` gives parts of width zero their shape."""
    parts: list[Tensor] = []
    rows = iter(layout.group.fourier_rows)
    for i, irrep in enumerate(layout.group.irreps):
        if not values:
            parts.append(extra if i == 0 and extra is not None else like[i])
            continue
        components = []
        for _ in range(irrep.dim):
            copies = [combine(values, next(rows)) for _ in range(irrep.regular_multiplicity)]
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


def layer_norm(x: Feature, layout: Layout, weight: Sequence[Tensor], bias: Tensor, eps: float) -> Feature:
    """Remove the mean over the copies of each component, divide by one joint deviation, scale, shift.

    The joint variance is the mean square over all channels after the means are gone; for flop with equal
    shares (var(even) + var(odd)) / 2. `weight` has one tensor per irrep that occurs; only the trivial irrep is
    shifted.
    """
    if layout.group.order == 1:
        return (F.layer_norm(x[0], (layout.dim,), weight[0], bias, eps),)
    used = [i for i, m in enumerate(layout.multiplicities) if m]
    # The same numbers, two ways, because each is the faster one where it is used (1576 x 768 values, 2 threads):
    # written out 0.6 ms compiled and 5 ms eager, with torch's kernel 1.0 ms compiled and 1.1 ms eager. The kernel
    # tells its rstd without a gradient, so it serves inference only.
    written_out = torch.compiler.is_compiling() or torch.is_grad_enabled()
    normalise = _normalise_plain if written_out else _normalise_by_kernel
    scaled = normalise([x[i] for i in used], weight, [layout.irrep_dims[i] for i in used], layout.dim, eps)
    parts = list(x)
    for i, (value, factor) in zip(used, scaled, strict=True):
        parts[i] = torch.addcmul(bias, value, factor) if i == 0 else value * factor
    return tuple(parts)


def _normalise_plain(
    parts: Sequence[Tensor], weight: Sequence[Tensor], dims: Sequence[int], channels: int, eps: float
) -> list[tuple[Tensor, Tensor]]:
    """Two factors of each normalised and scaled part: scaled deviations from the mean, and 1 / joint deviation."""
    centred = [part - part.mean(-1, keepdim=True) for part in parts]
    squares = [_over_components(c.square().sum(-1, keepdim=True), d) for c, d in zip(centred, dims, strict=True)]
    scale = (sum(squares[1:], squares[0]) / channels + eps).rsqrt()
    return [(c * w, scale if d == 1 else scale.unsqueeze(-2)) for c, w, d in zip(centred, weight, dims, strict=True)]


def _normalise_by_kernel(
    parts: Sequence[Tensor], weight: Sequence[Tensor], dims: Sequence[int], channels: int, eps: float
) -> list[tuple[Tensor, Tensor]]:
    """The same by torch's kernel, which normalises each component by itself and tells rstd = (var + eps)^-1/2.

    The copies' shares of (var + eps) add up to the joint variance + eps.
    """
    normed = [
        torch.native_layer_norm(part, part.shape[-1:], w, None, eps) for part, w in zip(parts, weight, strict=True)
    ]
    deviations = [rstd.reciprocal() for _, _, rstd in normed]
    shares = [
        _over_components(deviation.square() * (part.shape[-1] / channels), d)
        for deviation, part, d in zip(deviations, parts, dims, strict=True)
    ]
    scale = sum(shares[1:], shares[0]).rsqrt()
    return [
        (value, deviation * (scale if d == 1 else scale.unsqueeze(-2)))
        for (value, _, _), deviation, d in zip(normed, deviations, dims, strict=True)
    ]


def _over_components(value: Tensor, d: int) -> Tensor:
    return value if d == 1 else value.sum(-2)


def attention(qkv: Feature, layout: Layout, num_heads: int, dropout: float = 0.0) -> Feature:
    """Multi-head attention on tokens; each head owns an equal slice of every part.

    `qkv` has three times the copies of `layout`, ordered (3, heads, copies per head) in each part. The dot
    product runs over all parts of a head together, so it is invariant, and the same weights mix all values.
    """
    heads = []
    for i, d in enumerate(layout.irrep_dims):
        if layout.multiplicities[i]:
            split_B3HND = _split_heads(qkv[i], d, num_heads)
            heads.append(split_B3HND)
    q, k, v = (heads[0] if len(heads) == 1 else torch.cat(heads, -1)).unbind(1)
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


def _split_heads(part: Tensor, d: int, num_heads: int) -> Tensor:
    """`(B, N, [d,] 3 m)` to `(B, 3, H, N, d m / H)`."""
    split: Tensor = part.unflatten(-1, (3, num_heads, -1))
    return split.permute(0, 2, 3, 1, 4) if d == 1 else split.permute(0, 3, 4, 1, 2, 5).flatten(-2)
