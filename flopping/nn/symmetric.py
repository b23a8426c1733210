"""The base of position embeddings and depthwise filters: parameters are free values of functions on a grid."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from flopping.features import Device, Dtype, Layout
from flopping.functional.grid import Grid, Symmetric
from flopping.nn.module import Module


class SymmetricModule(Module):
    """A layer that builds functions on a grid, each of one irrep, from parameters alone."""

    in_layout: Layout
    functions: dict[str, Symmetric]
    weight: nn.ParameterDict
    """Free values of functions, by names that `_irrep_of` knows."""
    free_dim = 0
    """The axis of free values."""
    materialised = False
    """Whether `weight` holds the values on all places."""

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

    def _irrep_of(self, name: str) -> str:
        """The irrep of the functions whose free values are the parameter of this name."""
        return name

    def _functions(self, name: str) -> Tensor:
        """Functions on all places from their free values, as `Symmetric.build` does it."""
        values: Tensor = self.weight[name]
        if self.materialised:
            return values
        irrep = self._irrep_of(name)
        return self.functions[irrep].build(values, getattr(self, f"matrix_{irrep}", None), self.free_dim)

    @torch.no_grad()
    def materialise_(self) -> None:
        """Store the values on all places in place of the free ones: for inference, which then has nothing to build."""
        if self.materialised:
            return
        built = {name: nn.Parameter(self._functions(name), requires_grad=False) for name in self.weight}
        self.weight, self.materialised = nn.ParameterDict(built), True
