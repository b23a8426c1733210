"""The arguments of networks that files may set: recipes, and the config.json of a saved network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

from flopping.errors import UsageError
from flopping.models.convnext import ConvNeXt
from flopping.models.mlp_mixer import ResMlp
from flopping.models.resnet import ResNet
from flopping.models.vision_transformer import VisionTransformer

_TIMM = """
channels conv_bias conv_mlp fc_norm final_norm fix_init head_init_scale kernel_sizes layers ls_init_value
no_embed_class norm_layer num_blocks patch_drop_rate pre_norm proj_bias use_grn
"""
"""Arguments that timm's networks have beyond ours. Its other ones read files and change what a network returns."""
RENAMED = {"invariant_share": "extra_share"}
"""Names in files of older versions."""
SET_BY_FIELDS = {
    "weight_init": "weight_init",
    "img_size": "img_size",
    "in_chans": "in_chans",
    "drop_path_rate": "drop_path",
    "drop_rate": "dropout",
    "num_classes": "the images",
}
"""Arguments that fields of a recipe or the images decide, and which ones."""
_OWN = {name for model in (VisionTransformer, ResMlp, ConvNeXt, ResNet) for name in signature(model).parameters}
CONFIG_ARGS = {*_OWN, *_TIMM.split(), *RENAMED, *SET_BY_FIELDS} - {"device", "dtype"}
"""What a config.json may set."""
MODEL_ARGS = CONFIG_ARGS - SET_BY_FIELDS.keys()
"""What the model_args of a recipe may set."""
MAX_IMG_SIZE = 8192
"""Positions of larger images fill the memory."""


def with_current_names(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a network, those of older versions under their names in this one.

    >>> with_current_names({"depth": 2, "invariant_share": 0.5})
    {'depth': 2, 'extra_share': 0.5}
    """
    for old, new in RENAMED.items():
        if old in arguments and new in arguments:
            raise ValueError(f"{old} is the old name of {new}: give only one of them")
    return {RENAMED.get(name, name): value for name, value in arguments.items()}


def check_arguments(arguments: object, known: Iterable[str], where: str) -> None:
    """Refuse arguments that a file may not set, and images that are too large; `where` names the file.

    >>> check_arguments({"cache_dir": "a"}, ["depth", "embed_dim"], "config.json")
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: config.json: got 'cache_dir'; model_args of a registered network are depth, embed_dim
    """
    if not isinstance(arguments, Mapping):
        raise UsageError(f"{where}: model_args is a table of names and values, got {arguments!r}")
    known = sorted(known)
    for name in arguments:
        if name not in known:
            raise UsageError(f"{where}: got {name!r}; model_args of a registered network are {', '.join(known)}")
    size = arguments.get("img_size", 1)
    for side in size if isinstance(size, (list, tuple)) else [size]:
        if type(side) is not int or not 1 <= side <= MAX_IMG_SIZE:
            raise UsageError(f"{where}: img_size in model_args is from 1 to {MAX_IMG_SIZE}, got {size!r}")
