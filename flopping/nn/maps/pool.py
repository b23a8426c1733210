"""Pooling, upsampling, and gates from pooled features, on maps `(B, H, W, ...)`."""

from __future__ import annotations

from typing import Literal

import torch
from timm.layers import make_divisible
from torch import nn

from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional import Pointwise
from flopping.functional.grid import Grid, as_pair, check_square
from flopping.functional.pool import avg_pool2d, global_avg_pool, global_max_pool, max_pool2d, upsample
from flopping.functional.window import Window
from flopping.nn.module import Module


class _MapLayer(Module):
    """A layer from maps to maps of the same layout."""

    in_layout: Layout
    leading = 3

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, layout)
        layout.group.require_grid(type(self).__name__)

    def _maps(self, x: Feature, window: Window | None = None) -> Feature:
        """The parts of the input; what the window does not fit is refused."""
        name = type(self).__name__
        x = self.in_layout.parts(x, name, self.leading)
        if window is not None and not is_symbolic(x):
            window.check(self.in_layout.group, (x[0].shape[1], x[0].shape[2]), name)
        return x


class _Pool(_MapLayer):
    """A window that moves over a map; without a stride windows stand side by side."""

    def __init__(self, layout: Layout, kernel_size: int | Grid, stride: int | Grid | None, padding: int | Grid) -> None:
        super().__init__(layout)
        self.window = Window.of(kernel_size, kernel_size if stride is None else stride, padding)
        self.window.require_square(layout.group, type(self).__name__)
        if any(2 * p > k for p, k in zip(self.window.padding, self.window.kernel, strict=True)):
            raise ValueError(f"padding is at most half of the window, got {self.window}")

    def extra_repr(self) -> str:
        window = self.window
        return f"{self.in_layout}, kernel_size={window.kernel}, stride={window.stride}, padding={window.padding}"


class MaxPool2d(_Pool):
    """The largest value of every window, taken in the regular basis, where the group only permutes.

    With `function` it is an activation and a pooling in one, and the basis changes once for both. Needs a layout of
    regular copies plus extras. A stride needs windows that lie symmetrically, as in `Conv2d`.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 6, extra=2)
    >>> [tuple(part.shape) for part in MaxPool2d(layout, 3, 2, 1, torch.relu)(layout.random(2, 7, 9))]
    [(2, 4, 5, 4), (2, 4, 5, 2)]
    """

    def __init__(
        self,
        layout: Layout,
        kernel_size: int | Grid,
        stride: int | Grid | None = None,
        padding: int | Grid = 0,
        function: Pointwise | None = None,
    ) -> None:
        super().__init__(layout, kernel_size, stride, padding)
        layout.require_regular("MaxPool2d")
        self.function = function

    def forward(self, x: Feature) -> Feature:
        return max_pool2d(self._maps(x, self.window), self.in_layout, self.window, self.function)


class AvgPool2d(_Pool):
    """The mean of every window; `count_include_pad=False` leaves padding out of it.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 4)
    >>> [tuple(part.shape) for part in AvgPool2d(layout, 2)(layout.random(2, 6, 8))]
    [(2, 3, 4, 2), (2, 3, 4, 2)]
    """

    def __init__(
        self,
        layout: Layout,
        kernel_size: int | Grid,
        stride: int | Grid | None = None,
        padding: int | Grid = 0,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(layout, kernel_size, stride, padding)
        self.count_include_pad = count_include_pad

    def forward(self, x: Feature) -> Feature:
        return avg_pool2d(self._maps(x, self.window), self.in_layout, self.window, self.count_include_pad)


class GlobalPool(_MapLayer):
    """All places of a map to one row `(B, ...)`: their mean ("avg"), or their maximum in the regular basis ("max").

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 4)
    >>> [tuple(part.shape) for part in GlobalPool(layout)(layout.random(2, 5, 7))]
    [(2, 2), (2, 2)]
    """

    def __init__(self, layout: Layout, kind: Literal["avg", "max"] = "avg") -> None:
        super().__init__(layout)
        if kind not in ("avg", "max"):
            raise ValueError(f"kind is 'avg' or 'max', got {kind!r}")
        if kind == "max":
            layout.require_regular("GlobalPool with kind='max'")
        self.kind = kind

    def extra_repr(self) -> str:
        return f"{self.in_layout}, kind={self.kind!r}"

    def forward(self, x: Feature) -> Feature:
        x = self._maps(x)
        return global_avg_pool(x) if self.kind == "avg" else global_max_pool(x, self.in_layout)


class Upsample(_MapLayer):
    """Larger maps, by a whole factor or to a size: places repeated ("nearest") or interpolated ("bilinear").

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 4)
    >>> [tuple(part.shape) for part in Upsample(layout, 2)(layout.random(2, 3, 4))]
    [(2, 6, 8, 2), (2, 6, 8, 2)]
    >>> [tuple(part.shape) for part in Upsample(layout, size=57, mode="bilinear")(layout.random(2, 29, 29))]
    [(2, 57, 57, 2), (2, 57, 57, 2)]
    """

    def __init__(
        self,
        layout: Layout,
        scale_factor: int | None = None,
        size: int | Grid | None = None,
        mode: Literal["nearest", "bilinear"] = "nearest",
    ) -> None:
        super().__init__(layout)
        if (scale_factor is None) == (size is None):
            raise ValueError(f"Upsample takes a scale_factor or a size, got {scale_factor} and {size}")
        if scale_factor is not None and (not isinstance(scale_factor, int) or scale_factor < 1):
            raise ValueError(f"scale_factor is a whole number, at least 1, got {scale_factor!r}")
        if mode not in ("nearest", "bilinear"):
            raise ValueError(f"mode is 'nearest' or 'bilinear', got {mode!r}")
        self.scale_factor, self.mode = scale_factor, mode
        self.size = None if size is None else as_pair(size, "size")
        if self.size is not None:
            check_square(layout.group, self.size, "Upsample")

    def extra_repr(self) -> str:
        return f"{self.in_layout}, scale_factor={self.scale_factor}, size={self.size}, mode={self.mode!r}"

    def forward(self, x: Feature) -> Feature:
        x = self._maps(x)
        height, width = x[0].shape[1], x[0].shape[2]
        if self.scale_factor is not None:
            size = (height * self.scale_factor, width * self.scale_factor)
        elif self.size is not None:
            size = self.size
            # else some places would be repeated more often than their mirror images
            if self.mode == "nearest" and not is_symbolic(x) and (size[0] % height or size[1] % width):
                raise ValueError(
                    f"Upsample: {size} is no multiple of {(height, width)}; take such a size, or mode='bilinear'"
                )
        return upsample(x, self.in_layout, size, self.mode)


class SqueezeExcite(_MapLayer):
    """Every copy times a gate between 0 and 1, which two linear layers compute from invariants of the whole map.

    The invariants are means of the trivial irrep and root mean squares of the others. With the trivial group it is
    timm's `SqueezeExcite`; `rd_ratio`, `rd_divisor` and `rd_channels` (the width in between) mean the same.

    >>> from flopping import flop
    >>> layer = SqueezeExcite(Layout.regular(flop, 64))
    >>> {name: tuple(p.shape) for name, p in layer.named_parameters() if name.endswith("weight")}
    {'fc1.weight': (8, 64), 'fc2.weight': (64, 8)}
    """

    def __init__(
        self,
        layout: Layout,
        rd_ratio: float = 1 / 16,
        rd_channels: int | None = None,
        rd_divisor: int = 8,
        function: Pointwise = torch.relu,
        *,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(layout)
        copies = sum(layout.multiplicities)
        hidden = rd_channels or make_divisible(copies * rd_ratio, rd_divisor, round_limit=0.0)
        self.fc1 = nn.Linear(copies, hidden, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, copies, device=device, dtype=dtype)
        self.function = function

    def extra_repr(self) -> str:
        return str(self.in_layout)

    def forward(self, x: Feature) -> Feature:
        x = self._maps(x)
        layout = self.in_layout
        invariants = [x[0].mean((1, 2))]
        for part, d in list(zip(x, layout.irrep_dims, strict=True))[1:]:
            square = part.square() if d == 1 else part.square().mean(-2)
            invariants.append((square.mean((1, 2)) + 1e-6).sqrt())
        gates = self.fc2(self.function(self.fc1(torch.cat(invariants, -1)))).sigmoid()[:, None, None]
        found, start = [], 0
        for part, d, m in zip(x, layout.irrep_dims, layout.multiplicities, strict=True):
            gate = gates.narrow(-1, start, m)
            found.append(part * (gate if d == 1 else gate.unsqueeze(-2)))
            start += m
        return tuple(found)
