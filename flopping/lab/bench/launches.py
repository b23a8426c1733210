"""Kernels and bytes of one forward pass: E(X) in its inference form beside X, eager and compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from flopping.cost.traffic import compiled_kernels, trace_forward
from flopping.errors import UsageError
from flopping.models import ordinary_twin, registered_name
from flopping.models.blocks import find_blocks
from flopping.models.fuse import fuse
from flopping.models.targets import example_input, load


class Launches(NamedTuple):
    """A network in one mode: launches of a forward pass and bytes that a block moves, beside those of X."""

    name: str
    mode: str
    launches: int
    x_launches: int
    bytes: float
    x_bytes: float


def count_launches(name: str, batch: int = 8, compiled: bool = True) -> Iterator[Launches]:
    """A row for each mode of E(X): torch's operators, compiled operations or blocks, and the best there could be."""
    twin = ordinary_twin(registered_name(name))
    if twin is None:
        raise UsageError(f"{name!r} has no ordinary twin to be compared with: name networks like E(ViT-S)")
    found = []
    for target in (twin, name):
        torch.manual_seed(0)
        model = fuse(load(target))
        x = example_input(model, None, torch.float32, batch)
        assert isinstance(x, Tensor)
        found.append(_by_mode(model, x, compiled))
    ordinary, equivariant = found
    for mode, (number, size) in equivariant.items():
        x_number, x_size = ordinary[mode]
        yield Launches(name, mode, number, x_number, size, x_size)


def _by_mode(model: nn.Module, x: Tensor, compiled: bool) -> dict[str, tuple[int, float]]:
    plain = trace_forward(model, x)
    kernels = {
        "eager": plain.kernels(),
        "operations": trace_forward(model, x, operations=True).kernels(),
        "fused at best": plain.kernels(fused=True),
    }
    if compiled:
        made = compiled_kernels(model, x)
        compiled_blocks = {kernel.block for kernel in made}
        kernels["blocks"] = [*(kernel for kernel in kernels["eager"] if kernel.block not in compiled_blocks), *made]
    blocks = len(find_blocks(model))
    return {
        mode: (len(found), sum(kernel.bytes for kernel in found if kernel.block is not None) / blocks)
        for mode, found in kernels.items()
    }
