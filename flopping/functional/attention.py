"""Attention between tokens.

Legend: B batch, N tokens, H heads, D head width, m copies, d components of an irrep.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout, Read
from flopping.functional.operation import operation


def attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, dropout: float = 0.0, attn_mask: Tensor | None = None
) -> Feature:
    """Multi-head attention on tokens, from queries, keys and values `(B, H, N, D)` as `heads` gives them.

    The dot product runs over all parts of a head together, so it is invariant, and the same weights mix all values.
    `attn_mask` is that of torch's attention: True where a query sees a key, or numbers that are added to the products.
    """
    num_heads = q.shape[1]
    mixed_BHND = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout)
    mixed_BNHD = mixed_BHND.transpose(1, 2)
    parts = []
    start = 0
    for d, m in zip(layout.irrep_dims, layout.multiplicities, strict=True):
        width = d * m // num_heads
        part = mixed_BNHD.narrow(-1, start, width)
        parts.append(part.flatten(-2) if d == 1 else part.unflatten(-1, (d, -1)).transpose(-3, -2).flatten(-2))
        start += width
    return tuple(parts)


@operation()
def heads(qkv: Feature, layout: Layout, num_heads: int) -> tuple[Tensor, ...]:
    """Queries, keys and values `(B, H, N, D)`, or some of them. D has all parts of a head, one after another.

    `qkv` has n times the copies of `layout` for n results (3 for queries, keys and values), ordered (n, heads, copies
    per head) in each part, so each head owns an equal slice of every part.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> [tuple(part.shape) for part in heads((layout * 3).random(2, 5), layout, num_heads=2)]
    [(2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)]
    """
    split_B3HND = [
        _split_heads(qkv[i], d, num_heads, m // num_heads)
        for i, (d, m) in enumerate(zip(layout.irrep_dims, layout.multiplicities, strict=True))
        if m
    ]
    return (split_B3HND[0] if len(split_B3HND) == 1 else torch.cat(split_B3HND, -1)).unbind(1)


def read_rows(table: Tensor, read: Read) -> Tensor:
    """The rows `(..., N, M)` of the tokens that are read: of a mask, or of a table of positions.

    >>> read_rows(torch.eye(3), lambda x: tuple(part.narrow(1, 0, 1) for part in x)).tolist()
    [[1.0, 0.0, 0.0]]
    """
    (rows,) = read((table.movedim(-2, 0)[None],))
    return rows[0].movedim(0, -2)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """The attention weights `(B, H, N, N)`, whose rows sum to 1. `attention` itself does not compute them.

    >>> attention_weights(torch.zeros(1, 1, 2, 4), torch.ones(1, 1, 2, 4)).tolist()
    [[[[0.5, 0.5], [0.5, 0.5]]]]
    """
    products: Tensor = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return products.softmax(-1)


def _split_heads(part: Tensor, d: int, num_heads: int, copies: int) -> Tensor:
    """`(B, N, [d,] 3 m)` to `(B, 3, H, N, d m / H)`; `copies` are m / H."""
    split: Tensor = part.unflatten(-1, (-1, num_heads, copies))
    return split.permute(0, 2, 3, 1, 4) if d == 1 else split.permute(0, 3, 4, 1, 2, 5).flatten(-2)
