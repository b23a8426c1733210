"""The inference form of a network: constants are part of the weights beside them.

For a linear layer y = W x + b, with constants c and d per channel:

- c (W x + b) = (c W) x + c b: a layer scale, the factors before an activation
- W (c x + d) + b = (W c) x + (W d + b): scale and shift of a norm, the factors after an activation, that of a fold
- c (W x + b - m) + d = (c W) x + c (b - m) + d: a batch norm after a convolution
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from timm.layers.activations import quick_gelu
from torch import Tensor, nn

from flopping.functional.grid import Fold
from flopping.models.convnext import ConvNeXtBlock
from flopping.models.mlp_mixer import OrientedMlp, ResMlpBlock
from flopping.models.resnet import ResNet
from flopping.nn import (
    Affine,
    BatchNorm,
    Conv2d,
    DepthwiseConv2d,
    Downsample,
    GatedActivation,
    LayerNorm,
    LayerScale,
    Linear,
    Mlp,
    OrientedBias,
    PatchEmbed,
    PosEmbed,
    TokenMix,
    TransformerBlock,
)
from flopping.nn.maps.residual import PooledBlock, ResidualBlock

M = TypeVar("M", bound=nn.Module)
Scales = Sequence[Tensor | None]
"""A factor per copy of each irrep, or one for all; None for 1."""
QUICK = 1.702
"""The constant of quick GELU, x sigmoid(1.702 x)."""


@torch.no_grad()
def fuse(model: M) -> M:
    """A copy of a network for inference: the same function with fewer operations.

    Affine parts of norms, layer scales and the factors of changes of basis are folded into the weights of linear
    layers, batch norms into convolutions directly before them; positions, filters and mixing matrices are built once.
    The network itself stays as it is, and can go on training; the state dict of the copy is not one of the network.

    >>> from flopping.models import ConvNeXt
    >>> model = ConvNeXt(depths=(1,), dims=(8,), num_classes=10).eval()
    >>> image = torch.randn(2, 3, 32, 32)
    >>> bool(torch.allclose(fuse(model)(image), model(image), atol=1e-5))
    True
    """
    fused = copy.deepcopy(model).eval().requires_grad_(False)
    for layer in list(fused.modules()):
        if isinstance(layer, TransformerBlock):
            _fold_norm(layer, "norm1", layer.attn.qkv)
            _fold_norm(layer, "norm2", layer.mlp.fc1)
            _fold_scale(layer, "ls1", layer.attn.proj)
            _fold_scale(layer, "ls2", layer.mlp.fc2)
        elif isinstance(layer, ConvNeXtBlock):
            _fold_norm(layer, "norm", layer.mlp.fc1)
            _fold_scale(layer, "gamma", layer.mlp.fc2)
        elif isinstance(layer, ResMlpBlock):
            _fold_norm(layer, "norm2", layer.mlp_channels.fc1)
            _fold_scale(layer, "ls2", layer.mlp_channels.fc2, layer.mlp_channels.shift2)
        elif isinstance(layer, ResidualBlock):
            for i in range(1, layer.count + 1):
                _fold_batch_norm(layer, f"conv{i}", f"bn{i}")
        elif isinstance(layer, PooledBlock):  # its first norm does not commute with the maximum before it
            _fold_batch_norm(layer, "conv2", "bn2")
        elif isinstance(layer, ResNet):
            _fold_batch_norm(layer, "conv1", "bn1")
        elif isinstance(layer, nn.Sequential):
            for before, after in pairwise(dict(layer.named_children())):
                _fold_batch_norm(layer, before, after)
        elif isinstance(layer, Mlp):
            _fold_activation(layer)
        elif isinstance(layer, PatchEmbed | Downsample):
            _fold_factor_of_fold(layer)
        elif isinstance(layer, PosEmbed | DepthwiseConv2d | TokenMix):
            layer.materialise_()
    return fused


def _fold_norm(block: nn.Module, name: str, after: Linear) -> None:
    """Scale and shift of a norm, or of an affine layer, into the linear layer after it."""
    norm = getattr(block, name)
    if isinstance(norm, LayerNorm) and norm.weight is not None:
        _scale_inputs(after, _by_irrep(after, norm.weight), norm.bias)
        norm.weight = norm.bias = None
    elif isinstance(norm, Affine):
        _scale_inputs(after, _by_irrep(after, norm.alpha), norm.beta)
        setattr(block, name, nn.Identity())


def _fold_scale(block: nn.Module, name: str, before: Linear, shift: OrientedBias | None = None) -> None:
    """A layer scale into the linear layer in front of it, and the shifts between them."""
    scale = getattr(block, name)
    if isinstance(scale, LayerScale):
        _scale_outputs(before, _by_irrep(before, scale.gamma), shift)
        setattr(block, name, nn.Identity())


def _fold_batch_norm(owner: nn.Module, before: str, after: str) -> None:
    """Running statistics, scale and shift of a batch norm into the convolution before it."""
    conv, norm = getattr(owner, before), getattr(owner, after)
    conv = conv[-1] if isinstance(conv, nn.Sequential) and len(conv) else conv
    if not isinstance(conv, Conv2d) or not isinstance(norm, BatchNorm) or conv.names[0] not in conv.weight:
        return
    for name, weight in conv.weight.items():
        variance = getattr(norm.running_var, name).double()
        scale = norm.weight[name].double() * (variance + norm.eps).rsqrt()
        if name == conv.names[0]:
            shift = -norm.running_mean.double() if conv.bias is None else conv.bias.double() - norm.running_mean
            bias = (shift * scale + norm.bias).to(weight.dtype)
            conv.bias = nn.Parameter(bias, requires_grad=False)
        weight.copy_(weight.double() * scale.repeat(len(weight) // len(scale))[:, None, None, None])
    setattr(owner, after, nn.Identity())


def _fold_activation(mlp: Mlp) -> None:
    """The factors of the changes of basis around an activation, for groups whose irreps all have one dimension.

    x sigmoid(c x) is silu(c x) / c, which torch has as one kernel: c goes into the weights too.
    """
    layout, group = mlp.hidden, mlp.hidden.group
    if mlp.act.function is quick_gelu and not isinstance(mlp.act, GatedActivation):
        mlp.act.function = F.silu
        _scale_hidden(mlp, [torch.tensor(QUICK)] * len(group.irreps), [torch.tensor(1 / QUICK)] * len(group.irreps))
    if group.order == 1 or not layout.copies or any(irrep.dim > 1 for irrep in group.irreps) or not mlp.act.scaled:
        return
    factor = torch.full((layout.copies,), group.order**-0.5)
    scales = [torch.cat([factor, torch.ones(layout.extra)]), *[factor] * (group.order - 1)]
    halves = 2 if isinstance(mlp.act, GatedActivation) else 1
    _scale_hidden(mlp, [scale.repeat(halves) for scale in scales], scales)
    mlp.act.scaled = False


def _scale_hidden(mlp: Mlp, before: Scales, after: Scales) -> None:
    """Fold factors before and after an activation into the adjacent layers."""
    _scale_outputs(mlp.fc1, before, mlp.shift1 if isinstance(mlp, OrientedMlp) else None)
    _scale_inputs(mlp.fc2, after)


def _fold_factor_of_fold(layer: PatchEmbed | Downsample) -> None:
    fold = layer.fold
    if fold.scaled and fold.group.mirrors_only and fold.group.order > 1:
        layer.fold = Fold(fold.group, fold.grid, fold.dim, scaled=False)
        _scale_inputs(layer.proj, [torch.tensor(fold.group.order**-0.5)] * len(fold.group.irreps))


def _by_irrep(layer: Linear, values: nn.ParameterDict) -> Scales:
    return [values.get(name) for name in layer.names]


def _scale_inputs(layer: Linear, scales: Scales, shift: Tensor | None = None) -> None:
    """Fold an input transform scale * x + shift into a layer; the shift is on the trivial irrep."""
    for i, (block, scale) in enumerate(zip(_blocks(layer), scales, strict=True)):
        if block is None:
            continue
        if i == 0 and shift is not None:
            more = block.weight.double() @ shift.double()
            more = more if block.bias is None else more + block.bias.double()
            block.bias = nn.Parameter(more.to(block.weight.dtype), requires_grad=False)
        if scale is not None:
            block.weight.copy_(block.weight.double() * _like(scale, block))


def _scale_outputs(layer: Linear, scales: Scales, shift: OrientedBias | None = None) -> None:
    """Fold an output scale into a layer and into the shifts that are added to its output."""
    for name, block, scale, degree in zip(layer.names, _blocks(layer), scales, layer.degrees, strict=True):
        if scale is None or block is None:
            continue
        factor = _like(scale, block)
        rows = factor.expand(len(block.weight) // degree).repeat(degree)
        block.weight.copy_(block.weight.double() * rows[:, None])
        for bias in (block.bias, shift.bias[name] if shift is not None and name in shift.bias else None):
            if bias is not None:
                bias.copy_(bias.double() * factor)


def _like(scale: Tensor, block: nn.Linear) -> Tensor:
    """In double precision, where the weights are."""
    return scale.to(block.weight.device, torch.float64)


def _blocks(layer: Linear) -> list[Any]:
    """The matrix of each irrep; None where an irrep has none."""
    return [getattr(layer, name, None) for name in layer.names]
