"""State dicts of octic-vits, written from its description: random numbers in the shapes of its keys."""

from __future__ import annotations

import torch
from torch import Tensor

IRREPS = ("A1", "A2", "B1", "B2", "E")
LAYERS = {"attn.qkv": (3, 1), "attn.proj": (1, 1), "mlp.fc1": (4, 1), "mlp.fc2": (1, 4)}
INVARIANTS = {"power_spectrum": 6, "max_filtering": 16, "polynomial": 32}


def octic_vit(
    width: int, depth: int, patch: int, grid: int, invariants: str | None, classes: int, device: str = "cpu"
) -> dict[str, Tensor]:
    """DeiT III for any number of classes, DINOv2 for none; a hybrid without invariants."""
    copies, half = width // 8, depth // 2
    shapes: dict[str, tuple[int, ...]] = {"patch_embed.lift8.conv_A1.bias": (copies,)}
    for name in (*IRREPS[:4], "E_left", "E_right"):
        shapes[f"patch_embed.lift8.conv_{name}.weight"] = (copies, 3, patch // 2, patch // 2)
    shapes |= {f"pos_embed.{i}": (grid // 2, grid // 2, copies) for i in range(6)}
    shapes["cls_token.0"] = (1, 1, copies)
    if not classes:
        shapes |= {f"mask_token.{i}": (1, copies) for i in range(8)}
    for block in range(half):
        shapes |= {f"blocks.{block}.{key}": shape for key, shape in _octic_block(copies, classes > 0).items()}
    for block in range(half, depth):
        shapes |= {f"blocks.{block}.{key}": shape for key, shape in _ordinary_block(width, classes > 0).items()}
    shapes |= {"norm.weight": (width,), "norm.bias": (width,)}
    if classes:
        shapes |= {"head.weight": (classes, width), "head.bias": (classes,)}
    if invariants:
        shapes |= {"invariant_proj.weight": (width, INVARIANTS[invariants] * copies), "invariant_proj.bias": (width,)}
    if invariants == "max_filtering":
        shapes["invariantization.references"] = (2 * width, copies, 8)
    found = {key: torch.randn(shape, device=device) for key, shape in shapes.items()}
    zeros = [(1, 1, copies)] * 3 + [(1, 1, 2, 2 * copies)] if classes else [(1, 1, copies)] * 7
    return found | {f"cls_token.{i}": torch.zeros(shape) for i, shape in enumerate(zeros, 1)}


def _octic_block(copies: int, deit: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for irrep in IRREPS:
        m = 2 * copies if irrep == "E" else copies
        shapes |= {f"{layer}.lin_{irrep}.weight": (out * m, into * m) for layer, (out, into) in LAYERS.items()}
        for n in (1, 2):
            scale = f"gamma_{n}" if deit else f"ls{n}"
            shapes |= {f"norm{n}.scaling.alpha_{irrep}": (m,), f"{scale}.alpha_{irrep}": (m,)}
    shapes |= {f"{layer}.lin_A1.bias": (out * copies,) for layer, (out, _) in LAYERS.items()}
    return shapes | {f"norm{n}.scaling.beta": (copies,) for n in (1, 2)}


def _ordinary_block(width: int, deit: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (out, into) in LAYERS.items():
        shapes |= {f"{layer}.weight": (out * width, into * width), f"{layer}.bias": (out * width,)}
    for n in (1, 2):
        shapes |= {f"norm{n}.weight": (width,), f"norm{n}.bias": (width,)}
        shapes[f"gamma_{n}" if deit else f"ls{n}.gamma"] = (width,)
    return shapes
