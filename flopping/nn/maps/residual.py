"""Residual blocks of convolutional networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout
from flopping.functional import Pointwise
from flopping.nn.activation import Activation
from flopping.nn.drop import DropPath
from flopping.nn.maps.batch_norm import BatchNorm
from flopping.nn.maps.conv import Conv2d
from flopping.nn.maps.pool import AvgPool2d, MaxPool2d
from flopping.nn.module import Module


def make_conv(before: Layout | int, after: Layout, kernel: int, stride: int, device: Device, dtype: Dtype) -> Conv2d:
    """A convolution without a bias, which a batch norm follows."""
    return Conv2d(before, after, kernel, stride, (kernel - 1) // 2, bias=False, device=device, dtype=dtype)


class _Block(Module):
    """Convolutions with a batch norm and an activation after each; the last norm comes before the sum."""

    in_layout: Layout
    leading = 3

    def __init__(
        self,
        in_layout: Layout,
        out: Layout,
        convs: Sequence[tuple[Layout, Layout, int, int]],
        *,
        drop_path: float = 0.0,
        eps: float = 1e-5,
        function: Pointwise = F.relu,
        invariant_only: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        """`convs` are layouts before and after, kernel and stride of each convolution."""
        super().__init__(in_layout, out.invariant_part if invariant_only else out)
        self.count, self.branch_layout, self.invariant_only = len(convs), out, invariant_only
        for i, (before, after, kernel, stride) in enumerate(convs, 1):
            self.add_module(f"conv{i}", make_conv(before, after, kernel, stride, device, dtype))
            self.add_module(f"bn{i}", BatchNorm(after, eps, device=device, dtype=dtype))
            self.add_module(f"act{i}", Activation(after, function))
        self.drop_path = DropPath(out, drop_path)

    @property
    def last_norm(self) -> BatchNorm:
        """The last norm of the branch."""
        norm: BatchNorm = getattr(self, f"bn{self.count}")
        return norm

    def _add_branch(self, x: Feature, shortcut: Feature, first: int = 1) -> Feature:
        """act(shortcut + branch(x)); the branch begins with the convolution of this number."""
        for i in range(first, self.count + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x))
            if i < self.count:
                x = getattr(self, f"act{i}")(x)
        total = functional.residual(shortcut, self.drop_path(x), self.branch_layout)
        out: Feature = getattr(self, f"act{self.count}")(total)
        return functional.invariant_only(out) if self.invariant_only else out


class ResidualBlock(_Block):
    """act(x + branch(x)) on maps; the branch is 3 x 3, 3 x 3, or, as a bottleneck, 1 x 1, 3 x 3, 1 x 1.

    A batch norm follows every convolution, and activations stand between them. The convolution with a stride has a
    kernel of `stride_kernel`: 3 for odd sizes, 2 or 4 for even ones. Where stride or width change, the shortcut is a
    1 x 1 convolution. With a stride and `shortcut_pool`, a mean over `shortcut_pool` x `shortcut_pool` places comes
    before it and has the stride. With `invariant_only`, for a block before an invariant hand-off, the result has the
    trivial irrep only.

    >>> layout = Layout.regular("flop", 8)
    >>> block = ResidualBlock(layout, layout, layout * 2, stride=2, bottleneck=True)
    >>> [tuple(part.shape) for part in block(layout.random(2, 5, 7))]
    [(2, 3, 4, 8), (2, 3, 4, 8)]
    """

    def __init__(
        self,
        in_layout: Layout,
        width: Layout,
        out: Layout,
        *,
        stride: int = 1,
        stride_kernel: int = 3,
        bottleneck: bool = False,
        shortcut_pool: int | None = None,
        eps: float = 1e-5,
        device: Device = None,
        dtype: Dtype = None,
        **options: Any,
    ) -> None:
        """`options` are `drop_path`, `function` and `invariant_only`."""
        kernel = stride_kernel if stride > 1 else 3
        convs = [(in_layout, width, kernel, stride), (width, out, 3, 1)]
        if bottleneck:
            convs = [(in_layout, width, 1, 1), (width, width, kernel, stride), (width, out, 1, 1)]
        super().__init__(in_layout, out, convs, eps=eps, device=device, dtype=dtype, **options)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or in_layout != out:
            pool: list[nn.Module] = []
            if shortcut_pool is not None and stride > 1:
                pool = [AvgPool2d(in_layout, shortcut_pool, stride, (shortcut_pool - 1) // 2, count_include_pad=False)]
            elif shortcut_pool is not None:
                pool = [nn.Identity()]  # layers have timm's numbers in state dicts
            conv = make_conv(in_layout, out, 1, 1 if pool else stride, device, dtype)
            self.downsample = nn.Sequential(*pool, conv, BatchNorm(out, eps, device=device, dtype=dtype))

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "ResidualBlock", self.leading)
        return self._add_branch(x, self.downsample(x))


class PooledBlock(_Block):
    """y = act(norm(pool(conv(x)))), then act(y + norm(conv(y))): a maximum takes the place of a stride. For even sizes.

    Convolutions are 3 x 3, and the maximum is that of every 2 x 2 places. `options` are those of `ResidualBlock`,
    `eps`, `device` and `dtype`.

    >>> layout = Layout.regular("flop", 8)
    >>> [tuple(part.shape) for part in PooledBlock(layout, layout * 2)(layout.random(2, 4, 6))]
    [(2, 2, 3, 8), (2, 2, 3, 8)]
    """

    conv1: Conv2d
    bn1: BatchNorm
    act1: Activation

    def __init__(self, in_layout: Layout, out: Layout, **options: Any) -> None:
        super().__init__(in_layout, out, [(in_layout, out, 3, 1), (out, out, 3, 1)], **options)
        self.pool = MaxPool2d(out, 2)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "PooledBlock", self.leading)
        x = self.act1(self.bn1(self.pool(self.conv1(x))))
        return self._add_branch(x, x, first=2)
