"""Layers that know where the mirror line of an image is: shifts and sums oriented by the side a token lies on.

On the left of the middle line an odd channel means one thing, on the right its opposite. Times the side (+1 or -1)
it is as good as an even channel. For a group of several mirrors, every irrep has its own pattern of signs.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.functional.grid import Grid, as_pair, check_tokens, sides_of
from flopping.nn.module import Module


class _Oriented(Module):
    """A layer on tokens that needs the sign of every place, for each irrep."""

    in_layout: Layout
    leading = 2
    sides: Tensor

    def __init__(self, layout: Layout, out_layout: Layout, grid_size: int | Grid, device: Device, dtype: Dtype) -> None:
        super().__init__(layout, out_layout)
        layout.group.require_signs(type(self).__name__)
        self.grid_size = as_pair(grid_size, "grid_size")
        shape = (len(layout.multiplicities), prod(self.grid_size), 1)
        self.register_buffer("sides", torch.empty(shape, device=device, dtype=dtype), persistent=False)
        self.init_non_persistent_buffers()

    @torch.no_grad()
    def init_non_persistent_buffers(self) -> None:
        """Fill in the constants; again after `to_empty`, for a network built on the meta device."""
        self.sides.copy_(sides_of(self.in_layout.group, self.grid_size)[..., None])

    def extra_repr(self) -> str:
        return f"{self.in_layout}, grid_size={self.grid_size}"

    def _tokens(self, x: Feature) -> Feature:
        name = type(self).__name__
        x = self.in_layout.parts(x, name, self.leading)
        check_tokens(x, self.grid_size, name)
        return x


class OrientedBias(_Oriented):
    """A learned shift of every irrep but the trivial one, times the side of the token.

    For flop: odd + b on the left of the middle line, odd - b on the right, odd on the line itself. Called with `read`,
    it shifts a feature that was read, by what is read of the shifts.

    >>> from flopping import flop
    >>> layer = OrientedBias(Layout(flop, (1, 1)), grid_size=(1, 3))
    >>> _ = nn.init.constant_(layer.bias["odd"], 7.0)
    >>> layer((torch.zeros(1, 3, 1), torch.zeros(1, 3, 1)))[1].flatten().tolist()
    [7.0, 0.0, -7.0]
    """

    def __init__(self, layout: Layout, grid_size: int | Grid, *, device: Device = None, dtype: Dtype = None) -> None:
        super().__init__(layout, layout, grid_size, device, dtype)
        self.names = tuple(irrep.name for irrep in layout.group.irreps)
        self.bias = nn.ParameterDict()
        somewhere = sides_of(layout.group, self.grid_size).abs().amax(1).tolist()
        for name, m, live in list(zip(self.names, layout.multiplicities, somewhere, strict=True))[1:]:
            if m and live:
                self.bias[name] = nn.Parameter(torch.empty(m, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for bias in self.bias.values():
            nn.init.zeros_(bias)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        x = self._tokens(x) if not is_given(read) else x
        table = [self.sides[i] * self.bias[name] if name in self.bias else None for i, name in enumerate(self.names)]
        if is_given(read):
            none = [part.new_zeros(1, len(side), part.shape[-1]) for part, side in zip(x, self.sides, strict=True)]
            table = list(read(tuple([a if b is None else b[None] for a, b in zip(none, table, strict=True)])))
        return tuple([part if shift is None else part + shift for part, shift in zip(x, table, strict=True)])


class Orient(_Oriented):
    """Every token seen from its own side: all parts times their signs, summed. The result is invariant.

    For flop: (even + odd)/sqrt 2 on the left, (even - odd)/sqrt 2 on the right. Extra invariant channels stay. So
    the head of a network may read odd channels too, although the head itself only takes even ones.

    >>> from flopping import flop
    >>> layer = Orient(Layout(flop, (3, 1)), grid_size=(1, 2))
    >>> layer.out_layout
    Layout(flop, even=3, odd=0)
    """

    def __init__(self, layout: Layout, grid_size: int | Grid, *, device: Device = None, dtype: Dtype = None) -> None:
        layout.require_regular("Orient")
        super().__init__(layout, layout.invariant_part, grid_size, device, dtype)

    def forward(self, x: Feature) -> Feature:
        x = self._tokens(x)
        return self.sum((x[0], *[side * part for side, part in zip(self.sides[1:], x[1:], strict=True)]))

    def mean(self, x: Feature) -> Feature:
        """The mean of all tokens, each seen from its own side: parts `(B, 1, m)` that the group leaves alone.

        `sum` of it is the mean of what `forward` gives. It is a linear map over places, as `Read` says.
        """
        return tuple([(side.T @ part) / len(side) for side, part in zip(self.sides, x, strict=True)])

    def sum(self, oriented: Feature) -> Feature:
        """The sum of parts that were multiplied with their signs."""
        copies, extra = self.in_layout.copies, self.in_layout.extra
        even, *none = functional.invariant_only(oriented)
        if not copies or self.in_layout.group.order == 1:
            return even, *none
        total = even.narrow(-1, 0, copies)
        for part in oriented[1:]:
            total = total + part
        seen = total * self.in_layout.group.order**-0.5
        return torch.cat([seen, even.narrow(-1, copies, extra)], -1) if extra else seen, *none
