"""Attention between tokens, and rotary positions, which it applies to queries and keys."""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod

import torch
from torch import Tensor, nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, Read, is_given, is_symbolic
from flopping.functional.grid import Grid, as_pair, check_square
from flopping.functional.rotary import Planes
from flopping.nn.drop import Dropout, probability
from flopping.nn.linear import Linear
from flopping.nn.module import Module
from flopping.nn.norm import LayerNorm


class RotaryEmbed(nn.Module):
    """Rotary positions that follow the group, for the heads of a layout: tables for the tokens of a grid.

    Blocks of one layout share it. The grid's tables are constants; those of other grids are made once for each. Tokens
    in front of the grid's have no place and don't turn. A head needs a multiple of 4 copies of the regular
    representation, for `rot90` and `octic` any number; extra invariant channels don't turn.

    With the trivial group, tables and order of channels are those of timm's DINOv3.

    >>> from flopping import flop
    >>> rope = RotaryEmbed(Layout.regular(flop, 32), num_heads=2, grid_size=(2, 3), num_prefix_tokens=1)
    >>> tuple(rope.turn(torch.randn(5, 2, 7, 16)).shape)
    (5, 2, 7, 16)
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        layout: Layout,
        num_heads: int,
        grid_size: int | Grid,
        *,
        num_prefix_tokens: int = 0,
        temperature: float = 100.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        if not temperature > 1:
            raise ValueError(f"the temperature of rotary positions is above 1, got {temperature}")
        self.layout, self.num_heads = layout, num_heads
        self.num_prefix_tokens = num_prefix_tokens
        self.planes = functional.rotary_planes(layout, num_heads, float(temperature))
        self._build(as_pair(grid_size, "grid_size"), device, dtype)

    def _build(self, grid: Grid, device: Device, dtype: Dtype) -> None:
        check_square(self.layout.group, grid, "RotaryEmbed")
        self.grid_size = grid
        shape = self.num_prefix_tokens + prod(grid), self.layout.dim // self.num_heads
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(shape, device=device, dtype=dtype), persistent=False)
        self.init_non_persistent_buffers()

    @torch.no_grad()
    def init_non_persistent_buffers(self) -> None:
        """Fill in the tables; again after `to_empty`, for a network built on the meta device."""
        cpu = torch.device("cpu")
        tables = functional.rotary_tables(self.planes, self.grid_size, self.num_prefix_tokens, torch.float64, cpu)
        self.cos.copy_(tables[0])
        self.sin.copy_(tables[1])

    def extra_repr(self) -> str:
        return f"{self.layout}, num_heads={self.num_heads}, grid_size={self.grid_size}"

    def resize_(self, grid_size: int | Grid) -> RotaryEmbed:
        """Take the tables of another grid."""
        self._build(as_pair(grid_size, "grid_size"), self.cos.device, self.cos.dtype)
        return self

    def tables(self, grid_size: Grid | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines `(tokens, head width)` of a grid."""
        if not is_given(grid_size) or grid_size == self.grid_size:
            return self.cos, self.sin
        make = functional.rotary_tables if torch.compiler.is_compiling() else _kept_tables
        return make(self.planes, grid_size, self.num_prefix_tokens, self.cos.dtype, self.cos.device)

    def turn(self, x: Tensor, grid_size: Grid | None = None, read: Read | None = None) -> Tensor:
        """Queries or keys `(B, H, N, D)` turned by the angles of their places, or of the tokens that are read."""
        cos, sin = self.tables(grid_size)
        if is_given(read):
            cos, sin = functional.read_rows(cos, read), functional.read_rows(sin, read)
        if not torch.compiler.is_compiling() and not is_symbolic(x) and x.shape[-2:] != cos.shape:
            raise ValueError(
                f"RotaryEmbed: grid {grid_size or self.grid_size} after {self.num_prefix_tokens} prefix tokens needs"
                f" heads (..., {cos.shape[0]}, {cos.shape[1]}), got shape {tuple(x.shape)}"
            )
        return functional.rotate(x, self.planes, cos, sin)


@lru_cache(maxsize=64)
def _kept_tables(
    planes: Planes, grid: Grid, prefix: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.no_grad():  # training may use what a test made first
        return functional.rotary_tables(planes, grid, prefix, dtype, device)


class Attention(Module):
    """Multi-head attention on tokens `(B, N, ...)`; each head owns an equal slice of every part.

    The law: it commutes with the group's action on channels and with any permutation of the tokens. With `rope`, it
    commutes with what the group does to tokens on a grid.

    Called with `read`, which selects tokens, it returns only these; keys and values are computed for all tokens. With
    `context`, keys and values are those of other tokens (cross-attention). `attn_mask`, of shape `(N, M)` or
    `(B or 1, H or 1, N, M)`, says which of M keys each of N queries sees: True for those, or numbers to add to the
    products. A mask moves with the tokens. `qk_norm` normalises every query and key over its head, as
    `LayerNorm` does; `norm_by_irrep` is its `by_irrep`.

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
        qk_norm: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        eps: float = 1e-6,
        norm_by_irrep: bool = False,
        rope: RotaryEmbed | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(layout, layout)
        if num_heads < 1 or any(m % num_heads for m in layout.multiplicities):
            raise ValueError(f"every head needs an equal slice of every part: {num_heads} heads do not divide {layout}")
        if rope is not None and (rope.layout, rope.num_heads) != (layout, num_heads):
            raise ValueError(
                f"rotary positions are those of {rope.num_heads} heads of {rope.layout},"
                f" but attention has {num_heads} heads of {layout}"
            )
        self.num_heads = num_heads
        self.attn_drop = probability(attn_drop)
        self.qkv = Linear(layout, layout * 3, bias=qkv_bias, device=device, dtype=dtype)
        head = layout * (1 / num_heads)
        norm = partial(LayerNorm, head, eps, by_irrep=norm_by_irrep, device=device, dtype=dtype)
        self.q_norm = norm() if qk_norm else None
        self.k_norm = norm() if qk_norm else None
        self.rope = rope
        self.proj = Linear(layout, layout, device=device, dtype=dtype)
        self.proj_drop = Dropout(layout, proj_drop)

    def forward(
        self,
        x: Feature,
        read: Read | None = None,
        attn_mask: Tensor | None = None,
        grid: Grid | None = None,
        context: Feature | None = None,
    ) -> Feature:
        dropout = self.attn_drop if self.training else 0.0
        q, k, v = self.heads(x, read, grid, context)
        mask = self._mask(attn_mask, q, k, read) if is_given(attn_mask) else None
        mixed = functional.attention(q, k, v, self.in_layout, dropout, mask)
        out: Feature = self.proj_drop(self.proj(mixed))
        return out

    def heads(
        self, x: Feature, read: Read | None = None, grid: Grid | None = None, context: Feature | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values `(B, H, N, D)`, normed and turned. `grid` is how the tokens lie, where it varies."""
        layout, num_heads = self.in_layout, self.num_heads
        x = layout.parts(x, "Attention", self.leading)
        if not is_given(read) and not is_given(context):
            q, k, v = functional.heads(self.qkv(x), layout, num_heads)
        else:
            others = layout.parts(context, "context of Attention", self.leading) if is_given(context) else x
            (q,) = functional.heads(self.qkv.share(read(x) if is_given(read) else x, 0, 1, 3), layout, num_heads)
            k, v = functional.heads(self.qkv.share(others, 1, 3, 3), layout, num_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = _norm(self.q_norm, q), _norm(self.k_norm, k)
        if self.rope is None and is_given(grid):
            raise ValueError(f"grid is for rotary positions, but this attention has none, got grid {grid}")
        if self.rope is not None:
            if is_given(context):
                raise ValueError("rotary positions need the tokens of a grid: a context has none")
            q, k = self.rope.turn(q, grid, read), self.rope.turn(k, grid)
        return q, k, v

    def _mask(self, mask: Tensor, q: Tensor, k: Tensor, read: Read | None) -> Tensor:
        """The mask of the tokens that are read."""
        if is_given(read) and mask.shape[-2] != 1:
            mask = functional.read_rows(mask, read)
        wanted = (*q.shape[:3], k.shape[2])
        fits = zip(mask.shape[::-1], wanted[::-1], strict=False)
        if not torch.compiler.is_compiling() and (mask.dim() not in (2, 4) or any(n not in (1, m) for n, m in fits)):
            raise ValueError(
                f"attn_mask has shape ({wanted[2]}, {wanted[3]}), or four axes that broadcast to {wanted},"
                f" got {tuple(mask.shape)}"
            )
        return mask


def _norm(norm: LayerNorm, x: Tensor) -> Tensor:
    """Normalise each head `(B, H, N, D)` of each token; heads become part of the batch axis."""
    heads = x.shape[1]
    normed: Feature = norm(norm.in_layout.split(x.flatten(0, 1)))
    out: Tensor = norm.in_layout.merge(normed).unflatten(0, (-1, heads))
    return out
