"""The arguments of networks that files may set: recipes, and the config.json of a saved network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flopping.errors import UsageError

_NAMES = """
act_layer attn_drop_rate avg_down bottleneck channels class_token conv_bias conv_mlp depth depths dims
dynamic_img_size embed_dim fc_norm final_norm fix_init global_pool group handoffs head_init_scale init_values
invariant_share kernel_size kernel_sizes layers ls_init_value mlp_ratio no_embed_class norm_eps norm_layer num_blocks
num_heads patch_drop_rate patch_size pos_drop_rate pre_norm proj_bias proj_drop_rate qk_norm qkv_bias readout
reg_tokens stem_norm stem_type stem_width use_grn widths zero_init_last
"""
MODEL_ARGS = frozenset(_NAMES.split())
"""timm's other arguments read files and change what a network returns."""
CONFIG_ARGS = MODEL_ARGS | {"drop_path_rate", "drop_rate", "img_size", "in_chans", "num_classes", "weight_init"}
"""A config.json also holds what fields of a recipe decide."""
MAX_IMG_SIZE = 8192
"""Positions of larger images fill the memory."""


def check_arguments(arguments: object, known: Iterable[str], where: str) -> None:
    """Refuse arguments that a file may not set, and images that are too large; `where` names the file.

    >>> check_arguments({"cache_dir": "a"}, ["depth", "embed_dim"], "config.json")
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: config.json: model_args of a registered network are depth, embed_dim; got 'cache_dir'
    """
    if not isinstance(arguments, Mapping):
        raise UsageError(f"{where}: model_args is a table of names and values, got {arguments!r}")
    known = sorted(known)
    for name in arguments:
        if name not in known:
            raise UsageError(f"{where}: model_args of a registered network are {', '.join(known)}; got {name!r}")
    size = arguments.get("img_size", 1)
    for side in size if isinstance(size, (list, tuple)) else [size]:
        if type(side) is not int or not 1 <= side <= MAX_IMG_SIZE:
            raise UsageError(f"{where}: img_size in model_args is from 1 to {MAX_IMG_SIZE}, got {size!r}")
