"""The reference code's three architectures, key by key.

Their names for even and odd are sym and asym. Their patch filters and token folds carry factors 1/sqrt 2 in other
places than ours, whose folds are orthonormal.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor

from flopping.checkpoints.translation import Hints, Translation, check_img_size, set_img_size
from flopping.errors import UsageError
from flopping.functional.grid import as_pair
from flopping.models.zoo import RESMLP_ACTIVATION, VITS

_PARITIES = (("even", "sym"), ("odd", "asym"))
_HEADS = {width: heads for width, _, heads, _ in VITS.values()}


def vision_transformer(found: Translation, hints: Hints) -> None:
    """E(ViT), H(ViT), and the reference code's I(ViT), which hands on absolute values of odd channels."""
    _patches(found, "patch_embed.proj", "patch_embed", sqrt(0.5))
    *_, half = found.shape("cls_token.0", 3)
    hidden, _ = found.shape("blocks.0.mlp.fc1.linear_sym.weight", 2)
    _, places, _ = found.shape("pos_embed.0", 3)
    depth = found.depth("blocks")
    ordinary = [i for i in range(depth) if f"blocks.{i}.attn.qkv.weight" in found.source]
    found.args |= {
        "embed_dim": 2 * half,
        "depth": depth,
        "num_heads": _num_heads(2 * half, hints.num_heads),
        "mlp_ratio": hidden / half,
        "qkv_bias": "blocks.0.attn.qkv.linear_sym.bias" in found.source,
    }
    if "blocks.0.gamma_1.alpha_sym" not in found.source:
        found.args["init_values"] = 0.0
    set_img_size(found, 2 * places, found.value("patch_embed.flatten_and_permute.permutation"), hints.img_size)
    _set_handoff(found, ordinary, hints.handoff)
    found.give("cls_token.token", "cls_token.0", change=torch.flatten)
    found.zero("cls_token.1")
    found.give("pos_embed.weight.even", "pos_embed.0", change=_without_batch)
    found.give("pos_embed.weight.odd", "pos_embed.1", change=_without_batch)
    for i in range(depth):
        (_ordinary_block if i in ordinary else _block)(found, f"blocks.{i}")
    _head(found, "head")
    if ordinary:
        _ordinary_norm(found, "norm")
        return
    _, read = found.shape("head.weight", 2)
    if read == 2 * half:
        found.args["readout"] = "abs"
        _norm(found, "norm", "norm")
    else:  # the head never sees what the odd scales scale
        found.give("norm.weight.even", "norm.scaling.alpha_sym")
        found.give("norm.bias", "norm.scaling.beta")
        found.unused("norm.scaling.alpha_asym")


def _num_heads(width: int, num_heads: int | None) -> int:
    if num_heads is not None:
        return num_heads
    if width not in _HEADS:
        known = ", ".join(f"{w}: {h}" for w, h in sorted(_HEADS.items()))
        raise UsageError(
            f"shapes don't tell the heads of a width of {width} (known are {known}): say num_heads= (--num-heads)"
        )
    return _HEADS[width]


def _set_handoff(found: Translation, ordinary: list[int], handoff: str | None) -> None:
    depth = found.args["depth"]
    if not ordinary:
        if handoff is not None:
            raise UsageError(f"all {depth} blocks are equivariant, so there is no handoff, got {handoff!r}")
        return
    first = ordinary[0]
    if ordinary != list(range(first, depth)):
        raise UsageError(f"ordinary blocks stand behind the equivariant ones, got ordinary blocks {ordinary}")
    if handoff is None:
        raise UsageError(f"ordinary blocks begin at {first}: say handoff='hybrid' or 'abs' (--handoff)")
    found.args["handoffs"] = {first: handoff}


def _block(found: Translation, block: str) -> None:
    _linear(found, f"{block}.attn.qkv", f"{block}.attn.qkv", bias=found.args["qkv_bias"])
    for layer in ("attn.proj", "mlp.fc1", "mlp.fc2"):
        _linear(found, f"{block}.{layer}", f"{block}.{layer}")
    for n in (1, 2):
        _norm(found, f"{block}.norm{n}", f"{block}.norm{n}")
        if "init_values" not in found.args:
            _scale(found, f"{block}.ls{n}", f"{block}.gamma_{n}")


def _ordinary_block(found: Translation, block: str) -> None:
    for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
        found.give(f"{block}.{layer}.even.weight", f"{block}.{layer}.weight")
        if layer != "attn.qkv" or found.args["qkv_bias"]:
            found.give(f"{block}.{layer}.even.bias", f"{block}.{layer}.bias")
    for n in (1, 2):
        _ordinary_norm(found, f"{block}.norm{n}")
        if "init_values" not in found.args:
            found.give(f"{block}.ls{n}.gamma.even", f"{block}.gamma_{n}")


def _ordinary_norm(found: Translation, norm: str) -> None:
    found.give(f"{norm}.weight.even", f"{norm}.weight")
    found.give(f"{norm}.bias", f"{norm}.bias")


def resmlp(found: Translation, hints: Hints) -> None:
    """E(ResMLP)."""
    _patches(found, "stem.proj", "patch_embed", 1.0)
    hidden, half = found.shape("blocks.0.mlp.fc1.lin_sym.weight", 2)
    depth = found.depth("blocks")
    order = "patch_embed.flatten_and_permute_to_fourier"
    sides = torch.cat([found.value(f"{order}.left_idx"), found.value(f"{order}.right_idx")])
    set_img_size(found, len(sides), sides, hints.img_size)
    found.args |= {
        "embed_dim": 2 * half,
        "depth": depth,
        "mlp_ratio": hidden / half,
        "act_layer": RESMLP_ACTIVATION,
    }
    for i in range(depth):
        _resmlp_block(found, f"blocks.{i}")
    found.give("norm.alpha.even", "norm.alpha")
    found.give("norm.beta", "norm.beta")
    _head(found, "head")


def _resmlp_block(found: Translation, block: str) -> None:
    for irrep, name in _PARITIES:
        for kind in ("weight", "bias"):
            found.give(f"{block}.linear_tokens.{kind}.{irrep}", f"{block}.attn.lin_{name}.{kind}")
        for n in (1, 2):
            theirs = f"{block}.mlp.fc{n}.lin_{name}"
            found.give(f"{block}.mlp_channels.fc{n}.{irrep}.weight", f"{theirs}.weight")
            # theirs shift folded tokens, of which one value is two tokens over sqrt 2
            ours = f"fc{n}.even.bias" if irrep == "even" else f"shift{n}.bias.odd"
            found.give(f"{block}.mlp_channels.{ours}", f"{theirs}.bias", change=_times(sqrt(0.5)))
    for n in (1, 2):
        for irrep, name in _PARITIES:
            found.give(f"{block}.norm{n}.alpha.{irrep}", f"{block}.norm{n}.alpha_{name}")
        # both shifts are stored, and the reference code applies neither
        found.give(f"{block}.norm{n}.beta", f"{block}.norm{n}.beta_sym", change=torch.zeros_like)
        found.unused(f"{block}.norm{n}.beta_asym")
        _scale(found, f"{block}.ls{n}", f"{block}.gamma_{n}")


def isotropic_convnext(found: Translation, hints: Hints) -> None:
    """E(ConvNeXt iso.)."""
    _patches(found, "stem.0.proj", "stem", sqrt(0.5))
    depth = found.depth("blocks")
    width = _convnext_sizes(found, "blocks.0")
    found.args |= {"depths": (depth,), "dims": (width,)}
    for b in range(depth):
        _convnext_block(found, f"stages.0.blocks.{b}", f"blocks.{b}")
    _convnext_head(found, hints)


def hierarchical_convnext(found: Translation, hints: Hints) -> None:
    """E(ConvNeXt), in stages."""
    _patches(found, "stem.0.proj", "downsample_layers.0.0", sqrt(0.5))
    _norm(found, "stem.1", "downsample_layers.0.1")
    stages = range(found.depth("stages"))
    found.args["dims"] = tuple(_convnext_sizes(found, f"stages.{s}.0") for s in stages)
    found.args["depths"] = tuple(found.depth(f"stages.{s}") for s in stages)
    for s in stages:
        if s:
            _norm(found, f"stages.{s}.downsample.0", f"downsample_layers.{s}.0")
            _downsample(found, f"stages.{s}.downsample.1.proj", f"downsample_layers.{s}.1")
        for b in range(found.args["depths"][s]):
            _convnext_block(found, f"stages.{s}.blocks.{b}", f"stages.{s}.{b}")
    _convnext_head(found, hints)


def _convnext_sizes(found: Translation, block: str) -> int:
    """The width of a block; what else its shapes tell becomes arguments."""
    hidden, half, *_ = found.shape(f"{block}.pwconv1.linear_sym.weight", 4)
    *_, kernel, _ = found.shape(f"{block}.dwconv.sym_to_sym.weight", 4)
    found.args |= {"mlp_ratio": hidden / half, "kernel_size": kernel}
    if f"{block}.gamma.alpha_sym" not in found.source:
        found.args["init_values"] = 0.0
    return 2 * half


def _convnext_block(found: Translation, ours: str, theirs: str) -> None:
    kernel = found.args["kernel_size"]
    for source, first in _PARITIES:
        for target, second in _PARITIES:
            name = f"{theirs}.dwconv.{first}_to_{second}"
            # left columns; an antisymmetric filter has no middle one
            filters = (1, kernel, kernel // 2 + (first == second))
            found.give(f"{ours}.conv_dw.weight.{source}_to_{target}", f"{name}.weight", change=_flat(filters))
            if first != second:
                found.zero(f"{name}.zero_center")
    biases = [f"{theirs}.dwconv.{first}_to_sym.bias" for _, first in _PARITIES]
    found.give(f"{ours}.conv_dw.bias", *biases, change=lambda *values: torch.cat(values))
    _norm(found, f"{ours}.norm", f"{theirs}.norm")
    for n in (1, 2):
        _linear(found, f"{ours}.mlp.fc{n}", f"{theirs}.pwconv{n}", change=_pixelwise)
    if "init_values" not in found.args:
        _scale(found, f"{ours}.gamma", f"{theirs}.gamma")


def _downsample(found: Translation, ours: str, theirs: str) -> None:
    """First columns of 2 x 2 windows, `(out, in, 2, 1)`; ours reads a folded window row by row."""

    def change(*columns: Tensor) -> Tensor:
        return torch.cat([column.squeeze(3).transpose(1, 2).flatten(1) for column in columns], 1) * sqrt(2)

    for irrep, name in _PARITIES:
        sources = [f"{theirs}.{source}_to_{name}.weight" for _, source in _PARITIES]
        found.give(f"{ours}.{irrep}.weight", *sources, change=change)
    found.give(f"{ours}.even.bias", f"{theirs}.sym_to_sym.bias")


def _convnext_head(found: Translation, hints: Hints) -> None:
    found.give("head.norm.weight", "norm.weight")
    found.give("head.norm.bias", "norm.bias")
    _head(found, "head.fc")
    if hints.img_size is not None:
        patch, factor = as_pair(found.args["patch_size"], "patch_size"), 2 ** (len(found.args["depths"]) - 1)
        check_img_size(hints.img_size, (patch[0] * factor, patch[1] * factor))


def _patches(found: Translation, ours: str, theirs: str, factor: float) -> None:
    """Left halves of filters, `(out, in, k, k/2)`; the right halves mirror them. Our fold carries 1/sqrt 2."""
    _, chans, height, half = found.shape(f"{theirs}.proj_sym.weight", 4)
    (classes,) = found.shape("head.bias", 1)
    patch = height if height == 2 * half else (height, 2 * half)
    found.args |= {"in_chans": chans, "patch_size": patch, "num_classes": classes}
    for irrep, name in _PARITIES:
        change = _flat((chans, height, half), sqrt(2) * factor)
        found.give(f"{ours}.{irrep}.weight", f"{theirs}.proj_{name}.weight", change=change)
    found.give(f"{ours}.even.bias", f"{theirs}.proj_sym.bias", change=_times(factor))


def _linear(
    found: Translation,
    ours: str,
    theirs: str,
    bias: bool = True,
    change: Callable[[Tensor], Tensor] = lambda weight: weight,
) -> None:
    for irrep, name in _PARITIES:
        found.give(f"{ours}.{irrep}.weight", f"{theirs}.linear_{name}.weight", change=change)
    if bias:
        found.give(f"{ours}.even.bias", f"{theirs}.linear_sym.bias")


def _norm(found: Translation, ours: str, theirs: str) -> None:
    for irrep, name in _PARITIES:
        found.give(f"{ours}.weight.{irrep}", f"{theirs}.scaling.alpha_{name}")
    found.give(f"{ours}.bias", f"{theirs}.scaling.beta")


def _scale(found: Translation, ours: str, theirs: str) -> None:
    for irrep, name in _PARITIES:
        found.give(f"{ours}.gamma.{irrep}", f"{theirs}.alpha_{name}")


def _head(found: Translation, ours: str) -> None:
    found.give(f"{ours}.weight", "head.weight")
    found.give(f"{ours}.bias", "head.bias")


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda value: value * factor


def _flat(shape: tuple[int, ...], factor: float = 1.0) -> Callable[[Tensor], Tensor]:
    """Filters `(out, *shape)` as rows; other shapes with as many numbers are refused."""

    def change(filters: Tensor) -> Tensor:
        if tuple(filters.shape[1:]) != shape:
            raise UsageError(f"filters have shape {shape}, got {tuple(filters.shape[1:])}")
        return filters.flatten(1) * factor

    return change


def _pixelwise(weight: Tensor) -> Tensor:
    """The matrix of a 1x1 convolution."""
    return weight.squeeze(3).squeeze(2)


def _without_batch(value: Tensor) -> Tensor:
    return value.squeeze(0)
