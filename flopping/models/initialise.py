"""Initialisation. The law: at construction, features have the standard deviation of those of the ordinary network.

An ordinary layer with weights of standard deviation s and d inputs gives outputs of variance d s^2. A block of an
equivariant one has only m of the d inputs, so its weights start at s sqrt(d / m): sqrt 2 times as large for flop.

With `weight_init="reference"` a network starts as the paper's did: at s, whatever the width of a block.
"""

from __future__ import annotations

from math import prod, sqrt
from typing import Literal, cast, get_args

import torch
from torch import nn

from flopping import nn as fnn

STD = 0.02
WeightInit = Literal["scaled", "reference"]


def check_weight_init(weight_init: str) -> WeightInit:
    """
    >>> check_weight_init("jax")
    Traceback (most recent call last):
    ...
    ValueError: weight_init is 'scaled' or 'reference', got 'jax'
    """
    if weight_init not in get_args(WeightInit):
        raise ValueError(f"weight_init is 'scaled' or 'reference', got {weight_init!r}")
    return cast(WeightInit, weight_init)


@torch.no_grad()
def initialise(model: nn.Module, weight_init: WeightInit, *, skip: nn.Module, head_dim: int) -> None:
    """Initialise linear layers, filters, hand-offs and heads; norms, scales and embeddings initialise themselves.

    `skip`, the stem, is left as it is. `head_dim` is the width that the ordinary network's head reads.
    """
    left_alone = set(skip.modules())
    scaled = weight_init == "scaled"
    for name, layer in model.named_modules():
        if layer in left_alone:
            continue
        if isinstance(layer, fnn.Linear):
            linear_(layer, weight_init)
        elif isinstance(layer, fnn.MaxFilter):
            # in the main path, too
            linear_(layer.references, weight_init, std=layer.references.in_layout.dim**-0.5 if scaled else STD)
            left_alone.add(layer.references)
        elif isinstance(layer, fnn.TokenMix):
            _token_mix_(layer, weight_init)
        elif isinstance(layer, fnn.DepthwiseConv2d):
            for weight in layer.weight.values():
                nn.init.trunc_normal_(weight, std=STD)
        elif isinstance(layer, fnn.Conv2d):
            _conv_(layer)
        elif isinstance(layer, fnn.ToInvariant):
            # it stands in the main path, where nothing else would make up for a smaller output
            nn.init.trunc_normal_(layer.linear.weight, std=1 / sqrt(layer.linear.in_features) if scaled else STD)
            nn.init.zeros_(layer.linear.bias)
        elif isinstance(layer, nn.Linear) and name.startswith("head"):
            nn.init.trunc_normal_(layer.weight, std=STD * sqrt(head_dim / layer.in_features) if scaled else STD)
            nn.init.zeros_(layer.bias)


def linear_(layer: fnn.Linear, weight_init: WeightInit, std: float = STD) -> None:
    """Truncated normals; scaled, they are wider where a block has fewer inputs than the ordinary layer."""
    for irrep, m in zip(layer.in_layout.group.irreps, layer.in_layout.multiplicities, strict=True):
        block = getattr(layer, irrep.name, None)
        if block is not None:
            factor = sqrt(layer.in_layout.dim / m / irrep.type.degree) if weight_init == "scaled" else 1.0
            nn.init.trunc_normal_(block.weight, std=std * factor)
            if block.bias is not None:
                nn.init.zeros_(block.bias)


def _conv_(layer: fnn.Conv2d) -> None:
    """He initialisation with mode fan-out, as in timm's ResNets; wider where a block reads fewer taps."""
    plan = layer.plan
    taps = prod(plan.window.kernel) / plan.groups
    for irrep, name in enumerate(layer.names):
        if name in layer.weight:
            missing = plan.in_layout.dim * taps / plan.fan_in(irrep)
            nn.init.normal_(layer.weight[name], std=sqrt(2 / (layer.out_layout.dim * taps) * missing))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _token_mix_(layer: fnn.TokenMix, weight_init: WeightInit) -> None:
    places = layer.grid_size[0] * layer.grid_size[1]
    for weight in layer.weight.values():
        nn.init.trunc_normal_(weight, std=STD * sqrt(places / len(weight)) if weight_init == "scaled" else STD)
    for bias in (layer.bias or {}).values():
        nn.init.zeros_(bias)
