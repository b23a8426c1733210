"""Layers on maps `(B, H, W, ...)`: depthwise convolution and downsampling.

Both need a group whose irreps are all 1-dimensional, so that the product of two parities is a parity.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional.grid import Fold, basis_of
from flopping.nn.linear import Linear
from flopping.nn.module import Module
from flopping.nn.symmetric import SymmetricModule


class DepthwiseConv2d(SymmetricModule):
    """One filter per channel; the filter's parity turns the parity of its input into that of its output.

    For flop half of the channels of each parity keep it (symmetric filter) and half change it (antisymmetric
    filter). In general the copies of the regular representation are dealt out evenly over the irreps k: a
    channel of irrep i goes to irrep i x k. Extra invariant channels stay invariant. Channels of a part are
    ordered by where they go, and in the result by where they come from. The bias is on the trivial irrep.

    >>> from flopping import flop
    >>> layer = DepthwiseConv2d(Layout.regular(flop, 8), kernel_size=3)
    >>> {pair: tuple(p.shape) for pair, p in layer.weight.items()}
    {'even_to_even': (2, 6), 'even_to_odd': (2, 3), 'odd_to_even': (2, 3), 'odd_to_odd': (2, 6)}
    """

    leading = 3
    free_dim = 1

    def __init__(
        self, layout: Layout, kernel_size: int = 7, bias: bool = True, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        super().__init__(layout, layout)
        group = layout.group
        group.require_grid("DepthwiseConv2d")
        group.require_signs("DepthwiseConv2d")
        if not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"a filter that keeps the size has an odd kernel_size, got {kernel_size}")
        layout.require_regular("DepthwiseConv2d")
        self.kernel_size = kernel_size
        self.shares = self._deal(layout)
        self._set_grid((kernel_size, kernel_size), device, dtype)
        self.weight = nn.ParameterDict()
        for i, row in enumerate(self.shares):
            for j, channels in enumerate(row):
                free = self.functions[self._parity(i, j)].free
                if channels and not free:
                    raise ValueError(f"kernel_size={kernel_size} is too small for filters {self._pair(i, j)}")
                if channels:
                    weight = torch.empty(channels, free, device=device, dtype=dtype)
                    self.weight[self._pair(i, j)] = nn.Parameter(weight)
        width = layout.multiplicities[0]
        self.bias = nn.Parameter(torch.empty(width, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Filters start as those of `nn.Conv2d` with a fan-in of all taps, the bias at zero."""
        for weight in self.weight.values():
            nn.init.uniform_(weight, -1 / self.kernel_size, 1 / self.kernel_size)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @staticmethod
    def _deal(layout: Layout) -> tuple[tuple[int, ...], ...]:
        """How many channels of irrep i go to irrep j."""
        group = layout.group
        each, rest = divmod(layout.copies, group.order)
        dealt = [each + (k < rest) for k in range(group.order)]
        irreps = range(len(group.irreps))
        shares = [[dealt[group.irrep_product(i, j)] for j in irreps] for i in irreps]
        shares[0][0] += layout.extra
        return tuple(map(tuple, shares))

    @property
    def constant_taps(self) -> int:
        """Taps that are zero whatever the weights: those on the mirror lines of antisymmetric filters."""
        zeros = {name: int((~functions.matrix.any(-1)).sum()) for name, functions in self.functions.items()}
        return sum(
            channels * zeros[self._parity(i, j)] for i, row in enumerate(self.shares) for j, channels in enumerate(row)
        )

    def _parity(self, i: int, j: int) -> str:
        """The irrep of filters from irrep i to irrep j."""
        group = self.in_layout.group
        return group.irreps[group.irrep_product(i, j)].name

    def _irrep_of(self, name: str) -> str:
        names = [irrep.name for irrep in self.in_layout.group.irreps]
        return self._parity(*(names.index(irrep) for irrep in name.split("_to_")))

    def _pair(self, i: int, j: int) -> str:
        irreps = self.in_layout.group.irreps
        return f"{irreps[i].name}_to_{irreps[j].name}"

    def _filter(self, i: int) -> Tensor:
        """The filters of all channels of irrep i, `(m, 1, k, k)`."""
        blocks = [self._functions(self._pair(i, j)) for j, channels in enumerate(self.shares[i]) if channels]
        whole = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        filters: Tensor = whole.unflatten(1, (1, self.kernel_size, self.kernel_size))
        return filters

    def extra_repr(self) -> str:
        return f"{self.in_layout}, kernel_size={self.kernel_size}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "DepthwiseConv2d", self.leading)
        shares: list[list[Tensor]] = [[] for _ in self.shares]
        for i, row in enumerate(self.shares):
            if not sum(row):
                continue
            bias = None
            if self.bias is not None:
                start = sum(self.shares[s][0] for s in range(i))
                bias = F.pad(self.bias.narrow(0, start, row[0]), (0, sum(row) - row[0]))
            x_BCHW = x[i].permute(0, 3, 1, 2)
            y_BCHW = F.conv2d(x_BCHW, self._filter(i), bias, padding=self.kernel_size // 2, groups=sum(row))
            y_BHWC = y_BCHW.permute(0, 2, 3, 1)
            for j, channels in enumerate(row):
                if channels:
                    shares[j].append(y_BHWC.narrow(-1, sum(row[:j]), channels))
        return tuple(
            [
                x[j] if not parts else parts[0] if len(parts) == 1 else torch.cat(parts, -1)
                for j, parts in enumerate(shares)
            ]
        )

    @torch.no_grad()
    def to_dense(self) -> nn.Conv2d:
        """The ordinary convolution on packed channels `(B, dim, H, W)` that does the same."""
        dim, k = self.in_layout.dim, self.kernel_size
        conv = nn.Conv2d(dim, dim, k, padding=k // 2, bias=self.bias is not None).to(next(self.parameters()))
        conv.weight.zero_()
        starts_in = [sum(self.in_layout.multiplicities[:i]) for i in range(len(self.shares))]
        for i, row in enumerate(self.shares):
            filters = self._filter(i)[:, 0] if sum(row) else conv.weight.new_zeros(0, k, k)
            for j, channels in enumerate(row):
                source = starts_in[i] + sum(row[:j])
                target = starts_in[j] + sum(self.shares[s][j] for s in range(i))
                for c in range(channels):
                    conv.weight[target + c, source + c] = filters[sum(row[:j]) + c]
        if self.bias is not None and conv.bias is not None:
            conv.bias.copy_(F.pad(self.bias, (0, dim - len(self.bias))))
        return conv


class Downsample(Module):
    """Windows of `factor` x `factor` places to one, by a folded convolution with stride equal to its kernel.

    A channel of irrep i on places of parity j has irrep i x j; after sorting by it one `Linear` follows.

    >>> from flopping import flop
    >>> small, large = Layout.regular(flop, 8), Layout.regular(flop, 16)
    >>> [tuple(part.shape) for part in Downsample(small, large)(small.random(2, 4, 6))]
    [(2, 2, 3, 8), (2, 2, 3, 8)]
    """

    in_layout: Layout
    out_layout: Layout
    leading = 3

    def __init__(
        self,
        in_layout: Layout,
        out_layout: Layout,
        factor: int = 2,
        bias: bool = True,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(in_layout, out_layout)
        group = in_layout.group
        group.require_grid("Downsample")
        group.require_signs("Downsample")
        if factor < 1:
            raise ValueError(f"factor is a whole number of places, at least 1, got {factor}")
        self.factor = factor
        self.fold = Fold(group, (factor, factor), dim=-3, device=device)
        places = self.fold.layout.multiplicities
        irreps = range(len(places))
        self.sources = [[(i, group.irrep_product(i, k)) for i in irreps] for k in irreps]
        folded = tuple(sum(in_layout.multiplicities[i] * places[j] for i, j in pairs) for pairs in self.sources)
        self.proj = Linear(Layout(group, folded), out_layout, bias, device=device, dtype=dtype)

    def extra_repr(self) -> str:
        return f"{self.in_layout} -> {self.out_layout}, factor={self.factor}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Downsample", self.leading)
        if not is_symbolic(x) and (x[0].shape[1] % self.factor or x[0].shape[2] % self.factor):
            raise ValueError(f"a map of {x[0].shape[1]} x {x[0].shape[2]} places is not a multiple of {self.factor}")
        folded = [self._fold(x[i]) for i in range(len(self.sources))]
        parts = [torch.cat([folded[i][j] for i, j in pairs], -1) for pairs in self.sources]
        out: Feature = self.proj(tuple(parts))
        return out

    def _fold(self, part: Tensor) -> list[Tensor]:
        """`(B, H, W, m)` to one `(B, H/f, W/f, places * m)` per parity of the places."""
        windows = part.unflatten(2, (-1, self.factor)).unflatten(1, (-1, self.factor)).permute(0, 1, 3, 2, 4, 5)
        return [component.flatten(-2) for (component,) in self.fold(windows)]

    @torch.no_grad()
    def to_dense(self) -> nn.Conv2d:
        """The ordinary convolution on packed channels `(B, dim, H, W)` that does the same, at full cost."""
        dense = self.proj.to_dense()
        f, layout = self.factor, self.in_layout
        conv = nn.Conv2d(layout.dim, self.out_layout.dim, f, f, bias=dense.bias is not None).to(dense.weight)
        conv.weight.zero_()
        bases = [basis[0].to(dense.weight) for basis in basis_of(layout.group, (f, f))]
        widths = [len(bases[j]) * layout.multiplicities[i] for pairs in self.sources for i, j in pairs]
        columns = iter(dense.weight.split(widths, 1))
        starts = [sum(layout.multiplicities[:i]) for i in range(len(self.sources))]
        for pairs in self.sources:
            for i, j in pairs:
                block = next(columns).unflatten(1, (len(bases[j]), layout.multiplicities[i]))  # out, places, m
                taps = torch.einsum("onm,np->omp", block, bases[j]).unflatten(-1, (f, f))
                conv.weight[:, starts[i] : starts[i] + layout.multiplicities[i]] += taps
        if conv.bias is not None:
            conv.bias.copy_(dense.bias)
        return conv
