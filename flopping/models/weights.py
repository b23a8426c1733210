"""Weights from elsewhere: those of timm's networks, of other image sizes, of other numbers of image channels."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from math import isqrt
from typing import Any

import torch
from timm.models import adapt_input_conv
from torch import Tensor, nn

from flopping.errors import UsageError, pluralize, shorten
from flopping.functional.grid import Grid
from flopping.models.backbone import Backbone
from flopping.nn import Conv2d, Downsample, PatchEmbed, PosEmbed

StateDict = dict[str, Tensor]


def timm_name(key: str, model: Backbone) -> str:
    """What timm calls a parameter of an ordinary network of ours (`group="trivial"`).

    >>> from flopping.models import VisionTransformer
    >>> timm_name("blocks.0.attn.qkv.even.weight", VisionTransformer)
    'blocks.0.attn.qkv.weight'
    """
    key = re.sub(r"\.even(_to_even)?(?=\.|$)", "", key)
    for pattern, replacement in model.timm_renames:
        key = re.sub(pattern, replacement, key)
    return key


def from_timm(state_dict: Mapping[str, Tensor], model: Backbone) -> StateDict:
    """timm's weights under our names and in our shapes, for a model with `group="trivial"`.

    The weights must be those of the same network; `checkpoint_filter_fn` adapts weights of other sizes.
    """
    found = _renamed(state_dict, model)
    own = model.state_dict()
    check_weights(found, own, type(model).__name__, {key: timm_name(key, model) for key in own})
    return found


def under_our_names(state_dict: Mapping[str, Tensor], model: nn.Module) -> StateDict:
    """Weights as they are, but those of timm's network under our names if the model is an ordinary one of ours."""
    if isinstance(model, Backbone) and model.layouts[0].group.order == 1:
        own = set(model.state_dict())
        if not (own - {timm_name(key, model) for key in own}) & set(state_dict):
            return _renamed(state_dict, model)
    return dict(state_dict)


def _renamed(state_dict: Mapping[str, Tensor], model: Backbone) -> StateDict:
    """timm's weights as ours, whatever their sizes; unknown keys are kept."""
    own = model.state_dict()
    names = {timm_name(key, model): key for key in own}
    names |= {
        re.sub(r"\.ls(\d)\.gamma$", r".gamma_\1", name): key for name, key in names.items()
    }  # as timm's Eva has it
    windows = {f"{name}.proj.even.weight" for name, layer in model.named_modules() if isinstance(layer, Downsample)}
    found = {}
    for name, value in _with_joined_gates(state_dict).items():
        key = names.get(name, name)
        if key in windows and value.dim() == 4:
            value = value.permute(0, 2, 3, 1)  # ours reads a window place by place
        found[key] = _with_axes(value, own[key].dim()) if key in own else value
    return found


def _with_joined_gates(state_dict: Mapping[str, Tensor]) -> StateDict:
    """timm's `SwiGLU` has two matrices, for the gate and for what it multiplies; ours is one, the gate first."""
    found = dict(state_dict)
    for gate in [key for key in found if re.search(r"\.fc1_g\.\w+$", key)]:
        multiplied = gate.replace(".fc1_g.", ".fc1_x.")
        if multiplied in found:
            found[gate.replace(".fc1_g.", ".fc1.")] = torch.cat([found.pop(gate), found.pop(multiplied)])
    return found


def _with_axes(value: Tensor, axes: int) -> Tensor:
    """Remove leading axes of size 1 and flatten filters to rows, until a tensor has the given number of axes."""
    while value.dim() > axes and value.shape[0] == 1:
        value = value[0]
    return value.flatten(axes - 1) if value.dim() > axes else value


def require_keys(
    state_dict: Mapping[str, Any], wanted: Iterable[str], what: str, names: Mapping[str, str] | None = None
) -> None:
    """Refuse weights that lack some of the wanted keys, or have others; `names` are what their source calls them."""
    differences = {"lack": set(wanted) - set(state_dict), "have also": set(state_dict) - set(wanted)}
    parts = []
    for label, keys in differences.items():
        if keys:
            shown = sorted((names or {}).get(key, key) for key in keys)
            parts.append(f"{label} {pluralize(len(keys), 'key')} ({shorten(shown, 4)})")
    if parts:
        raise UsageError(f"these weights don't fit {what}: they {' and '.join(parts)}")


def check_weights(
    state_dict: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str, names: Mapping[str, str] | None = None
) -> None:
    """Refuse weights of other keys or other shapes; `names` are what their source calls them."""
    require_keys(state_dict, wanted, what, names)
    wrong = [
        f"{(names or {}).get(key, key)} gives {key} {tuple(state_dict[key].shape)}, not {tuple(value.shape)}"
        for key, value in wanted.items()
        if state_dict[key].shape != value.shape
    ]
    if wrong:
        count = "1 size differs" if len(wrong) == 1 else f"{len(wrong)} sizes differ"
        raise UsageError(f"these weights don't fit {what}: {count} ({shorten(wrong, 4)})")


@torch.no_grad()
def load_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    what: str | None = None,
    *,
    names: Mapping[str, str] | None = None,
    keep: Iterable[str] = (),
) -> None:
    """Copy weights into a network that has these keys and shapes exactly; what it calls `keep` stays as it is.

    >>> layer = nn.Linear(2, 1)
    >>> load_weights(layer, {"weight": torch.ones(1, 2)}, keep=["bias"])
    >>> load_weights(layer, {"weight": torch.ones(1, 3), "bias": torch.ones(1)})
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: these weights don't fit Linear: 1 size differs (weight gives weight (1, 3), not (1, 2))
    """
    own = {key: value for key, value in model.state_dict().items() if key not in set(keep)}
    check_weights(weights, own, what or type(model).__name__, names)
    for key, value in own.items():
        value.copy_(weights[key])


def fit_weights(model: nn.Module, weights: Mapping[str, Tensor], *, new_head: bool = False) -> list[str]:
    """Load weights that were trained for another image size, number of image channels or number of classes.

    Positions are interpolated, and filters of the first layer are adapted to the number of image channels. The
    classifier keeps its initial weights if the classes differ, or with `new_head`. Returns messages about what was
    resized or left out.
    """
    cfg = getattr(model, "pretrained_cfg", None) or {}
    theirs = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", lambda weights, model: weights)
    fitted = (checkpoint_filter_fn if isinstance(model, Backbone) else theirs)(dict(weights), model)
    own = model.state_dict()
    for name in [cfg.get("first_conv")] if isinstance(cfg.get("first_conv"), str) else cfg.get("first_conv") or ():
        key = f"{name}.weight"
        if key in fitted and key in own and fitted[key].shape[1] != own[key].shape[1]:
            fitted[key] = adapt_input_conv(own[key].shape[1], fitted[key])
    head = [key for key in own if key.startswith(f"{cfg.get('classifier')}.")]
    new = [key for key in head if new_head or key not in fitted or fitted[key].shape != own[key].shape]
    resized = [key for key, value in fitted.items() if key in weights and weights[key].numel() != value.numel()]
    notes = [f"{key} resized from {tuple(weights[key].shape)} to {tuple(fitted[key].shape)}" for key in resized]
    notes += [f"{key} {tuple(fitted[key].shape)} left out" for key in new if key in fitted]
    taken = {key: value for key, value in fitted.items() if key not in new}
    if broken := [key for key, value in taken.items() if not value.isfinite().all()]:
        raise ValueError(f"{broken[0]} has values that are not finite: training can't start from it")
    load_weights(model, taken, keep=new)
    return notes


def checkpoint_filter_fn(state_dict: StateDict, model: nn.Module) -> StateDict:
    """timm calls this on weights before it loads them: it adapts them to the model.

    timm's own weights go into ordinary networks; positions are interpolated to the model's grid; the first layer
    is fitted to the number of image channels. All keys but the classifier's must be there, because timm, when it
    replaces the classifier, would load what it finds and say nothing.
    """
    if not isinstance(model, Backbone):
        raise TypeError(f"expected a network of this library, got {type(model).__name__}")
    own = model.state_dict()
    classifier = {f"{name}.{kind}" for name in ("head", "head.fc", "fc") for kind in ("weight", "bias")}
    state_dict = under_our_names(state_dict, model)
    require_keys({key: 0 for key in state_dict if key not in classifier}, set(own) - classifier, type(model).__name__)
    for name, layer in model.named_modules():
        if isinstance(layer, PatchEmbed):
            _fit_channels(state_dict, f"{name}.proj", layer)
        elif isinstance(layer, Conv2d) and layer.in_chans is not None:
            _fit_image_filters(state_dict, name, layer)
        elif isinstance(layer, PosEmbed):
            _fit_positions(state_dict, name, layer)
    return state_dict


def _fit_channels(state_dict: StateDict, name: str, layer: PatchEmbed) -> None:
    irreps = layer.out_layout.group.irreps
    for irrep, places in zip(irreps, layer.fold.layout.multiplicities, strict=True):
        key = f"{name}.{irrep.name}.weight"
        if key in state_dict and state_dict[key].shape[1] != layer.in_chans * places:
            weight = state_dict[key].unflatten(1, (-1, places))[..., None]  # out, image channels, places, 1
            state_dict[key] = adapt_input_conv(layer.in_chans, weight).flatten(1)


def _fit_image_filters(state_dict: StateDict, name: str, layer: Conv2d) -> None:
    for irrep, own in layer.weight.items():
        key = f"{name}.weight.{irrep}"
        if key in state_dict and state_dict[key].shape[1] != own.shape[1]:
            weight = state_dict[key].unflatten(1, (own.shape[1] // (layer.in_chans or 1), -1))  # out, taps, channels
            rows = adapt_input_conv(layer.in_chans, weight.transpose(1, 2).flatten(2, 3))
            state_dict[key] = rows.unflatten(2, (weight.shape[1], -1)).transpose(1, 2).flatten(1, 2)


@torch.no_grad()
def _fit_positions(state_dict: StateDict, name: str, layer: PosEmbed) -> None:
    prefix = f"{name}.weight."
    stored = {key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)}
    if not stored or {k: v.shape for k, v in stored.items()} == {k: v.shape for k, v in layer.weight.items()}:
        return
    source = PosEmbed(layer.in_layout, _square_grid(stored, layer), dtype=next(iter(stored.values())).dtype)
    source.load_state_dict({f"weight.{irrep}": value for irrep, value in stored.items()})
    for irrep, value in source.resize_(layer.grid_size).weight.items():
        state_dict[prefix + irrep] = value.detach()


def _square_grid(stored: Mapping[str, Tensor], layer: PosEmbed) -> Grid:
    """The grid that positions were stored for; numbers of free values tell a square one."""
    shapes = {irrep: value.shape for irrep, value in stored.items()}
    group = layer.in_layout.group
    orbits = len(stored.get(group.irreps[0].name, ()))  # of places: each has between one and as many as the group
    for side in range(isqrt(orbits), isqrt(orbits * group.order) + 1):
        guess = PosEmbed(layer.in_layout, max(side, 1), device="meta")
        if {irrep: value.shape for irrep, value in guess.weight.items()} == shapes:
            return guess.grid_size
    counts = {irrep: tuple(shape) for irrep, shape in shapes.items()}
    raise UsageError(f"positions {counts} belong to no square grid; load them at their own size, then set_input_size")
