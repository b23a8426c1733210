"""Layers on maps `(B, H, W, ...)`: depthwise convolution and downsampling."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional.conv import regular_depthwise, regular_matrix
from flopping.functional.grid import Fold
from flopping.groups.sums import Sums, combine, sums_of
from flopping.nn.linear import Linear
from flopping.nn.module import Module
from flopping.nn.symmetric import SymmetricModule

REGULAR = "regular"  # the name of filters in the regular basis


class DepthwiseConv2d(SymmetricModule):
    """One filter per channel; the filter's parity turns the parity of its input into that of its output.

    For flop half of the channels of each parity keep it (symmetric filter) and half change it (antisymmetric
    filter). In general the copies of the regular representation are dealt out evenly over the irreps k: a
    channel of irrep i goes to irrep i x k. Extra invariant channels stay invariant. Channels of a part are
    ordered by where they go, and in the result by where they come from. The bias is on the trivial irrep.

    A group with irreps of more dimensions has no parities. There a copy of the regular representation has one filter,
    free in all its taps: in the regular basis the value of element g is filtered by the filter moved by g.

    >>> from flopping import flop, octic
    >>> layer = DepthwiseConv2d(Layout.regular(flop, 8), kernel_size=3)
    >>> {pair: tuple(p.shape) for pair, p in layer.weight.items()}
    {'even_to_even': (2, 6), 'even_to_odd': (2, 3), 'odd_to_even': (2, 3), 'odd_to_odd': (2, 6)}
    >>> layer = DepthwiseConv2d(Layout.regular(octic, 20, extra=4), kernel_size=3)
    >>> {name: tuple(p.shape) for name, p in layer.weight.items()}
    {'regular': (2, 9), 'A1_to_A1': (4, 3)}
    """

    leading = 3
    free_dim = 1

    def __init__(
        self, layout: Layout, kernel_size: int = 7, bias: bool = True, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        super().__init__(layout, layout)
        group = layout.group
        group.require_grid("DepthwiseConv2d")
        if not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"a filter that keeps the size has an odd kernel_size, got {kernel_size}")
        copies, _ = layout.require_regular("DepthwiseConv2d")
        self.kernel_size = kernel_size
        self.shares = self._deal(layout)
        self._set_grid((kernel_size, kernel_size), device, dtype)
        self.weight = nn.ParameterDict()
        if copies and not group.signs_only:
            self.weight[REGULAR] = nn.Parameter(torch.empty(copies, kernel_size**2, device=device, dtype=dtype))
        for i, row in enumerate(self.shares):
            for j, channels in enumerate(row):
                if not channels:
                    continue
                free = self.functions[self._parity(i, j)].free
                if not free:
                    raise ValueError(f"kernel_size={kernel_size} is too small for filters {self._pair(i, j)}")
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
        """How many channels of irrep i go to irrep j, one by one."""
        group = layout.group
        irreps = range(len(group.irreps))
        shares = [[0 for _ in irreps] for _ in irreps]
        if group.signs_only:
            each, rest = divmod(layout.copies, group.order)
            dealt = [each + (k < rest) for k in range(group.order)]
            shares = [[dealt[group.irrep_product(i, j)] for j in irreps] for i in irreps]
        shares[0][0] += layout.extra
        return tuple(map(tuple, shares))

    @property
    def constant_taps(self) -> int:
        """Taps that are zero whatever the weights: those on the mirror lines of antisymmetric filters."""
        zeros = {name: int((~functions.matrix.any(-1)).sum()) for name, functions in self.functions.items()}
        return sum(
            channels * zeros[self._parity(i, j)]
            for i, row in enumerate(self.shares)
            for j, channels in enumerate(row)
            if channels
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

    def _functions(self, name: str) -> Tensor:
        """Filters `(channels, k * k)` of one name; those of the regular basis element by element."""
        if name != REGULAR or self.materialised:
            return super()._functions(name)
        group, taps = self.in_layout.group, self.weight[name].unflatten(1, (self.kernel_size, self.kernel_size))
        return torch.cat([group.act(g, taps) for g in range(group.order)]).flatten(1)

    def _filter(self, i: int) -> Tensor:
        """The filters of all channels of irrep i, `(m, 1, k, k)`; for i = 0 after those of the regular basis."""
        names = [REGULAR] if REGULAR in self.weight and i == 0 else []
        names += [self._pair(i, j) for j, channels in enumerate(self.shares[i]) if channels]
        blocks = [self._functions(name) for name in names]
        whole = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
        filters: Tensor = whole.unflatten(1, (1, self.kernel_size, self.kernel_size))
        return filters

    def extra_repr(self) -> str:
        return f"{self.in_layout}, kernel_size={self.kernel_size}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "DepthwiseConv2d", self.leading)
        if REGULAR in self.weight:
            return regular_depthwise(x, self._filter(0), self.bias, self.in_layout)
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
        if regular := REGULAR in self.weight:
            basis = regular_matrix(self.in_layout).to(conv.weight)
            conv.weight.copy_(torch.einsum("oc,chw,ic->oihw", basis, self._filter(0)[:, 0], basis))
        starts_in = [sum(self.in_layout.multiplicities[:i]) for i in range(len(self.shares))]
        for i, row in enumerate(() if regular else self.shares):
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

    A channel of irrep i on places of irrep j falls apart into the irreps of the product i x j; after sorting by them
    one `Linear` follows. For 1-dimensional irreps the product is one irrep, and nothing is to be computed.

    >>> from flopping import flop
    >>> small, large = Layout.regular(flop, 8), Layout.regular(flop, 16)
    >>> [tuple(part.shape) for part in Downsample(small, large)(small.random(2, 4, 6))]
    [(2, 2, 3, 8), (2, 2, 3, 8)]
    """

    in_layout: Layout
    out_layout: Layout
    leading = 3
    products: list[tuple[int, int, list[tuple[int, int]], Sums]]
    """Irreps of channel and places, (irrep, component) that their product has, copy by copy, and the sums for these."""

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
        if factor < 1:
            raise ValueError(f"factor is a whole number of places, at least 1, got {factor}")
        self.factor = factor
        self.fold = Fold(group, (factor, factor), dim=-3, device=device)
        self.products = []
        folded = [0] * len(group.irreps)
        for i, m in enumerate(in_layout.multiplicities):
            for j, n in enumerate(self.fold.layout.multiplicities):
                counts, basis = group.tensor_product(i, j)
                folded = [total + m * n * count for total, count in zip(folded, counts, strict=True)]
                dims = zip(counts, in_layout.irrep_dims, strict=True)
                targets = [(k, c) for k, (count, d) in enumerate(dims) for c in range(d) for _ in range(count)]
                self.products.append((i, j, targets, sums_of(list(zip(*basis, strict=True)))))
        self.proj = Linear(Layout(group, tuple(folded)), out_layout, bias, device=device, dtype=dtype)

    def extra_repr(self) -> str:
        return f"{self.in_layout} -> {self.out_layout}, factor={self.factor}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Downsample", self.leading)
        if not is_symbolic(x) and (x[0].shape[1] % self.factor or x[0].shape[2] % self.factor):
            raise ValueError(f"a map of {x[0].shape[1]} x {x[0].shape[2]} places is not a multiple of {self.factor}")
        out: Feature = self.proj(self._fold(x))
        return out

    def _fold(self, x: Feature) -> Feature:
        """Windows of all parts, as a feature `(B, H/f, W/f, ...)` of the layout that `proj` takes."""
        dims = self.in_layout.irrep_dims
        folded = [
            [self._fold_windows(part if d == 1 else part.select(-2, a)) for a in range(d)]
            for part, d in zip(x, dims, strict=True)
        ]
        found: list[list[list[Tensor]]] = [[[] for _ in range(d)] for d in dims]
        for i, j, targets, sums in self.products:
            terms = [term for component in folded[i] for term in component[j]]
            for (k, c), value in zip(targets, combine(terms, sums), strict=True):
                found[k][c].append(value)
        parts = [[torch.cat(copies, -1) for copies in components] for components in found]
        return tuple([part[0] if len(part) == 1 else torch.stack(part, -2) for part in parts])

    def _fold_windows(self, component: Tensor) -> list[list[Tensor]]:
        """`(B, H, W, m)` to `(B, H/f, W/f, places * m)` for each irrep of the places and each of its components."""
        windows = component.unflatten(2, (-1, self.factor)).unflatten(1, (-1, self.factor)).permute(0, 1, 3, 2, 4, 5)
        return [[values.flatten(-2) for values in irrep] for irrep in self.fold(windows)]

    @torch.no_grad()
    def to_dense(self) -> nn.Conv2d:
        """The ordinary convolution on packed channels `(B, dim, H, W)` that does the same, at full cost."""
        dense = self.proj.to_dense()
        f, layout = self.factor, self.in_layout
        conv = nn.Conv2d(layout.dim, self.out_layout.dim, f, f, bias=dense.bias is not None).to(dense.weight)
        ones = torch.eye(f * f * layout.dim).to(dense.weight).unflatten(1, (f, f, layout.dim))
        folded = self.proj.in_layout.merge(self._fold(layout.split(ones)))[:, 0, 0]  # (place, channel), folded channel
        taps = (dense.weight @ folded.T).unflatten(1, (f, f, layout.dim))
        conv.weight.copy_(taps.permute(0, 3, 1, 2))
        if conv.bias is not None:
            conv.bias.copy_(dense.bias)
        return conv
