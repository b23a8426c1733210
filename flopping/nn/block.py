"""The MLP and the transformer block."""

from __future__ import annotations

import torch.nn.functional as F

from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.functional import Pointwise
from flopping.nn.activation import Activation
from flopping.nn.attention import Attention
from flopping.nn.drop import Dropout, DropPath
from flopping.nn.linear import Linear
from flopping.nn.module import Module
from flopping.nn.norm import LayerNorm, add_branch, layer_scale


class Mlp(Module):
    """Linear, activation, Linear, on every place for itself.

    Called with `read`, the second linear map follows it, which is the same and less work. With dropout after that map
    it is not: then `read` has to be a selection.

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
        drop: float = 0.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        out = layout if out is None else out
        super().__init__(layout, out)
        self.hidden = layout * 4 if hidden is None else hidden
        self.fc1 = Linear(layout, self.hidden, device=device, dtype=dtype)
        self.act = Activation(self.hidden, function)
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
    block is timm's `Block`. Called with `read`, which selects tokens, it gives and computes those alone.

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
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        init_values: float | None = None,
        drop_path: float = 0.0,
        function: Pointwise = F.gelu,
        eps: float = 1e-6,
        invariant_only: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        out = layout.invariant_part if invariant_only else layout
        super().__init__(layout, out)
        self.norm1 = LayerNorm(layout, eps, device=device, dtype=dtype)
        self.attn = Attention(
            layout,
            num_heads,
            qkv_bias=qkv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
            device=device,
            dtype=dtype,
        )
        self.ls1 = layer_scale(layout, init_values, device=device, dtype=dtype)
        self.drop_path1 = DropPath(layout, drop_path)
        self.norm2 = LayerNorm(layout, eps, device=device, dtype=dtype)
        self.mlp = Mlp(layout, layout * mlp_ratio, function, out=out, drop=proj_drop, device=device, dtype=dtype)
        self.ls2 = layer_scale(out, init_values, device=device, dtype=dtype)
        self.drop_path2 = DropPath(out, drop_path)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        x = self.in_layout.parts(x, "TransformerBlock", self.leading)
        branch = self.drop_path1(self.attn(self.norm1(x), read))
        x = add_branch(x if not is_given(read) else read(x), branch, self.in_layout, self.ls1)
        return add_branch(x, self.drop_path2(self.mlp(self.norm2(x))), self.out_layout, self.ls2)
