"""Pooling and upsampling of maps `(B, H, W, ...)`.

Means and interpolation act on each channel by itself. A maximum is not linear, so it is taken in the regular basis.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout
from flopping.functional.basis import Pointwise, from_regular, recompute_mask, to_regular
from flopping.functional.grid import Grid
from flopping.functional.window import Window


def max_pool2d(x: Feature, layout: Layout, window: Window, function: Pointwise | None = None) -> Feature:
    """The largest value of every window, in the regular basis, after a pointwise function if one is given.

    Activation and pooling together change the basis once.
    """

    def pool(values: Tensor) -> Tensor:
        values = values if function is None else recompute_mask(function, values)(values)
        pooled = F.max_pool2d(values.permute(0, 3, 1, 2), window.kernel, window.stride, window.padding, window.dilation)
        return pooled.permute(0, 2, 3, 1)

    return _in_regular_basis(x, layout, pool)


def global_max_pool(x: Feature, layout: Layout) -> Feature:
    """The largest value of every channel of the regular basis; maps become rows."""
    return _in_regular_basis(x, layout, lambda values: values.amax((1, 2)))


def global_avg_pool(x: Feature) -> Feature:
    """The mean over all places; maps become rows, which keep their parity."""
    return tuple(part.mean((1, 2)) for part in x)


def avg_pool2d(x: Feature, layout: Layout, window: Window, count_include_pad: bool = True) -> Feature:
    """The mean of every window, channel by channel."""
    if window.dilation != (1, 1):
        raise ValueError(f"avg_pool2d takes windows without dilation, got dilation={window.dilation}")

    def pool(maps: Tensor) -> Tensor:
        return F.avg_pool2d(maps, window.kernel, window.stride, window.padding, count_include_pad=count_include_pad)

    return _channel_by_channel(x, layout, pool)


def upsample(x: Feature, layout: Layout, size: Grid, mode: str) -> Feature:
    """Maps of another size, by repeating places ("nearest") or by interpolation ("bilinear")."""
    if mode == "nearest":
        return _channel_by_channel(x, layout, lambda maps: F.interpolate(maps, size, mode="nearest"))
    height, width = x[0].shape[1], x[0].shape[2]
    rows, columns = _interpolation(x[0], height, size[0]), _interpolation(x[0], width, size[1])
    return tuple(torch.einsum("Hh,Ww,bhw...->bHW...", rows.to(p.dtype), columns.to(p.dtype), p) for p in x)


def _interpolation(like: Tensor, old: int, new: int) -> Tensor:
    """The matrix `(new, old)` of linear interpolation along one axis.

    Torch's own interpolation of both axes has no reproducible gradient on GPUs; a product with matrices has.
    """
    identity = torch.diag_embed(like.new_ones(old, dtype=torch.promote_types(like.dtype, torch.float32)))
    return F.interpolate(identity[None, None], (new, old), mode="bilinear")[0, 0]


def _channel_by_channel(x: Feature, layout: Layout, function: Pointwise) -> Feature:
    """A function of maps `(B, C, H, W)`, on all parts that have channels."""
    found: list[Tensor | None] = []
    for part, d, m in zip(x, layout.irrep_dims, layout.multiplicities, strict=True):
        flat = part if d == 1 else part.flatten(-2)
        found.append(function(flat.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if m else None)
    none = next(part for part in found if part is not None).narrow(-1, 0, 0)
    filled = [none if part is None else part for part in found]
    return tuple(
        part if d == 1 else part.unflatten(-1, (d, m))
        for part, d, m in zip(filled, layout.irrep_dims, layout.multiplicities, strict=True)
    )


def _in_regular_basis(x: Feature, layout: Layout, function: Pointwise) -> Feature:
    """A function of maps `(B, H, W, C)` that may change their places, applied in the regular basis."""
    copies, extra_channels = layout.require_regular("pooling in the regular basis")
    if not copies:  # invariant channels only
        pooled = function(x[0])
        return pooled, *[part.new_empty(*pooled.shape[:-1], *part.shape[x[0].dim() - 1 :]) for part in x[1:]]
    values, extra = to_regular(x, layout)
    pooled_values = [function(v) for v in values]
    more = function(extra) if extra_channels else pooled_values[0].narrow(-1, 0, 0)
    return from_regular(pooled_values, more, layout)
