"""Convolution with any kernel, at half of the multiply-adds for flop and a quarter for flipflop."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional.conv import ConvPlan, dense_filters, folded_conv2d, read_patches
from flopping.functional.grid import Grid
from flopping.functional.window import Window
from flopping.nn.module import Module


class Conv2d(Module):
    """All equivariant convolutions between two layouts, on maps `(B, H, W, ...)`; a bias on the trivial irrep only.

    Arguments are those of `nn.Conv2d`. A number in place of the first layout is a number of image channels: the layer
    then takes images `(B, C, H, W)`. Groups of channels are equal slices of every part.

    Only free taps are parameters: `weight.even`, for a kernel of 3 and flop, is `(even copies, 3 C / 2, 3, 1)`.

    With a stride the windows must lie symmetrically: an odd kernel needs an odd size, an even kernel an even one.

    >>> from flopping import flop
    >>> small, large = Layout.regular(flop, 8), Layout.regular(flop, 16)
    >>> layer = Conv2d(small, large, 3, stride=2, padding=1)
    >>> [tuple(part.shape) for part in layer(small.random(2, 7, 9))]
    [(2, 4, 5, 8), (2, 4, 5, 8)]
    >>> [tuple(part.shape) for part in Conv2d(3, small, 4, stride=2, padding=1)(torch.randn(2, 3, 6, 8))]
    [(2, 3, 4, 4), (2, 3, 4, 4)]
    """

    out_layout: Layout

    def __init__(
        self,
        in_layout: Layout | int,
        out_layout: Layout,
        kernel_size: int | Grid,
        stride: int | Grid = 1,
        padding: int | Grid = 0,
        dilation: int | Grid = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        self.in_chans = in_layout if isinstance(in_layout, int) else None
        super().__init__(None if isinstance(in_layout, int) else in_layout, out_layout)
        group = out_layout.group
        source = Layout.invariant(group, in_layout) if isinstance(in_layout, int) else in_layout
        window = Window.of(kernel_size, stride, padding, dilation)
        window.require_square(group, "Conv2d")
        counts = (*source.multiplicities, *out_layout.multiplicities)
        if groups < 1 or any(m % groups for m in counts):
            raise ValueError(f"groups divide the copies of every irrep, got groups={groups}, {source} -> {out_layout}")
        self.leading = 3 if self.in_chans is None else None
        self.plan = ConvPlan(source, out_layout, window, groups)
        self.names = tuple(irrep.name for irrep in group.irreps)
        self.weight = nn.ParameterDict()
        for name, shape in zip(self.names, self.plan.weight_shapes, strict=True):
            if shape[0] and shape[1]:
                self.weight[name] = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if not self.weight:
            raise ValueError(f"no filter of {window.kernel} taps maps {source} to {out_layout}")
        if bias and self.names[0] not in self.weight:
            raise ValueError(f"a bias needs {self.names[0]} channels with inputs, got {source} -> {out_layout}")
        width = out_layout.multiplicities[0]
        self.bias = nn.Parameter(torch.empty(width, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Taps start as those of `nn.Conv2d`, with a fan-in of all taps that are not zero by symmetry."""
        for irrep, name in enumerate(self.names):
            if name in self.weight:
                bound = 1 / sqrt(self.plan.fan_in(irrep))
                nn.init.uniform_(self.weight[name], -bound, bound)
                if irrep == 0 and self.bias is not None:
                    nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        window = self.plan.window
        source = self.in_layout or f"image with {self.in_chans} channels"
        text = f"{source} -> {self.out_layout}, kernel_size={window.kernel}, stride={window.stride}"
        text += f", padding={window.padding}"
        text += "" if window.dilation == (1, 1) else f", dilation={window.dilation}"
        return text + ("" if self.plan.groups == 1 else f", groups={self.plan.groups}")

    def forward(self, x: Any) -> Feature:
        parts = self._parts(x)
        weight = [self.weight.get(name) for name in self.names]
        return folded_conv2d(parts, weight, self.bias, self.plan)

    @torch.no_grad()
    def whiten_(self, x: Any, eps: float = 5e-4) -> Conv2d:
        """Set the filters to whiten what the layer reads of x.

        The first filters of each irrep become the principal directions of the patches that it reads, those with most
        variance first, scaled to outputs of variance one, and the next ones the same directions negated. Any others
        stay as they are. Means are subtracted for the trivial irrep only: those of the others are zero over x and its
        images under the group.
        `eps`, a share of the mean variance, is added to every variance, so that noise is not enlarged without limit.

        >>> from flopping import flop
        >>> layout, image = Layout.regular(flop, 8), torch.randn(16, 1, 8, 8).cumsum(2).cumsum(3)
        >>> even, odd = Conv2d(1, layout, 2, stride=2, bias=False).whiten_(image)(image)
        >>> bool((even[..., :2].flatten(0, 2).T.cov() - torch.eye(2)).abs().max() < 0.1), tuple(odd.shape)
        (True, (16, 4, 4, 4))
        """
        degrees = [irrep.type.degree for irrep in self.out_layout.group.irreps]
        if self.plan.groups > 1 or max(degrees) > 1:
            raise ValueError(
                f"whitening takes one group of channels and irreps of real type, got groups={self.plan.groups},"
                f" {self.out_layout}"
            )
        if eps < 0:
            raise ValueError(f"eps is at least 0, got {eps}")
        parts = [part.double() for part in self._parts(x)]
        for irrep, name in enumerate(self.names):
            if name not in self.weight:
                continue
            weight = self.weight[name]
            count, total = 0, parts[0].new_zeros(weight[0].numel())
            products = total.outer(total)
            for piece in zip(*[part.split(16) for part in parts], strict=True):  # all patches at once may not fit
                patches = read_patches(piece, irrep, self.plan)
                count, total, products = count + len(patches), total + patches.sum(0), products + patches.T @ patches
            mean = total / count if irrep == 0 else torch.zeros_like(total)
            variances, directions = torch.linalg.eigh(products / count - mean.outer(mean))
            if not variances.mean() > 1e-12 * products.diagonal().mean() / count:
                raise ValueError(f"whitening takes images that vary, got patches of variance 0 for {name}")
            scaled = (directions / (variances.clamp_min(0) + eps * variances.mean()).sqrt()).T.flip(0)
            filters = torch.cat([scaled, -scaled])[: len(weight)].to(weight.dtype)
            weight[: len(filters)] = filters.view(-1, *weight.shape[1:])
        return self

    def _parts(self, x: Any) -> Feature:
        """The parts of the input, of a size that windows fit."""
        parts = self._parts_of_image(x) if self.in_layout is None else self.in_layout.parts(x, "Conv2d", self.leading)
        if not is_symbolic(parts):
            self.plan.window.check(self.out_layout.group, (parts[0].shape[1], parts[0].shape[2]), "Conv2d")
        return parts

    def _parts_of_image(self, image: Any) -> Feature:
        """An image as a map of invariant channels."""
        if not is_symbolic(image) and (image.dim() != 4 or image.shape[1] != self.in_chans):
            raise ValueError(f"Conv2d takes images (B, {self.in_chans}, H, W), got shape {tuple(image.shape)}")
        even: Tensor = image.permute(0, 2, 3, 1)
        return even, *[even.narrow(-1, 0, 0) for _ in self.names[1:]]

    @torch.no_grad()
    def to_dense(self) -> nn.Conv2d:
        """The ordinary convolution on packed channels `(B, dim, H, W)` that does the same, at full cost."""
        plan, window = self.plan, self.plan.window
        source, out = plan.in_layout, self.out_layout
        like = next(iter(self.weight.values()))
        dense = nn.Conv2d(
            source.dim,
            out.dim,
            window.kernel,
            window.stride,
            window.padding,
            window.dilation,
            bias=self.bias is not None,
        ).to(like)
        dense.weight.zero_()
        columns, rows = (of.split(torch.arange(of.dim)) for of in (source, out))
        for j, name in enumerate(self.names):
            filters = dense_filters(self.weight[name], j, plan) if name in self.weight else []
            for row, block in zip(rows[j].view(out.irrep_dims[j], out.multiplicities[j]), filters, strict=False):
                for g, taps in enumerate(block.chunk(plan.groups)):  # a group of channels is a slice of every part
                    read = torch.cat([part.chunk(plan.groups, -1)[g].flatten() for part in columns])
                    dense.weight[row.chunk(plan.groups)[g][:, None], read] = taps
        if self.bias is not None and dense.bias is not None:
            dense.bias.copy_(F.pad(self.bias, (0, out.dim - len(self.bias))))
        return dense
