"""Checkpoints of octic-vits: the arguments that shapes tell, and its keys in our names.

It stores a quarter of each patch filter and of the positions, which is more than is free. Its regular basis has the two
copies of E turned by 45 degrees against ours.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from flopping.checkpoints import rules
from flopping.checkpoints.rules import Rule, Source, same
from flopping.errors import UsageError
from flopping.functional.grid import Symmetric, basis_of
from flopping.functional.invariants import polynomial_plan
from flopping.groups import octic
from flopping.models.sizes import OCTIC_VITS_NORM
from flopping.models.vision_transformer import VisionTransformer

_IRREPS = tuple(irrep.name for irrep in octic.irreps)
_NORM = sqrt(octic.order / len(_IRREPS))
"""Its norm divides the sum of the irreps' variances by 8, ours by their number."""


def _unfold(irrep: str, quarter: Tensor) -> Tensor:
    """Functions of a 1-dimensional irrep on a square, from their upper left quarters."""
    sign = -1 if irrep in ("B1", "B2") else 1
    down, across, both = (torch.rot90(quarter, turns, (-2, -1)) for turns in (1, 3, 2))
    whole = torch.cat([torch.cat([quarter, sign * across], -1), torch.cat([sign * down, both], -1)], -2)
    return whole - whole.flip(-1) if irrep in ("A2", "B2") else whole + whole.flip(-1)


def _unfold_arrows(quarter: Tensor) -> Tensor:
    """Functions of E on a square, `(..., 2, h, w)`: the second component is the first one turned."""
    left = torch.cat([quarter, quarter.flip(-2)], -2)
    first = torch.cat([left, -left.flip(-1)], -1)
    return torch.stack([first, torch.rot90(first, 1, (-2, -1))], -3)


def _fold_filters(filters: Tensor, irrep: str) -> Tensor:
    """Dense filters `(out, in, p, p)` of the first component of an irrep, as the rows that our fold reads."""
    size = filters.shape[-1]
    basis = basis_of(octic, (size, size))[_IRREPS.index(irrep)][0].to(filters)
    return (filters.flatten(2) @ basis.T).flatten(1)


def _patches(irrep: str, quarter: Tensor) -> Tensor:
    return _fold_filters(_unfold(irrep, quarter) * (sqrt(2) / 4), irrep)


def _patches_of_arrows(left: Tensor, right: Tensor) -> Tensor:
    return _fold_filters(_unfold_arrows(torch.cat([left, right]))[:, :, 0] / 2, "E")


def _positions(irrep: str, *quarters: Tensor) -> Tensor:
    """Quarters `(h, w, copies)` as the free values that our positions store."""
    quarter = torch.cat(quarters, -1).permute(2, 0, 1)
    whole = _unfold_arrows(quarter) if irrep == "E" else _unfold(irrep, quarter)[:, None]  # copies, d, h, w
    table = whole.permute(2, 3, 1, 0).flatten(0, 1)
    return Symmetric(octic, (whole.shape[-2], whole.shape[-1]), _IRREPS.index(irrep)).fit(table)


def _turn_copies(axis: int, weight: Tensor) -> Tensor:
    """From its two copies of E in the regular basis to ours."""
    left, right = weight.unflatten(axis, (2, -1)).unbind(axis)
    return torch.cat([left + right, left - right], axis) * sqrt(0.5)


def _moved(element: str, matrix: Tensor) -> None:
    """Refuse another action than that of the group on the eight numbers of a copy of the regular representation."""
    blocks = [irrep.tensor[octic.elements.index(element)] for irrep in octic.irreps for _ in range(irrep.dim)]
    if not torch.equal(matrix.double(), torch.block_diag(*blocks)):
        raise ValueError(f"it must be what {element} does to A1, A2, B1, B2 and two copies of E")


def _rules(ordinary: str) -> tuple[Rule, ...]:
    """`ordinary` is what ours call the only irrep of the blocks after the hand-off."""
    filters, arrows = "patch_embed.lift8.conv", "patch_embed.proj.E.weight"
    return (
        *((f"{filters}_{i}.weight", f"patch_embed.proj.{i}.weight", partial(_patches, i)) for i in _IRREPS[:4]),
        (f"{filters}_E_(?:left|right).weight", arrows, _patches_of_arrows),
        (f"{filters}_A1.bias", "patch_embed.proj.A1.bias", same),
        *((f"pos_embed.{n}", f"pos_embed.weight.{i}", partial(_positions, i)) for n, i in enumerate(_IRREPS[:4])),
        ("pos_embed.[45]", "pos_embed.weight.E", partial(_positions, "E")),
        ("cls_token.0", "cls_token.token", torch.flatten),
        ("register_tokens.0", "reg_token.token", lambda value: value.squeeze(0)),
        ("(?:cls_token|register_tokens).#", "", rules.require_zero),
        ("mask_token.#", "", rules.ignore),  # for images that are masked in training
        ("blocks.#.mlp.fc1.lin_E.weight", r"blocks.\1.mlp.fc1.E.weight", partial(_turn_copies, 0)),
        ("blocks.#.mlp.fc2.lin_E.weight", r"blocks.\1.mlp.fc2.E.weight", partial(_turn_copies, 1)),
        (rf"blocks.#.{rules.LAYERS}.lin_(\w+).(weight|bias)", r"blocks.\1.\2.\3.\4", same),
        (r"blocks.#.norm#.scaling.alpha_(\w+)", r"blocks.\1.norm\2.weight.\3", lambda alpha: alpha * _NORM),
        ("blocks.#.norm#.scaling.beta", r"blocks.\1.norm\2.bias", same),
        (r"blocks.#.(?:gamma_|ls)#.alpha_(\w+)", r"blocks.\1.ls\2.gamma.\3", same),
        ("blocks.#.invariant_proj.(weight|bias)", r"handoffs.\1.linear.\2", same),
        (r"blocks.#.references.(\w+)", r"handoffs.\1.invariants.references.\2.weight", same),
        ("blocks.#.rotation_action", "", partial(_moved, "rot90")),
        ("blocks.#.reflection_action", "", partial(_moved, "flop")),
        *rules.ordinary_blocks(ordinary),
    )


def _vit_args(source: Source, num_heads: int | None = None) -> dict[str, Any]:
    """Octic blocks, then ordinary ones. What stands between them is moved to the first ordinary block's keys."""
    copies, chans, half_patch, _ = source.shape("patch_embed.lift8.conv_A1.weight", 4)
    half_grid, *_ = source.shape("pos_embed.0", 3)
    hidden, _ = source.shape("blocks.0.mlp.fc1.lin_A1.weight", 2)
    width, patch, depth = octic.order * copies, 2 * half_patch, source.depth("blocks")
    ordinary = source.first_ordinary(depth)
    if ordinary is None:
        raise UsageError(f"ordinary blocks follow the octic ones in octic-vits, got {depth} octic blocks alone")
    args = {
        "img_size": 2 * half_grid * patch,
        "patch_size": patch,
        "in_chans": chans,
        "num_classes": source.shape("head.weight", 2)[0] if "head.weight" in source else 0,
        "embed_dim": width,
        "depth": depth,
        "num_heads": rules.find_heads(width, num_heads),
        "mlp_ratio": hidden / copies,
        "qkv_bias": "blocks.0.attn.qkv.lin_A1.bias" in source,
        "group": octic.name,
        "handoffs": {ordinary: _find_handoff(source, copies)},
        "reg_tokens": source.shape("register_tokens.0", 3)[1] if "register_tokens.0" in source else 0,
        **OCTIC_VITS_NORM,
    }
    if not {"blocks.0.gamma_1.alpha_A1", "blocks.0.ls1.alpha_A1"} & set(source):
        args["init_values"] = 0.0
    for key in [key for key in source if key.startswith("invariant")]:
        source[f"blocks.{ordinary}.{key.removeprefix('invariantization.')}"] = source.pop(key)
    references = source.pop(f"blocks.{ordinary}.references", None)
    if references is not None:
        for irrep, value in _split_references(references).items():
            source[f"blocks.{ordinary}.references.{irrep}"] = value
    return args


def _find_handoff(source: Source, copies: int) -> str:
    """Which invariants there are, from how many of them a linear layer reads; none for a hybrid."""
    if "invariant_proj.weight" not in source:
        return "concat"
    if "invariantization.references" in source:
        return "max_filtering"
    width = source.shape("invariant_proj.weight", 2)[1]
    kinds = {sum(irrep.dim for irrep in octic.irreps) * copies: "power_spectrum"}
    kinds[len(polynomial_plan(octic).sums) * copies] = "polynomial"
    if width not in kinds:
        known = " or ".join(f"{n} for {kind}" for n, kind in kinds.items())
        raise UsageError(f"invariant_proj reads {known} of width {octic.order * copies}, got {width}")
    return kinds[width]


def _split_references(references: Tensor) -> dict[str, Tensor]:
    """References `(count, copies, 8)` as an equivariant map to the regular basis, whose factors they take over."""
    if references.dim() != 3 or references.shape[2] != octic.order:
        raise UsageError(f"invariantization.references have shape (count, copies, 8), got {tuple(references.shape)}")
    *signs, left_x, left_y, right_x, right_y = references.unbind(-1)
    arrows = torch.cat([torch.cat([left_x, right_x], -1), torch.cat([left_y, right_y], -1)])
    parts = zip(octic.irreps, [*signs, arrows], strict=True)
    return {irrep.name: part * sqrt(octic.order / irrep.dim) for irrep, part in parts}


FAMILIES = (
    rules.Family("invariant_proj.", VisionTransformer, _vit_args, _rules("A1")),
    rules.Family(".attn.qkv.lin_A1.", VisionTransformer, _vit_args, _rules("even")),
)
