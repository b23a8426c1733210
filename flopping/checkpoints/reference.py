"""Checkpoints of the paper's reference code, read into our networks. `load_reference` is all that callers need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import timm
from torch import Tensor

from flopping.checkpoints.families import hierarchical_convnext, isotropic_convnext, resmlp, vision_transformer
from flopping.checkpoints.files import read_weights, table_of_weights
from flopping.checkpoints.translation import Handoff, Hints, Translation, Weights
from flopping.grid import Grid, as_pair
from flopping.models.backbone import Backbone
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.vision_transformer import VisionTransformer
from flopping.models.weights import require_keys, require_shapes
from flopping.models.zoo import ZOO, Entry

Family = tuple[str, type[Backbone], Callable[[Translation, Hints], None]]

# Parts of keys that only this family has, the most telling first.
_FAMILIES: tuple[Family, ...] = (
    (".attn.qkv.linear_sym.", VisionTransformer, vision_transformer),
    (".attn.lin_sym.", ResMlp, resmlp),
    ("downsample_layers.0.0.proj_sym.", ConvNeXt, hierarchical_convnext),
    (".dwconv.sym_to_sym.", ConvNeXt, isotropic_convnext),
)
_WRAPPERS = ("model.", "module.", "_orig_mod.")
_RECORDED = {"input", "logits", "logits_flopped_input", "pooled_features"}
_FREE = {"num_classes", "in_chans", "img_size"}  # they may differ within one architecture


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
    return build(translate(checkpoint, num_heads=num_heads, img_size=img_size, handoff=handoff))


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
    if isinstance(checkpoint, (str, Path)):
        source = read_weights(checkpoint)
    else:
        source = table_of_weights(checkpoint, "the state dict")
    source = _stripped(source)
    model, family = _family_of(source)
    if model is not VisionTransformer and (num_heads is not None or handoff is not None):
        raise ValueError(f"num_heads and handoff are for vision transformers, and this is a {model.__name__}")
    found = Translation(source, model)
    family(found, Hints(num_heads, None if img_size is None else as_pair(img_size, "img_size"), handoff))
    require_keys(source, found.wanted, f"a {model.__name__} of the reference code")
    found.name, found.args = _registered(model, found.args)
    return found


def build(found: Translation) -> Backbone:
    """The network of a translation, with its weights."""
    model: Backbone = timm.model_entrypoint(found.name)(**found.args)
    own = model.state_dict()
    require_keys(found.weights, own, found.name)
    require_shapes(
        found.weights, own, found.name, {ours: " and ".join(theirs) for ours, theirs in found.origins.items()}
    )
    model.load_state_dict(found.weights)
    return model


def paper_name(found: Translation) -> str | None:
    """What the paper calls a network, if it has it. Its I(X) is "abs" in the reference code."""
    entry = ZOO[found.name]
    changed = {key: value for key, value in found.args.items() if key not in _FREE}
    if entry.paper is None or not changed:
        return entry.paper
    absolute = "depth" in entry.args and changed == {"handoffs": {entry.args["depth"] // 2: "abs"}}
    return f"I{entry.paper.removeprefix('E')}" if absolute else None


def _stripped(source: Weights) -> dict[str, Tensor]:
    """Without the prefixes that wrappers add, and without recorded inputs and outputs beside the weights."""
    for prefix in _WRAPPERS:
        inner = {key.removeprefix(prefix): value for key, value in source.items() if key.startswith(prefix)}
        others = {key for key in source if not key.startswith(prefix)}
        if inner and others <= _RECORDED:
            return _stripped(inner)
    return {key: value for key, value in source.items() if key not in _RECORDED}


def _family_of(source: Weights) -> tuple[type[Backbone], Callable[[Translation, Hints], None]]:
    for mark, model, family in _FAMILIES:
        if any(mark in key for key in source):
            return model, family
    what = "this is no equivariant network of the reference code"
    if any(".even." in key for key in source):
        what = "these are weights of this library already, for timm.create_model(..., checkpoint_path=...)"
    elif any(".attn.qkv." in key or "linear_tokens." in key or "conv_dw." in key for key in source):
        what += " but an ordinary one, as timm's, for our networks with group='trivial'"
    some = ", ".join(sorted(source)[:4])
    raise ValueError(f"{what}; its keys are {some}, ...")


def _registered(model: type[Backbone], args: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The registered network with the fewest arguments to change, and these.

    So weights of the paper's networks can be loaded by name, without arguments.
    """
    changes = {entry.name: _changes(entry, args) for entry in ZOO.values() if entry.model is model}
    name = min(changes, key=lambda name: len(changes[name]))
    return name, changes[name]


def _changes(entry: Entry, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that make a registered network one with the given arguments and the class's defaults."""
    defaults = {p.name: p.default for p in signature(entry.model).parameters.values()}
    own, wanted = {**defaults, **entry.args}, {**defaults, **args}
    if "img_size" in own:
        own["img_size"] = entry.img_size
    if bool(own["init_values"]) == bool(wanted["init_values"]):
        wanted["init_values"] = own["init_values"]  # where scales start doesn't matter once they have values
    return {key: value for key, value in wanted.items() if own[key] != value}
