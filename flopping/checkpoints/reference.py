"""Checkpoints of the paper's reference code, read into our networks. `load_reference` is all that callers need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import timm
from torch import Tensor

from flopping.checkpoints.reference_families import (
    hierarchical_convnext,
    isotropic_convnext,
    resmlp,
    vision_transformer,
)
from flopping.checkpoints.translation import Handoff, Hints, Translation, Weights
from flopping.checkpoints.weight_files import read_weights, require_output, table_of_weights, write_weights
from flopping.errors import UsageError, as_usage_error
from flopping.functional.grid import Grid, as_pair
from flopping.models.backbone import Backbone
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.vision_transformer import VisionTransformer
from flopping.models.weights import load_weights, require_keys
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
        raise UsageError(f"handoff is 'hybrid' or 'abs', got {handoff!r}")
    if isinstance(checkpoint, (str, Path)):
        source = read_weights(checkpoint)
    else:
        source = table_of_weights(checkpoint, "the state dict")
    source = _stripped(source)
    model, family = _family_of(source)
    if model is not VisionTransformer and (num_heads is not None or handoff is not None):
        raise UsageError(f"num_heads and handoff are for vision transformers, and this is a {model.__name__}")
    with as_usage_error(ValueError):
        size = None if img_size is None else as_pair(img_size, "img_size")
    found = Translation(source, model)
    family(found, Hints(num_heads, size, handoff))
    require_keys(source, found.wanted, f"a {model.__name__} of the reference code")
    found.name, found.args = _registered(model, found.args)
    return found


def build(found: Translation) -> Backbone:
    """The network of a translation, with its weights."""
    with as_usage_error(ValueError):  # a number of heads that doesn't divide the width
        model: Backbone = timm.model_entrypoint(found.name)(**found.args)
    origins = {ours: " and ".join(theirs) for ours, theirs in found.origins.items()}
    load_weights(model, found.weights, found.name, names=origins)
    return model


@dataclass(frozen=True)
class Converted:
    """A file that was written: which network it holds, and how to load it."""

    path: Path
    paper: str | None
    name: str
    args: dict[str, Any]

    @property
    def arguments(self) -> str:
        """As they stand in a call."""
        return ", ".join(f"{key}={value!r}" for key, value in self.args.items())

    @property
    def line(self) -> str:
        """The Python that loads it.

        >>> print(Converted(Path("a.safetensors"), None, "convnext_flop_test", {"num_classes": 5}).line)
        timm.create_model("convnext_flop_test", checkpoint_path="a.safetensors", num_classes=5)
        """
        rest = f", {self.arguments}" if self.args else ""
        path = json.dumps(str(self.path), ensure_ascii=False)
        return f'timm.create_model("{self.name}", checkpoint_path={path}{rest})'


def convert_reference(
    source: str | Path,
    out: str | Path,
    *,
    num_heads: int | None = None,
    img_size: int | Grid | None = None,
    handoff: Handoff | None = None,
    overwrite: bool = False,
) -> Converted:
    """Rewrite a checkpoint of the reference code as a `.safetensors` file; arguments as for `load_reference`."""
    out = Path(out)
    require_output(out, overwrite)
    found = translate(source, num_heads=num_heads, img_size=img_size, handoff=handoff)
    metadata = {"architecture": found.name, "args": json.dumps(found.args)}
    write_weights(build(found).state_dict(), out, metadata, overwrite=overwrite)
    return Converted(out, paper_name(found), found.name, found.args)


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
    raise UsageError(f"{what}; its keys are {some}, ...")


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
