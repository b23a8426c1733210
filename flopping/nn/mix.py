"""Mixing of tokens by one matrix shared by all channels (ResMLP)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout
from flopping.functional.grid import Fold, Grid, as_pair, basis_of, check_tokens
from flopping.nn.module import Module


class TokenMix(Module):
    """A linear map between the places of a grid, the same for every channel, on tokens `(B, N, ...)`.

    Tokens are folded into parities; each parity has its own matrix, whatever the parity of the channel. The
    bias acts where the parities of token and channel agree, because their product is invariant.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 4)
    >>> mix = TokenMix(layout, grid_size=(2, 3))
    >>> {name: tuple(p.shape) for name, p in mix.named_parameters()}
    {'weight.even': (4, 4), 'weight.odd': (2, 2), 'bias.even': (4,), 'bias.odd': (2,)}
    """

    in_layout: Layout
    leading = 2
    materialised = False

    def __init__(
        self, layout: Layout, grid_size: int | Grid, bias: bool = True, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        super().__init__(layout, layout)
        group = layout.group
        group.require_grid("TokenMix")
        group.require_signs("TokenMix")
        if group.swaps_axes:
            raise ValueError(f"TokenMix needs a group that keeps rows and columns apart, got {group}")
        self.grid_size = as_pair(grid_size, "grid_size")
        # the scales of fold and unfold are left to the matrices, which are small: 98 x 98 for 14 x 14 tokens
        self.fold = Fold(group, self.grid_size, dim=-3, scaled=False, device=device)
        self.names = tuple(irrep.name for irrep in group.irreps)
        self.weight = nn.ParameterDict()
        self.bias = nn.ParameterDict() if bias else None
        parts = zip(self.names, self.fold.layout.multiplicities, layout.multiplicities, strict=True)
        for name, places, channels in parts:
            if places:
                self.weight[name] = nn.Parameter(torch.empty(places, places, device=device, dtype=dtype))
                if self.bias is not None and channels:
                    self.bias[name] = nn.Parameter(torch.empty(places, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As `nn.Linear` starts, for the places of each parity."""
        for name, weight in self.weight.items():
            bound = 1 / len(weight) ** 0.5
            nn.init.uniform_(weight, -bound, bound)
            if self.bias is not None and name in self.bias:
                nn.init.uniform_(self.bias[name], -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.in_layout}, grid_size={self.grid_size}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "TokenMix", self.leading)
        check_tokens(x, self.grid_size, "TokenMix")
        order = 1 if self.materialised else self.in_layout.group.order
        weight = {name: w / order if order > 1 else w for name, w in self.weight.items()}
        return tuple([self._mix(i, x[i], weight) if m else x[i] for i, m in enumerate(self.in_layout.multiplicities)])

    @torch.no_grad()
    def materialise_(self) -> None:
        """Store the matrices with the factors of the fold, for inference."""
        order = 1 if self.materialised else self.in_layout.group.order
        for factor, dictionary in ((1 / order, self.weight), (order**-0.5, self.bias or {})):
            for value in dictionary.values():
                value *= factor
        self.materialised = True

    def _mix(self, channel: int, part: Tensor, weight: Mapping[str, Tensor]) -> Tensor:
        folded = self.fold(part.unflatten(1, self.grid_size))
        mixed = []
        for token, name in enumerate(self.names):
            (values,) = folded[token]
            if name in weight:
                if self.bias is not None and token == channel:
                    bias = self.bias[name][:, None]
                    if not self.materialised:
                        bias = bias * self.in_layout.group.order**-0.5
                    values = torch.baddbmm(bias, weight[name].expand(values.shape[0], -1, -1), values)
                else:
                    values = weight[name] @ values
            mixed.append(values)
        return self.fold.inverse(mixed).flatten(1, 2)

    @torch.no_grad()
    def to_dense(self) -> tuple[Tensor, Tensor]:
        """The full matrix `(N, N)` that mixes tokens, and the bias `(N, dim)` of packed channels."""
        like = next(iter(self.weight.values()))
        weight = like.new_zeros(prod(self.grid_size), prod(self.grid_size))
        columns = []
        bases = basis_of(self.in_layout.group, self.grid_size)
        for name, m, (basis,) in zip(self.names, self.in_layout.multiplicities, bases, strict=True):
            basis = basis.to(like)
            column = like.new_zeros(prod(self.grid_size))
            if name in self.weight:
                weight += basis.T @ self.weight[name] @ basis
                if self.bias is not None and name in self.bias:
                    column = basis.T @ self.bias[name]
            columns.append(column[:, None].expand(-1, m))
        return weight, torch.cat(columns, 1)
