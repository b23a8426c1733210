"""Which channels are worth a look: those that answer strongly, in connected places, and not all in the same way."""

from __future__ import annotations

import torch
from torch import Tensor


def chosen(maps: Tensor, number: int, signed: bool) -> list[int]:
    """Indices of so many maps of `(C, h, w)`, the best one first; of `signed` ones 0 has a meaning.

    A map is good if it is strong, in the middle rather than at the edges, where it shows positions more than the image;
    if neighbouring places are alike; if a mirror changes what is seen; and if no map chosen before looks like it.

    >>> maps = torch.zeros(3, 4, 4)
    >>> maps[1, :, :2], maps[2, 0, 0] = 1.0, 1.0
    >>> chosen(maps, 2, signed=False)
    [1, 2]
    """
    centred = (maps if signed else maps - maps.mean((1, 2), keepdim=True)) * _window(maps)
    strength = centred.square().mean((1, 2)).sqrt()
    unit = centred / centred.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None]
    score = strength * (0.05 + _smoothness(unit)) * (0.1 + _change(unit, -1.0 if signed else 1.0))
    found: list[int] = []
    likeness = torch.zeros(len(maps), device=maps.device)
    for _ in range(min(number, len(maps))):
        left = score * (1 - likeness)
        left[found] = -1.0
        found.append(int(left.argmax()))
        likeness = torch.maximum(likeness, (unit * unit[found[-1]]).sum((1, 2)).abs())
    return found


def _window(maps: Tensor) -> Tensor:
    """Weights `(h, w)` of places, 1 in the middle."""
    down, across = (
        torch.sin(torch.pi * (torch.arange(size, device=maps.device) + 0.5) / size) for size in maps.shape[1:]
    )
    return 0.1 + 0.9 * torch.outer(down, across)


def _smoothness(unit: Tensor) -> Tensor:
    """How much places are like their neighbours, between 0 and 1."""
    if min(unit.shape[1:]) < 2:
        return torch.ones(len(unit), device=unit.device)
    down = (unit[:, 1:] * unit[:, :-1]).sum((1, 2))
    across = (unit[:, :, 1:] * unit[:, :, :-1]).sum((1, 2))
    return ((down + across) / 2).clamp(0, 1)


def _change(unit: Tensor, sign: float) -> Tensor:
    """How much a map changes, between 0 and 1, when it is mirrored and multiplied by a sign."""
    change = (unit - sign * unit.flip(-1)).square()
    return change.sum((1, 2)).sqrt() / 2
