"""The reference code's three architectures: the arguments that shapes tell, and its keys in our names.

Its names for even and odd are sym and asym. Its patch filters and token folds carry factors 1/sqrt 2 in other places
than ours, whose folds are orthonormal.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt, sqrt
from typing import Any

import torch
from torch import Tensor

from flopping.checkpoints.rules import (
    LAYERS,
    Family,
    Rule,
    Source,
    find_heads,
    ignore,
    ordinary_blocks,
    require_zero,
    same,
)
from flopping.errors import UsageError
from flopping.functional.grid import Grid, as_pair
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.sizes import RESMLP_ACTIVATION
from flopping.models.vision_transformer import VisionTransformer


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda value: value * factor


def _flatten(filters: Tensor) -> Tensor:
    return filters.flatten(1)


def _depthwise(filters: Tensor) -> Tensor:
    """Left columns of square filters, as rows; an antisymmetric one has no middle column."""
    _, _, kernel, columns = filters.shape
    if columns not in (kernel // 2, kernel // 2 + 1):
        raise ValueError("no left columns of a square filter")
    return filters.flatten(1)


def _windows(*columns: Tensor) -> Tensor:
    """First columns of 2 x 2 windows, `(out, in, 2, 1)`; ours reads a folded window row by row."""
    return torch.cat([column.squeeze(3).transpose(1, 2).flatten(1) for column in columns], 1) * sqrt(2)


_VIT: tuple[Rule, ...] = (
    ("patch_embed.proj_@.weight", r"patch_embed.proj.\1.weight", _flatten),
    ("patch_embed.proj_sym.bias", "patch_embed.proj.even.bias", _times(sqrt(0.5))),
    ("patch_embed.flatten_and_permute.permutation", "", ignore),
    ("cls_token.0", "cls_token.token", torch.flatten),
    ("cls_token.1", "", require_zero),
    ("pos_embed.0", "pos_embed.weight.even", lambda value: value.squeeze(0)),
    ("pos_embed.1", "pos_embed.weight.odd", lambda value: value.squeeze(0)),
    (f"blocks.#.{LAYERS}.linear_@.weight", r"blocks.\1.\2.\3.weight", same),
    (f"blocks.#.{LAYERS}.linear_sym.bias", r"blocks.\1.\2.even.bias", same),
    ("blocks.#.norm#.scaling.alpha_@", r"blocks.\1.norm\2.weight.\3", same),
    ("blocks.#.norm#.scaling.beta", r"blocks.\1.norm\2.bias", same),
    ("blocks.#.gamma_#.alpha_@", r"blocks.\1.ls\2.gamma.\3", same),
    ("norm.scaling.alpha_@", r"norm.weight.\1", same),
    ("norm.scaling.beta", "norm.bias", same),
    *ordinary_blocks("even"),
)
_RESMLP: tuple[Rule, ...] = (
    ("patch_embed.proj_@.weight", r"stem.proj.\1.weight", lambda w: w.flatten(1) * sqrt(2)),
    ("patch_embed.proj_sym.bias", "stem.proj.even.bias", same),
    ("patch_embed.flatten_and_permute_to_fourier.(left|right)_idx", "", ignore),
    ("blocks.#.attn.lin_@.(weight|bias)", r"blocks.\1.linear_tokens.\3.\2", same),
    ("blocks.#.mlp.fc#.lin_@.weight", r"blocks.\1.mlp_channels.fc\2.\3.weight", same),
    # theirs shift folded tokens, of which one value is two tokens over sqrt 2
    ("blocks.#.mlp.fc#.lin_sym.bias", r"blocks.\1.mlp_channels.fc\2.even.bias", _times(sqrt(0.5))),
    ("blocks.#.mlp.fc#.lin_asym.bias", r"blocks.\1.mlp_channels.shift\2.bias.odd", _times(sqrt(0.5))),
    ("blocks.#.norm#.alpha_@", r"blocks.\1.norm\2.alpha.\3", same),
    # both shifts are stored, and the reference code applies neither
    ("blocks.#.norm#.beta_sym", r"blocks.\1.norm\2.beta", torch.zeros_like),
    ("blocks.#.norm#.beta_asym", "", ignore),
    ("blocks.#.gamma_#.alpha_@", r"blocks.\1.ls\2.gamma.\3", same),
    ("norm.alpha", "norm.alpha.even", same),
    ("(norm.beta|head.weight|head.bias)", r"\1", same),
)
_CONVNEXT: tuple[Rule, ...] = (
    ("downsample_layers.0.0.proj_@.weight", r"stem.0.proj.\1.weight", _flatten),
    ("downsample_layers.0.0.proj_sym.bias", "stem.0.proj.even.bias", _times(sqrt(0.5))),
    ("downsample_layers.0.1.scaling.alpha_@", r"stem.1.weight.\1", same),
    ("downsample_layers.0.1.scaling.beta", "stem.1.bias", same),
    ("downsample_layers.#.0.scaling.alpha_@", r"stages.\1.downsample.0.weight.\2", same),
    ("downsample_layers.#.0.scaling.beta", r"stages.\1.downsample.0.bias", same),
    ("downsample_layers.#.1.@_to_@.weight", r"stages.\1.downsample.1.proj.\3.weight", _windows),
    ("downsample_layers.#.1.sym_to_sym.bias", r"stages.\1.downsample.1.proj.even.bias", same),
    ("stages.#.#.dwconv.(@_to_@).weight", r"stages.\1.blocks.\2.conv_dw.weight.\3", _depthwise),
    ("stages.#.#.dwconv.@_to_sym.bias", r"stages.\1.blocks.\2.conv_dw.bias", lambda *parts: torch.cat(parts)),
    ("stages.#.#.dwconv.(sym_to_asym|asym_to_sym).zero_center", "", require_zero),
    ("stages.#.#.norm.scaling.alpha_@", r"stages.\1.blocks.\2.norm.weight.\3", same),
    ("stages.#.#.norm.scaling.beta", r"stages.\1.blocks.\2.norm.bias", same),
    ("stages.#.#.pwconv#.linear_@.weight", r"stages.\1.blocks.\2.mlp.fc\3.\4.weight", _flatten),
    ("stages.#.#.pwconv#.linear_sym.bias", r"stages.\1.blocks.\2.mlp.fc\3.even.bias", same),
    ("stages.#.#.gamma.alpha_@", r"stages.\1.blocks.\2.gamma.gamma.\3", same),
    ("norm.(weight|bias)", r"head.norm.\1", same),
    ("head.(weight|bias)", r"head.fc.\1", same),
)


def _vit_args(
    source: Source, num_heads: int | None = None, img_size: Grid | None = None, handoff: str | None = None
) -> dict[str, Any]:
    """E(ViT), H(ViT), and the reference code's I(ViT), which hands on absolute values of odd channels."""
    *_, half = source.shape("cls_token.0", 3)
    hidden, _ = source.shape("blocks.0.mlp.fc1.linear_sym.weight", 2)
    _, places, _ = source.shape("pos_embed.0", 3)
    depth = source.depth("blocks")
    args = {
        **_patch_args(source, "patch_embed"),
        "embed_dim": 2 * half,
        "depth": depth,
        "num_heads": find_heads(2 * half, num_heads),
        "mlp_ratio": hidden / half,
        "qkv_bias": "blocks.0.attn.qkv.linear_sym.bias" in source,
    }
    if "blocks.0.gamma_1.alpha_sym" not in source:
        args["init_values"] = 0.0
    order = source.find("patch_embed.flatten_and_permute.permutation")
    args["img_size"] = _find_img_size(args["patch_size"], 2 * places, order, img_size)
    ordinary = source.first_ordinary(depth)
    if ordinary is not None:
        if handoff not in ("hybrid", "abs"):
            raise UsageError(f"ordinary blocks begin at {ordinary}: handoff is 'hybrid' or 'abs', got {handoff!r}")
        return {**args, "handoffs": {ordinary: handoff}}
    if handoff is not None:
        raise UsageError(f"all {depth} blocks are equivariant, so there is no handoff, got {handoff!r}")
    if source.shape("head.weight", 2)[1] == 2 * half:
        return {**args, "readout": "abs"}
    source.pop("norm.scaling.alpha_asym", None)  # the head never sees what it scales
    return args


def _resmlp_args(source: Source, img_size: Grid | None = None) -> dict[str, Any]:
    hidden, half = source.shape("blocks.0.mlp.fc1.lin_sym.weight", 2)
    patch = _patch_args(source, "patch_embed")
    sides = [source.find(f"patch_embed.flatten_and_permute_to_fourier.{side}_idx") for side in ("left", "right")]
    return {
        **patch,
        "img_size": _find_img_size(patch["patch_size"], sum(map(len, sides)), torch.cat(sides), img_size),
        "embed_dim": 2 * half,
        "depth": source.depth("blocks"),
        "mlp_ratio": hidden / half,
        "act_layer": RESMLP_ACTIVATION,
    }


def _convnext_args(source: Source) -> dict[str, Any]:
    """A ConvNeXt takes images of any size. An isotropic one becomes a hierarchical one of a single stage."""
    for isotropic, hierarchical in (("stem.", "downsample_layers.0.0."), ("blocks.", "stages.0.")):
        for key in [key for key in source if key.startswith(isotropic)]:
            source[hierarchical + key.removeprefix(isotropic)] = source.pop(key)
    stages = range(source.depth("stages"))
    layers = [source.shape(f"stages.{stage}.0.pwconv1.linear_sym.weight", 4) for stage in stages]
    args = {
        **_patch_args(source, "downsample_layers.0.0"),
        "dims": tuple(2 * half for _, half, *_ in layers),
        "depths": tuple(source.depth(f"stages.{stage}") for stage in stages),
        "mlp_ratio": layers[0][0] / layers[0][1],
        "kernel_size": source.shape("stages.0.0.dwconv.sym_to_sym.weight", 4)[2],
    }
    return args if "stages.0.0.gamma.alpha_sym" in source else {**args, "init_values": 0.0}


def _patch_args(source: Source, embed: str) -> dict[str, Any]:
    """Left halves of filters, `(out, in, k, k/2)`; the right halves mirror them."""
    even, odd = (source.shape(f"{embed}.proj_{parity}.weight", 4) for parity in ("sym", "asym"))
    if even != odd:
        raise UsageError(f"{embed}.proj_sym.weight and proj_asym.weight have one shape, got {even} and {odd}")
    _, chans, height, half = even
    (classes,) = source.shape("head.bias", 1)
    patch = height if height == 2 * half else (height, 2 * half)
    return {"in_chans": chans, "patch_size": patch, "num_classes": classes}


def _find_img_size(patch_size: int | Grid, places: int, order: Tensor, img_size: Grid | None) -> int | Grid:
    """The size of images from the number of tokens, and from the caller where their grid isn't square.

    `order` is how the reference code stores tokens: the left half of the grid row by row, then its mirror images.
    """
    patch = as_pair(patch_size, "patch_size")
    size = img_size or (isqrt(places) * patch[0], isqrt(places) * patch[1])
    rows, columns = size[0] // patch[0], size[1] // patch[1]
    fits = (rows * patch[0], columns * patch[1]) == size and rows * columns == places and columns % 2 == 0
    if fits:
        index = torch.arange(places).view(rows, columns)
        left, right = index[:, : columns // 2], index.flip(1)[:, : columns // 2]
        fits = torch.equal(order.cpu().long().flatten(), torch.cat([left.flatten(), right.flatten()]))
    if not fits:
        raise UsageError(
            f"the checkpoint has {places} tokens of {patch[0]} x {patch[1]} pixels, in an order that images of"
            f" {size[0]} x {size[1]} don't give: say another img_size (height, width)"
        )
    return size[0] if size[0] == size[1] else size


FAMILIES = (
    Family(".attn.qkv.linear_sym.", VisionTransformer, _vit_args, _VIT),
    Family(".attn.lin_sym.", ResMlp, _resmlp_args, _RESMLP),
    Family(".dwconv.sym_to_sym.", ConvNeXt, _convnext_args, _CONVNEXT),
)
