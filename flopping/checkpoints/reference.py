"""Checkpoints of the paper's reference code, read into our networks.

What the keys and shapes tell is taken from them; DESIGN of both sides differs in names, in the order of factors
1/sqrt 2, and in constants that the reference code stores. `load_reference` is all that callers need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from math import isqrt, sqrt
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from torch import Tensor

from flopping.checkpoints.files import read_weights
from flopping.grid import Grid, as_pair
from flopping.models.backbone import Backbone
from flopping.models.weights import require_keys
from flopping.models.zoo import RESMLP_ACTIVATION, VITS, ZOO

Handoff = Literal["hybrid", "abs"]
Weights = Mapping[str, Tensor]

_HALF = sqrt(0.5)
_RECORDED = {"input", "logits", "logits_flopped_input", "pooled_features"}
_HEADS = {width: heads for width, _, heads, _ in VITS.values()}


@dataclass
class Translation:
    """A model's name and arguments, and its weights; `read` are the keys of the checkpoint that were looked at."""

    source: Weights
    name: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def take(self, key: str) -> Tensor:
        if key not in self.source:
            raise ValueError(f"this is no checkpoint of the reference code: it lacks {key}")
        self.read.add(key)
        return self.source[key]

    def give(self, ours: str, theirs: str, factor: float = 1.0) -> None:
        value = self.take(theirs)
        self.weights[ours] = value if factor == 1.0 else value * factor

    def constant(self, key: str) -> None:
        """A key whose values the architecture fixes at zero; if they aren't, the network isn't this one."""
        if self.take(key).any():
            raise ValueError(f"{key} must be zero, or the network would not follow the group")

    def depth(self, prefix: str) -> int:
        """How many blocks `prefix.0`, `prefix.1`, ... there are."""
        numbers = {int(key.split(".")[prefix.count(".") + 1]) for key in self.source if key.startswith(f"{prefix}.")}
        if numbers != set(range(len(numbers))) or not numbers:
            raise ValueError(f"{prefix} must be numbered from 0 without gaps, got {sorted(numbers)}")
        return len(numbers)


def load_reference(
    checkpoint: str | Path | Mapping[str, Tensor],
    *,
    num_heads: int | None = None,
    img_size: int | Grid | None = None,
    handoff: Handoff | None = None,
) -> Backbone:
    """The network of a checkpoint of the reference code, with its weights: a path, or the state dict itself.

    `num_heads` is needed for widths other than those of the paper, `img_size` for grids that aren't square, and
    `handoff` ("hybrid" or "abs") where ordinary blocks follow equivariant ones, because such checkpoints look alike.
    """
    found = translate(checkpoint, num_heads=num_heads, img_size=img_size, handoff=handoff)
    model: Backbone = timm.model_entrypoint(found.name)(**found.args)
    own = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    require_keys(found.weights, own, found.name)
    wrong = [key for key, shape in own.items() if tuple(found.weights[key].shape) != shape]
    if wrong:
        shown = ", ".join(f"{k} {tuple(found.weights[k].shape)} instead of {own[k]}" for k in wrong[:4])
        raise ValueError(f"{len(wrong)} sizes contradict the others: {shown}")
    model.load_state_dict(found.weights)
    return model


def translate(
    checkpoint: str | Path | Mapping[str, Tensor],
    *,
    num_heads: int | None = None,
    img_size: int | Grid | None = None,
    handoff: Handoff | None = None,
) -> Translation:
    """The registered name, the arguments and the weights of the network that a checkpoint holds."""
    if handoff not in (None, "hybrid", "abs"):
        raise ValueError(f"handoff is 'hybrid' or 'abs', got {handoff!r}")
    source = read_weights(checkpoint) if isinstance(checkpoint, (str, Path)) else dict(checkpoint)
    found = Translation(_stripped(source))
    size = None if img_size is None else as_pair(img_size, "img_size")
    if "patch_embed.proj_sym.weight" in found.source and "pos_embed.0" in found.source:
        _vision_transformer(found, num_heads, size, handoff)
    else:
        if num_heads is not None or handoff is not None:
            raise ValueError("num_heads and handoff are for vision transformers, which this checkpoint is not")
        if "blocks.0.attn.lin_sym.weight" in found.source:
            _resmlp(found, size)
        elif "stem.proj_sym.weight" in found.source:
            _isotropic_convnext(found)
        elif "downsample_layers.0.0.proj_sym.weight" in found.source:
            _hierarchical_convnext(found)
        else:
            some = ", ".join(sorted(found.source)[:4])
            raise ValueError(f"this is no equivariant network of the reference code; its keys are {some}, ...")
        if size is not None and "img_size" not in found.args:
            _check_size(found, size)
    require_keys(found.source, found.read, f"the reference code's {found.name}")
    found.name, found.args = _registered(found.name, found.args)
    return found


def _stripped(source: Weights) -> Weights:
    """Without the prefixes that wrappers add, and without recorded inputs and outputs beside the weights."""
    for prefix in ("model.", "module.", "_orig_mod."):
        inner = {key.removeprefix(prefix): value for key, value in source.items() if key.startswith(prefix)}
        others = set(source) - {prefix + key for key in inner}
        if inner and others <= _RECORDED:
            return _stripped(inner)
    return source


def _registered(name: str, args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The registered network of the same architecture, else the given one, and the arguments that differ from its own.

    So weights of the paper's sizes can be loaded by name, without arguments.
    """
    whole = {**_whole(name), **args}
    free = {"num_classes", "in_chans", "img_size", "init_values"}  # they may differ within one architecture
    for entry in ZOO.values():
        own = _whole(entry.name)
        same_scale = (own.get("init_values") is None) == (whole.get("init_values") is None)
        if entry.model is ZOO[name].model and same_scale and all(own[k] == whole[k] for k in set(own) - free):
            name = entry.name
            break
    own = _whole(name)
    return name, {key: value for key, value in whole.items() if value != own[key] and key != "init_values"} | (
        {"init_values": whole["init_values"]} if (own["init_values"] is None) != (whole["init_values"] is None) else {}
    )


def _whole(name: str) -> dict[str, Any]:
    """All arguments that make a registered network."""
    entry = ZOO[name]
    parameters = list(signature(entry.model).parameters.values())
    return {p.name: p.default for p in parameters} | dict(entry.args)


def _check_size(found: Translation, size: Grid) -> None:
    patch, stages = found.args["patch_size"], len(found.args["depths"])
    step = tuple(p * 2 ** (stages - 1) for p in as_pair(patch, "patch_size"))
    if any(s % p for s, p in zip(size, step, strict=True)):
        raise ValueError(f"images of this network have sizes that are multiples of {step}, got {size}")


def _patches(found: Translation, ours: str, theirs: str, factor: float) -> None:
    """Left halves of filters, `(out, in, k, k/2)`; the right ones mirror them. Our fold carries a factor sqrt 2."""
    for irrep, name in (("even", "sym"), ("odd", "asym")):
        weight = found.take(f"{theirs}.proj_{name}.weight")
        found.weights[f"{ours}.{irrep}.weight"] = weight.flatten(1) * (sqrt(2) * factor)
    found.give(f"{ours}.even.bias", f"{theirs}.proj_sym.bias", factor)
    _, chans, height, half = found.take(f"{theirs}.proj_sym.weight").shape
    found.args |= {
        "in_chans": chans,
        "patch_size": height if height == 2 * half else (height, 2 * half),
        "num_classes": len(found.take("head.bias")),
    }


def _linear(found: Translation, ours: str, theirs: str, bias: bool = True) -> None:
    for irrep, name in (("even", "sym"), ("odd", "asym")):
        weight = found.take(f"{theirs}.linear_{name}.weight")
        found.weights[f"{ours}.{irrep}.weight"] = weight.flatten(1)  # 1x1 convolutions too
    if bias:
        found.give(f"{ours}.even.bias", f"{theirs}.linear_sym.bias")


def _norm(found: Translation, ours: str, theirs: str, invariant_only: bool = False) -> None:
    found.give(f"{ours}.weight.even", f"{theirs}.scaling.alpha_sym")
    if invariant_only:
        found.take(f"{theirs}.scaling.alpha_asym")  # the head never sees what it scales
    else:
        found.give(f"{ours}.weight.odd", f"{theirs}.scaling.alpha_asym")
    found.give(f"{ours}.bias", f"{theirs}.scaling.beta")


def _scale(found: Translation, ours: str, theirs: str) -> None:
    found.give(f"{ours}.gamma.even", f"{theirs}.alpha_sym")
    found.give(f"{ours}.gamma.odd", f"{theirs}.alpha_asym")


def _head(found: Translation, ours: str) -> None:
    found.give(f"{ours}.weight", "head.weight")
    found.give(f"{ours}.bias", "head.bias")


def _grid(found: Translation, places: int, size: Grid | None, order: Tensor) -> Grid:
    """Height and width of the token grid; the stored order of the tokens (left half first) must agree."""
    patch = as_pair(found.args["patch_size"], "patch_size")
    side = isqrt(places)
    grid = (side, side) if size is None else (size[0] // patch[0], size[1] // patch[1])
    fits = grid[0] * grid[1] == places and grid[1] % 2 == 0
    if fits:
        index = torch.arange(places).view(grid)
        left, right = index[:, : grid[1] // 2], index.flip(1)[:, : grid[1] // 2]
        fits = torch.equal(order.cpu().long(), torch.cat([left.flatten(), right.flatten()]))
    if not fits:
        given = "" if size is None else f", which {size} with patches of {patch} doesn't give"
        raise ValueError(
            f"the checkpoint has {places} tokens on a grid that isn't square{given}: say img_size=(height, width)"
        )
    found.args["img_size"] = (grid[0] * patch[0], grid[1] * patch[1])
    if grid[0] * patch[0] == grid[1] * patch[1]:
        found.args["img_size"] = grid[0] * patch[0]
    return grid


def _vision_transformer(found: Translation, num_heads: int | None, size: Grid | None, handoff: Handoff | None) -> None:
    found.name = "deit3_flop_base_patch16_224"
    _patches(found, "patch_embed.proj", "patch_embed", _HALF)
    width = 2 * found.take("cls_token.0").shape[-1]
    depth = found.depth("blocks")
    ordinary = [i for i in range(depth) if f"blocks.{i}.norm1.weight" in found.source]
    if num_heads is None and width not in _HEADS:
        known = ", ".join(f"{w}: {h}" for w, h in sorted(_HEADS.items()))
        raise ValueError(
            f"shapes don't tell the number of heads of width {width} (known are {known}): say num_heads=..."
        )
    if ordinary and handoff is None:
        raise ValueError(f"ordinary blocks begin at {ordinary[0]}: say handoff='hybrid' or handoff='abs'")
    if handoff is not None and not ordinary:
        raise ValueError(f"all {depth} blocks are equivariant, so there is no handoff, got {handoff!r}")
    _grid(
        found, 2 * found.take("pos_embed.0").shape[1], size, found.take("patch_embed.flatten_and_permute.permutation")
    )
    hidden = found.take("blocks.0.mlp.fc1.linear_sym.weight").shape[0]
    found.args |= {
        "embed_dim": width,
        "depth": depth,
        "num_heads": _HEADS[width] if num_heads is None else num_heads,
        "mlp_ratio": 2 * hidden / width,
        "qkv_bias": "blocks.0.attn.qkv.linear_sym.bias" in found.source,
    }
    if "blocks.0.gamma_1.alpha_sym" not in found.source:
        found.args["init_values"] = None
    if handoff is not None:
        found.args["handoffs"] = {ordinary[0]: handoff}
    found.weights["cls_token.token"] = found.take("cls_token.0").flatten()
    found.constant("cls_token.1")
    for irrep, name in (("even", "pos_embed.0"), ("odd", "pos_embed.1")):
        found.weights[f"pos_embed.weight.{irrep}"] = found.take(name)[0]
    for i in range(depth):
        (_ordinary_block if i in ordinary else _block)(found, f"blocks.{i}", found.args["qkv_bias"])
    _head(found, "head")
    if ordinary:
        found.give("norm.weight.even", "norm.weight")
        found.give("norm.bias", "norm.bias")
        return
    absolute = found.take("head.weight").shape[1] == width
    if absolute:
        found.args["readout"] = "abs"
    _norm(found, "norm", "norm", invariant_only=not absolute)


def _block(found: Translation, block: str, qkv_bias: bool) -> None:
    for layer, bias in (("attn.qkv", qkv_bias), ("attn.proj", True), ("mlp.fc1", True), ("mlp.fc2", True)):
        _linear(found, f"{block}.{layer}", f"{block}.{layer}", bias)
    for n in (1, 2):
        _norm(found, f"{block}.norm{n}", f"{block}.norm{n}")
        if "init_values" not in found.args:
            _scale(found, f"{block}.ls{n}", f"{block}.gamma_{n}")


def _ordinary_block(found: Translation, block: str, qkv_bias: bool) -> None:
    for layer, bias in (("attn.qkv", qkv_bias), ("attn.proj", True), ("mlp.fc1", True), ("mlp.fc2", True)):
        found.give(f"{block}.{layer}.even.weight", f"{block}.{layer}.weight")
        if bias:
            found.give(f"{block}.{layer}.even.bias", f"{block}.{layer}.bias")
    for n in (1, 2):
        found.give(f"{block}.norm{n}.weight.even", f"{block}.norm{n}.weight")
        found.give(f"{block}.norm{n}.bias", f"{block}.norm{n}.bias")
        if "init_values" not in found.args:
            found.give(f"{block}.ls{n}.gamma.even", f"{block}.gamma_{n}")


def _resmlp(found: Translation, size: Grid | None) -> None:
    found.name = "resmlp_flop_s24_224"
    _patches(found, "stem.proj", "patch_embed", 1.0)
    order = "patch_embed.flatten_and_permute_to_fourier"
    sides = torch.cat([found.take(f"{order}.left_idx"), found.take(f"{order}.right_idx")])
    _grid(found, len(sides), size, sides)
    width = 2 * found.take("patch_embed.proj_sym.bias").shape[0]
    hidden = found.take("blocks.0.mlp.fc1.lin_sym.weight").shape[0]
    depth = found.depth("blocks")
    found.args |= {"embed_dim": width, "depth": depth, "mlp_ratio": 2 * hidden / width, "act_layer": RESMLP_ACTIVATION}
    for i in range(depth):
        _resmlp_block(found, f"blocks.{i}")
    found.give("norm.alpha.even", "norm.alpha")
    found.give("norm.beta", "norm.beta")
    _head(found, "head")


def _resmlp_block(found: Translation, block: str) -> None:
    for irrep, name in (("even", "sym"), ("odd", "asym")):
        for kind in ("weight", "bias"):
            found.give(f"{block}.linear_tokens.{kind}.{irrep}", f"{block}.attn.lin_{name}.{kind}")
        for n in (1, 2):
            theirs = f"{block}.mlp.fc{n}.lin_{name}"
            found.give(f"{block}.mlp_channels.fc{n}.{irrep}.weight", f"{theirs}.weight")
            # theirs shift folded tokens, of which one value is two tokens over sqrt 2
            ours = f"fc{n}.even.bias" if irrep == "even" else f"shift{n}.bias.odd"
            found.give(f"{block}.mlp_channels.{ours}", f"{theirs}.bias", _HALF)
    for n in (1, 2):
        for irrep, name in (("even", "sym"), ("odd", "asym")):
            found.give(f"{block}.norm{n}.alpha.{irrep}", f"{block}.norm{n}.alpha_{name}")
            found.take(f"{block}.norm{n}.beta_{name}")  # stored, but never applied by the reference code
        found.weights[f"{block}.norm{n}.beta"] = torch.zeros_like(found.take(f"{block}.norm{n}.beta_sym"))
        _scale(found, f"{block}.ls{n}", f"{block}.gamma_{n}")


def _isotropic_convnext(found: Translation) -> None:
    found.name = "convnext_flop_iso_small"
    _patches(found, "stem.0.proj", "stem", _HALF)
    depth = found.depth("blocks")
    width = 2 * found.take("stem.proj_sym.bias").shape[0]
    found.args |= {"depths": (depth,), "dims": (width,)}
    for b in range(depth):
        _convnext_block(found, f"stages.0.blocks.{b}", f"blocks.{b}")
    _convnext_head(found)


def _hierarchical_convnext(found: Translation) -> None:
    found.name = "convnext_flop_tiny"
    _patches(found, "stem.0.proj", "downsample_layers.0.0", _HALF)
    _norm(found, "stem.1", "downsample_layers.0.1")
    stages = found.depth("stages")
    depths, dims = [], []
    for s in range(stages):
        if s:
            _norm(found, f"stages.{s}.downsample.0", f"downsample_layers.{s}.0")
            _downsample(found, f"stages.{s}.downsample.1.proj", f"downsample_layers.{s}.1")
        depths.append(found.depth(f"stages.{s}"))
        dims.append(2 * found.take(f"stages.{s}.0.norm.scaling.beta").shape[0])
        for b in range(depths[-1]):
            _convnext_block(found, f"stages.{s}.blocks.{b}", f"stages.{s}.{b}")
    found.args |= {"depths": tuple(depths), "dims": tuple(dims)}
    _convnext_head(found)


def _downsample(found: Translation, ours: str, theirs: str) -> None:
    """First columns of 2x2 windows, `(out, in, 2, 1)`; ours reads a folded window row by row."""
    for out, even_source, odd_source in (("even", "sym_to_sym", "asym_to_sym"), ("odd", "sym_to_asym", "asym_to_asym")):
        columns = [found.take(f"{theirs}.{name}.weight") for name in (even_source, odd_source)]
        rows = [column.squeeze(-1).transpose(1, 2).flatten(1) for column in columns]
        found.weights[f"{ours}.{out}.weight"] = torch.cat(rows, 1) * sqrt(2)
    found.give(f"{ours}.even.bias", f"{theirs}.sym_to_sym.bias")


def _convnext_block(found: Translation, ours: str, theirs: str) -> None:
    biases = []
    for source, first in (("even", "sym"), ("odd", "asym")):
        for target, second in (("even", "sym"), ("odd", "asym")):
            name = f"{theirs}.dwconv.{first}_to_{second}"
            found.weights[f"{ours}.conv_dw.weight.{source}_to_{target}"] = found.take(f"{name}.weight").flatten(1)
            if first != second:
                found.constant(f"{name}.zero_center")
            if target == "even":
                biases.append(found.take(f"{name}.bias"))
    found.weights[f"{ours}.conv_dw.bias"] = torch.cat(biases)
    _norm(found, f"{ours}.norm", f"{theirs}.norm")
    _linear(found, f"{ours}.mlp.fc1", f"{theirs}.pwconv1")
    _linear(found, f"{ours}.mlp.fc2", f"{theirs}.pwconv2")
    scaled = f"{theirs}.gamma.alpha_sym" in found.source
    if scaled:
        _scale(found, f"{ours}.gamma", f"{theirs}.gamma")
    found.args["init_values"] = 1e-6 if scaled else None


def _convnext_head(found: Translation) -> None:
    found.give("head.norm.weight", "norm.weight")
    found.give("head.norm.bias", "norm.bias")
    _head(found, "head.fc")
