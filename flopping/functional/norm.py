"""Normalisation over all parts of a feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout


def layer_norm(
    x: Feature, layout: Layout, weight: Sequence[Tensor], bias: Tensor, eps: float, invariant_only: bool = False
) -> Feature:
    """Remove the mean over the copies of each component, divide by one joint deviation, scale, shift.

    The joint variance is the mean square over all channels after the means are subtracted; for flop with equal
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
