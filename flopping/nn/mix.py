"""Mixing of tokens by one matrix shared by all channels (ResMLP)."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout
from flopping.functional.grid import Fold, Grid, as_pair, basis_of, check_square, check_tokens
from flopping.groups.sums import combine
from flopping.nn.module import Module


class TokenMix(Module):
    """A linear map between the places of a grid, the same for every channel, on tokens `(B, N, ...)`.

    Tokens are folded into irreps; each irrep has its own matrix, whatever the irrep of the channel, and its components
    share it. An irrep of complex type has two, stacked, as in `Linear`. The bias acts where the irreps of token and
    channel agree, because their product has an invariant.

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
        self.grid_size = as_pair(grid_size, "grid_size")
        check_square(group, self.grid_size, "TokenMix")
        # the scales of fold and unfold are left to the matrices, which are small: 98 x 98 for 14 x 14 tokens
        self.fold = Fold(group, self.grid_size, dim=-3, scaled=not group.mirrors_only, device=device)
        self.names = tuple(irrep.name for irrep in group.irreps)
        self.weight = nn.ParameterDict()
        self.bias = nn.ParameterDict() if bias else None
        parts = zip(group.irreps, self.fold.layout.multiplicities, layout.multiplicities, strict=True)
        for irrep, places, channels in parts:
            if places:
                rows = irrep.type.degree * places
                self.weight[irrep.name] = nn.Parameter(torch.empty(rows, places, device=device, dtype=dtype))
                if self.bias is not None and channels:
                    self.bias[irrep.name] = nn.Parameter(torch.empty(rows, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As `nn.Linear` starts, for the inputs of each irrep."""
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
        order = self._factor_of_fold
        weight = {name: w / order if order > 1 else w for name, w in self.weight.items()}
        return tuple([self._mix(i, x[i], weight) if m else x[i] for i, m in enumerate(self.in_layout.multiplicities)])

    @property
    def _factor_of_fold(self) -> int:
        """The unscaled fold followed by its inverse multiplies by this factor, which the matrices take into account."""
        return 1 if self.materialised or self.fold.scaled else self.in_layout.group.order

    @torch.no_grad()
    def materialise_(self) -> None:
        """Store the matrices with the factors of the fold, for inference."""
        order = self._factor_of_fold
        for factor, dictionary in ((1 / order, self.weight), (order**-0.5, self.bias or {})):
            for value in dictionary.values():
                value *= factor
        self.materialised = True

    def _mix(self, channel: int, part: Tensor, weight: Mapping[str, Tensor]) -> Tensor:
        shape = self.in_layout.part_shapes[channel]
        values_BNC = part if len(shape) == 1 else part.flatten(2)
        mixed = self.fold(values_BNC.unflatten(1, self.grid_size))
        for token, irrep in enumerate(self.in_layout.group.irreps):
            if irrep.name not in weight:
                continue
            matrix, maps = weight[irrep.name], []
            for a, values in enumerate(mixed[token]):
                if self.bias is not None and token == channel:
                    bias = self._bias(self.bias[irrep.name], shape, a)
                    maps.append(torch.baddbmm(bias, matrix.expand(values.shape[0], -1, -1), values))
                else:
                    maps.append(matrix @ values)
            if irrep.type.degree > 1:
                blocks = [values.unflatten(1, (irrep.type.degree, -1)) for values in maps]
                maps = combine([b.select(1, k) for k in range(irrep.type.degree) for b in blocks], irrep.turns)
            mixed[token] = maps
        out: Tensor = self.fold.inverse(mixed).flatten(1, 2)
        return out if len(shape) == 1 else out.unflatten(2, shape)

    def _bias(self, bias: Tensor, shape: tuple[int, ...], component: int) -> Tensor:
        """What is added to a component of the tokens: it meets the same component of channels `([d,] m)`."""
        bias = bias[:, None]
        if self._factor_of_fold > 1:
            bias = bias * self._factor_of_fold**-0.5
        if len(shape) == 1:
            return bias
        d, m = shape
        return F.pad(bias.expand(-1, m), (component * m, (d - 1 - component) * m))

    @torch.no_grad()
    def to_dense(self) -> tuple[Tensor, Tensor]:
        """The full matrix `(N, N)` that mixes tokens, and the bias `(N, dim)` of packed channels."""
        like = next(iter(self.weight.values()))
        weight = like.new_zeros(prod(self.grid_size), prod(self.grid_size))
        group = self.in_layout.group
        columns = []
        bases = basis_of(group, self.grid_size)
        for irrep, m, basis in zip(group.irreps, self.in_layout.multiplicities, bases, strict=True):
            # component a of tokens from component b, by each of the stacked maps
            turned = torch.einsum("kab,anp->kbnp", irrep.endomorphisms, basis).to(like)
            column = like.new_zeros(prod(self.grid_size), irrep.dim)
            if irrep.name in self.weight:
                blocks = self.weight[irrep.name].unflatten(0, (irrep.type.degree, -1))
                weight += torch.einsum("kbnp,knm,bmq->pq", turned, blocks, basis.to(like))
                if self.bias is not None and irrep.name in self.bias:
                    values = self.bias[irrep.name].unflatten(0, (irrep.type.degree, -1))
                    column = torch.einsum("kbnp,kn->pb", turned, values)
            columns.append(column.repeat_interleave(m, 1))
        return weight, torch.cat(columns, 1)
