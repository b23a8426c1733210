"""What position embeddings and depthwise filters share: parameters that are free values of functions on a grid."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from flopping.features import Device, Dtype, Layout
from flopping.functional.grid import Grid, Symmetric
from flopping.nn.module import Module


class SymmetricModule(Module):
    """A layer that builds functions on a grid, each of one irrep, from parameters alone."""

    in_layout: Layout
    functions: dict[str, Symmetric]

    def _set_grid(self, grid: Grid, device: Device, dtype: Dtype) -> None:
        group = self.in_layout.group
        self.functions = {irrep.name: Symmetric(group, grid, i) for i, irrep in enumerate(group.irreps)}
        for name, functions in self.functions.items():
            if not group.mirrors_only:  # mirror images need no matrices
                empty = torch.empty(prod(grid), functions.dim, functions.free, device=device, dtype=dtype)
                self.register_buffer(f"matrix_{name}", empty, persistent=False)
        self.init_non_persistent_buffers()

    @torch.no_grad()
    def init_non_persistent_buffers(self) -> None:
        """Fill in the constants; again after `to_empty`, for a network built on the meta device."""
        for name, functions in self.functions.items():
            if not functions.group.mirrors_only:
                getattr(self, f"matrix_{name}").copy_(functions.matrix)

    def _functions(self, irrep: str, values: Tensor, dim: int = 0) -> Tensor:
        """Functions on all places from their free values, as `Symmetric.build` does it."""
        return self.functions[irrep].build(values, getattr(self, f"matrix_{irrep}", None), dim)
