"""The MLP and the transformer block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.functional import Pointwise
from flopping.functional.grid import Grid
from flopping.nn.activation import Activation, GatedActivation
from flopping.nn.attention import Attention, RotaryEmbed
from flopping.nn.drop import Dropout, DropPath
from flopping.nn.linear import Linear
from flopping.nn.module import Module
from flopping.nn.norm import LayerNorm, add_branch, layer_scale


class Mlp(Module):
    """Linear, activation, Linear, applied to each place by itself.

    Called with `read`, it applies `read` before the second linear map, which gives the same result with less work. If
    dropout follows the second map, `read` must be a selection of places.

    With `gated`, the first map has twice the hidden copies, and one half, through the function, multiplies the other:
    with `function=F.silu` it is SwiGLU, and with the trivial group timm's `GluMlp(gate_last=False)`.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> Mlp(layout).hidden
    Layout(flop, even=16, odd=16)
    """

    def __init__(
        self,
        layout: Layout,
        hidden: Layout | None = None,
        function: Pointwise = F.gelu,
        *,
        out: Layout | None = None,
        gated: bool = False,
        drop: float = 0.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        out = layout if out is None else out
        super().__init__(layout, out)
        self.hidden = layout * 4 if hidden is None else hidden
        self.fc1 = Linear(layout, self.hidden * 2 if gated else self.hidden, device=device, dtype=dtype)
        self.act = (GatedActivation if gated else Activation)(self.hidden, function)
        self.drop1 = Dropout(self.hidden, drop)
        self.fc2 = Linear(self.hidden, out, device=device, dtype=dtype)
        self.drop2 = Dropout(out, drop)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        hidden = self.drop1(self.act(self.fc1(x)))
        if is_given(read):
            hidden = read(hidden)
        out: Feature = self.drop2(self.fc2(hidden))
        return out


class TransformerBlock(Module):
    """Pre-norm transformer block: x + ls1(attn(norm1(x))), then x + ls2(mlp(norm2(x))).

    `init_values=None` (or 0) leaves the layer scales out. With `invariant_only`, for a block before an invariant
    hand-off, the second sum has the trivial irrep only, because nothing reads the rest. With the trivial group the
    block is timm's `Block`. Called with `read`, which selects tokens, it gives and computes those alone. `attn_mask`
    and `grid` are those of `Attention`; `norm_by_irrep` is `by_irrep` of the norms.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 16)
    >>> [tuple(part.shape) for part in TransformerBlock(layout, num_heads=2)(layout.random(3, 5))]
    [(3, 5, 8), (3, 5, 8)]
    """

    in_layout: Layout
    out_layout: Layout
    leading = 2

    def __init__(
        self,
        layout: Layout,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        gated_mlp: bool = False,
        rope: RotaryEmbed | None = None,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        init_values: float | None = None,
        drop_path: float = 0.0,
        function: Pointwise = F.gelu,
        eps: float = 1e-6,
        norm_by_irrep: bool = False,
        invariant_only: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        out = layout.invariant_part if invariant_only else layout
        super().__init__(layout, out)
        self.norm1 = LayerNorm(layout, eps, by_irrep=norm_by_irrep, device=device, dtype=dtype)
        self.attn = Attention(
            layout,
            num_heads,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            eps=eps,
            norm_by_irrep=norm_by_irrep,
            rope=rope,
            device=device,
            dtype=dtype,
        )
        self.ls1 = layer_scale(layout, init_values, device=device, dtype=dtype)
        self.drop_path1 = DropPath(layout, drop_path)
        self.norm2 = LayerNorm(layout, eps, by_irrep=norm_by_irrep, device=device, dtype=dtype)
        self.mlp = Mlp(
            layout,
            layout * mlp_ratio,
            function,
            out=out,
            gated=gated_mlp,
            drop=proj_drop,
            device=device,
            dtype=dtype,
        )
        self.ls2 = layer_scale(out, init_values, device=device, dtype=dtype)
        self.drop_path2 = DropPath(out, drop_path)

    def forward(
        self, x: Feature, read: Read | None = None, attn_mask: Tensor | None = None, grid: Grid | None = None
    ) -> Feature:
        x = self.in_layout.parts(x, "TransformerBlock", self.leading)
        branch = self.drop_path1(self.attn(self.norm1(x), read, attn_mask, grid))
        x = add_branch(x if not is_given(read) else read(x), branch, self.in_layout, self.ls1)
        return add_branch(x, self.drop_path2(self.mlp(self.norm2(x))), self.out_layout, self.ls2)
