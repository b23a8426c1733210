"""Convolution along the columns of maps, in the form that a CPU computes fastest.

Legend: B batch, H W places, C channels. Filters are `(out, in / groups, taps, 1)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental import symbolic_shapes

from flopping.features import is_exporting, is_symbolic
from flopping.functional.grid import Grid
from flopping.functional.product import can_use_onednn, linear
from flopping.machine import has_onednn

LARGEST_ROW_MAP = 29
"""The largest width of a map that is convolved as one row while gradients are recorded; without them, any is.

A training step of compiled 3 x 3 layers is so many times as fast with one row (two threads of an AMD EPYC with Zen 5,
batch 8); without gradients it is 1.02 to 1.09 for all:

| channels | 512 | 256 | 64 | 128 | 64 | 64 | 32 |
|---|---|---|---|---|---|---|---|
| map | 7 x 7 | 14 x 14 | 16 x 16 | 28 x 28 | 32 x 32 | 56 x 56 | 32 x 32 |
| speed | 1.11 | 1.08 | 1.05 | 1.01 | 0.78 | 0.82 | 0.68 |
"""
LARGEST_PRODUCT_MAP = 49
"""The largest map, in places, that compiled training convolves as one product of matrices by oneDNN.

oneDNN's convolutions of small maps have slow gradients; without gradients a product is slower. Forward and backward, a
product takes so much of their time (two threads of an AMD EPYC with Zen 5):

| channels | 512 | 256 | 320 | 512 | 256 |
|---|---|---|---|---|---|
| map | 7 x 7 | 4 x 4 | 4 x 4 | 8 x 8 | 8 x 8 |
| batch | 8 | 128 | 128 | 16 | 128 |
| time | 0.78 | 0.69 | 0.67 | 0.90 | 1.12 |
"""
_HAS_ONEDNN = has_onednn()  # compilers can't follow the call


def convolve_columns(
    x: Tensor, filters: Tensor, bias: Tensor | None, taps: int, stride: int, padding: int, dilation: int, groups: int
) -> Tensor:
    """Maps `(B, H, W, C)` with filters of one column. Stride, padding and dilation are those of rows.

    On a CPU, in float32: in compiled code a stride becomes channels if the taps and the padded height are multiples of
    it, and in compiled training a map of at most `LARGEST_PRODUCT_MAP` places becomes one product if oneDNN multiplies.
    Another map without a stride becomes one row of H W places, with a dilation of W, up to `LARGEST_ROW_MAP`.
    """
    is_static = _has_fixed_size_for_onednn(x)
    can_rearrange = is_static and groups == 1 and torch.compiler.is_compiling()
    can_fold = can_rearrange and stride > 1 and dilation == 1 and taps % stride == 0
    if can_fold and (x.shape[1] + 2 * padding) % stride == 0:
        x, filters = _fold_stride(x, filters, stride, padding)
        taps, stride, padding = taps // stride, 1, 0
    if groups == 1 and (taps, stride, padding) == (1, 1, 0):
        return linear(x, filters.flatten(1), bias)
    is_trained = can_rearrange and stride == 1 and torch.is_grad_enabled()
    if is_trained and x.shape[1] * x.shape[2] <= LARGEST_PRODUCT_MAP and can_use_onednn(x, filters):
        return _multiply_rows(x, filters, bias, taps, padding, dilation)
    if is_static and stride == 1 and (x.shape[2] <= LARGEST_ROW_MAP or not torch.is_grad_enabled()):
        width = x.shape[2]
        row = x.flatten(1, 2).unsqueeze(1)
        taps_in_row = filters.transpose(2, 3)
        found = conv2d(row, taps_in_row, bias, (1, 1), (0, padding * width), (1, dilation * width), groups)
        maps: Tensor = found.squeeze(1).unflatten(1, (-1, width))
        return maps
    return conv2d(x, filters, bias, (stride, 1), (padding, 0), (dilation, 1), groups)


def conv2d(
    x: Tensor, filters: Tensor, bias: Tensor | None, stride: Grid, padding: Grid, dilation: Grid, groups: int
) -> Tensor:
    """`F.conv2d` of maps `(B, H, W, C)`."""
    return F.conv2d(x.permute(0, 3, 1, 2), filters, bias, stride, padding, dilation, groups).permute(0, 2, 3, 1)


def _has_fixed_size_for_onednn(x: Tensor) -> bool:
    """Whether oneDNN convolves maps whose height and width are the same whenever this code runs.

    Exported and compiled code may run with other sizes; then the form of a convolution must not depend on them.
    """
    if is_symbolic(x) or is_exporting() or x.device.type != "cpu" or x.dtype != torch.float32 or not _HAS_ONEDNN:
        return False
    if not torch.compiler.is_compiling():
        return True
    is_static = getattr(symbolic_shapes, "has_static_value", None)  # not in the first versions of torch that we support
    return is_static is not None and is_static(x.shape[1]) and is_static(x.shape[2])


def _multiply_rows(x: Tensor, filters: Tensor, bias: Tensor | None, taps: int, padding: int, dilation: int) -> Tensor:
    """One product of matrices: the rows that the taps read become channels."""
    padded = F.pad(x, (0, 0, 0, 0, padding, padding))
    height = padded.shape[1] - dilation * (taps - 1)
    rows = [padded.narrow(1, dilation * tap, height) for tap in range(taps)]
    return linear(torch.cat(rows, -1), filters.squeeze(3).transpose(1, 2).flatten(1), bias)


def _fold_stride(x: Tensor, filters: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Map and filters of a convolution without a stride that does the same: neighbouring rows become channels.

    Compiled code writes the folded maps in this order, so the copy costs nothing. oneDNN is slow in the backward pass
    of a convolution with a stride.
    """
    rows = F.pad(x, (0, 0, 0, 0, padding, padding)).unflatten(1, (-1, stride))
    taps = filters.unflatten(2, (-1, stride))  # (out, in, k / stride, stride, 1)
    return rows.transpose(2, 3).flatten(3), taps.permute(0, 3, 1, 2, 4).flatten(1, 2)
