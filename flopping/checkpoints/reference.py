"""Checkpoints of the paper's reference code and of octic-vits, read into our networks.

`load_reference` is all that callers need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import timm
from torch import Tensor

from flopping.checkpoints import octic_vits, paper_code
from flopping.checkpoints.rules import Family, Source, translate_weights
from flopping.checkpoints.weight_files import (
    OVERWRITE,
    fill_folder,
    read_weights,
    require_output_folder,
    table_of_weights,
    write_weights,
)
from flopping.errors import UsageError, as_usage_error
from flopping.files import atomic_write, require_output, suffix_of
from flopping.functional.grid import Grid, as_pair
from flopping.groups import grid_groups
from flopping.models.backbone import Backbone
from flopping.models.sizes import Entry
from flopping.models.weights import load_weights
from flopping.models.zoo import ZOO

Handoff = Literal["hybrid", "abs"]
_WRAPPERS = ("model.", "module.", "_orig_mod.", "backbone.")
_RECORDED = {"input", "logits", "logits_flopped_input", "pooled_features", "output", "output_flopped", "output_rot90"}
_TRAINING_HEADS = ("dino_head.", "ibot_head.")  # beside the backbone of a teacher; its features are read before them
_FREE = {"num_classes", "in_chans", "img_size"}  # they may differ within one architecture


@dataclass(frozen=True)
class Translation:
    """The network that a checkpoint holds: its registered name, its arguments and its weights."""

    name: str
    args: dict[str, Any]
    weights: dict[str, Tensor]
    origins: dict[str, str]
    """Which of their keys each of our weights was made of."""

    @property
    def paper(self) -> str | None:
        """What the paper calls the network, if it has it. Its I(X) is "abs" in the reference code."""
        entry = ZOO[self.name]
        changed = {key: value for key, value in self.args.items() if key not in _FREE}
        if entry.paper is None or not changed:
            return entry.paper
        absolute = "depth" in entry.args and changed == {"handoffs": {entry.args["depth"] // 2: "abs"}}
        return f"I{entry.paper.removeprefix('E')}" if absolute else None

    def build(self) -> Backbone:
        with as_usage_error(ValueError):  # a number of heads that doesn't divide the width
            model: Backbone = timm.create_model(self.name, **self.args)
        load_weights(model, self.weights, self.name, names=self.origins)
        return model


def load_reference(
    checkpoint: str | Path | Mapping[str, Tensor],
    *,
    num_heads: int | None = None,
    img_size: int | Grid | None = None,
    handoff: Handoff | None = None,
) -> Backbone:
    """The network of a checkpoint of the reference code or of octic-vits: a path, or the state dict itself.

    `num_heads` is needed for widths other than those of the paper, `img_size` for grids that aren't square, and
    `handoff` ("hybrid" or "abs") where ordinary blocks follow equivariant ones, because such checkpoints look alike.
    """
    return translate(checkpoint, num_heads=num_heads, img_size=img_size, handoff=handoff).build()


def translate(checkpoint: str | Path | Mapping[str, Tensor], **hints: Any) -> Translation:
    """The network that a checkpoint holds, not yet built; `hints` as for `load_reference`."""
    path = checkpoint if isinstance(checkpoint, (str, Path)) else None
    with as_usage_error(UsageError, context="" if path is None else repr(str(path))):
        weights = table_of_weights(checkpoint, "the state dict") if path is None else read_weights(path)
        source = Source(_unwrap(weights))
        family = _find_family(source)
        hints = {name: value for name, value in hints.items() if value is not None}
        useless = sorted(hints.keys() - signature(family.find_args).parameters.keys())
        if useless:
            needless = f"needs no {useless[0]}, got {hints[useless[0]]!r}"
            raise UsageError(f"a {family.model.__name__} of this code {needless}: its keys and shapes tell everything")
        if "img_size" in hints:
            with as_usage_error(ValueError):
                hints["img_size"] = as_pair(hints["img_size"], "img_size")
        args = family.find_args(source, **hints)
        made = translate_weights(source, family.rules)
    changes = {entry.name: _find_changes(entry, args) for entry in ZOO.values() if entry.model is family.model}
    name = min(changes, key=lambda name: len(changes[name]))  # so the paper's networks need no arguments
    origins = {ours: " and ".join(keys) for ours, (keys, _) in made.items()}
    return Translation(name, changes[name], {ours: value for ours, (_, value) in made.items()}, origins)


@dataclass(frozen=True)
class Converted:
    """What was written: which network it is, and how to load it."""

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
        >>> print(Converted(Path("a"), None, "convnext_flop_test", {"num_classes": 5}).line)
        timm.create_model("local-dir:a", pretrained=True)
        """
        if self.path.suffix != ".safetensors":
            return f"timm.create_model({json.dumps(f'local-dir:{self.path}', ensure_ascii=False)}, pretrained=True)"
        rest = f", {self.arguments}" if self.args else ""
        path = json.dumps(str(self.path), ensure_ascii=False)
        return f'timm.create_model("{self.name}", checkpoint_path={path}{rest})'


def convert_reference(source: str | Path, out: str | Path, *, overwrite: bool = False, **hints: Any) -> Converted:
    """Rewrite a checkpoint of the reference code as a folder that timm loads; `hints` as for `load_reference`.

    If `out` ends in `.safetensors`, only the weights are written.
    """
    out = Path(out)
    alone = bool(suffix_of(out, [".safetensors"]))
    if alone:
        require_output(out, ".safetensors", overwrite, OVERWRITE)
    else:
        require_output_folder(out, overwrite)
    found = translate(source, **hints)
    model = found.build()
    if alone:
        metadata = {"architecture": found.name, "args": json.dumps(found.args)}
        write_weights(model.state_dict(), out, metadata, overwrite=overwrite)
    else:
        size = as_pair(found.args.get("img_size", ZOO[found.name].img_size), "img_size")
        with atomic_write(out, folder=True) as folder:
            fill_folder(folder, model, found.args, input_size=(model.in_chans, *size))
    return Converted(out, found.paper, found.name, found.args)


def _unwrap(source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the prefixes that wrappers add, and without recorded inputs and outputs beside the weights."""
    for prefix in _WRAPPERS:
        inner = {key.removeprefix(prefix): value for key, value in source.items() if key.startswith(prefix)}
        others = {key for key in source if not key.startswith((prefix, *_TRAINING_HEADS))}
        if inner and others <= _RECORDED:
            return _unwrap(inner)
    return {key: value for key, value in source.items() if key not in _RECORDED}


def _find_family(source: Source) -> Family:
    for family in (*octic_vits.FAMILIES, *paper_code.FAMILIES):
        if any(family.mark in key for key in source):
            return family
    what = "this is no equivariant network of the reference code or of octic-vits"
    ours = {irrep.name for group in grid_groups().values() for irrep in group.irreps if len(irrep.name) > 1}
    if any(ours.intersection(key.split(".")) for key in source):
        what = "these are weights of this library already, for timm.create_model(..., checkpoint_path=...)"
    elif any(".attn.qkv." in key or "linear_tokens." in key or "conv_dw." in key for key in source):
        what += " but an ordinary one, as timm's, for our networks with group='trivial'"
    raise UsageError(f"{what}; its keys are {', '.join(sorted(source)[:4])}, ...")


def _find_changes(entry: Entry, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that make a registered network one with the given arguments and the class's defaults."""
    defaults = {p.name: p.default for p in signature(entry.model).parameters.values()}
    own, wanted = {**defaults, **entry.args}, {**defaults, **args}
    if "img_size" in own:
        own["img_size"] = entry.img_size
    if bool(own["init_values"]) == bool(wanted["init_values"]):
        wanted["init_values"] = own["init_values"]  # where scales start doesn't matter once they have values
    return {key: value for key, value in wanted.items() if own[key] != value}
