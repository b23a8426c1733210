"""Attention between tokens."""

from __future__ import annotations

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.nn.drop import Dropout, probability
from flopping.nn.linear import Linear
from flopping.nn.module import Module


class Attention(Module):
    """Multi-head self-attention on tokens `(B, N, ...)`; each head owns an equal slice of every part.

    The law: it commutes with the group's action on channels and with any permutation of the tokens. Called with
    `read`, which selects tokens, it gives those alone: only keys and values are computed for all.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 16)
    >>> [tuple(part.shape) for part in Attention(layout, num_heads=2)(layout.random(3, 5))]
    [(3, 5, 8), (3, 5, 8)]
    """

    in_layout: Layout
    leading = 2

    def __init__(
        self,
        layout: Layout,
        num_heads: int = 8,
        *,
        qkv_bias: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(layout, layout)
        if num_heads < 1 or any(m % num_heads for m in layout.multiplicities):
            raise ValueError(f"every head needs an equal slice of every part: {num_heads} heads do not divide {layout}")
        self.num_heads = num_heads
        self.attn_drop = probability(attn_drop)
        self.qkv = Linear(layout, layout * 3, bias=qkv_bias, device=device, dtype=dtype)
        self.proj = Linear(layout, layout, device=device, dtype=dtype)
        self.proj_drop = Dropout(layout, proj_drop)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        dropout = self.attn_drop if self.training else 0.0
        x = self.in_layout.parts(x, "Attention", self.leading)
        if not is_given(read):
            q, k, v = functional.heads(self.qkv(x), self.in_layout, self.num_heads)
        else:
            (q,) = functional.heads(self.qkv.share(read(x), 0, 1, 3), self.in_layout, self.num_heads)
            k, v = functional.heads(self.qkv.share(x, 1, 3, 3), self.in_layout, self.num_heads)
        mixed = functional.attention(q, k, v, self.in_layout, dropout)
        out: Feature = self.proj_drop(self.proj(mixed))
        return out
