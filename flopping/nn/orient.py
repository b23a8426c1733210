"""Layers that use the position of a token relative to the mirror axis: biases and sums that depend on its side.

The side of a token is +1 on the left of the axis, -1 on the right, and 0 on it. A mirror negates both an odd channel
and the side, so their product is even. For a group of several mirrors, every irrep has its own pattern of signs. The
side of an irrep of dimension d is a d x d matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from math import prod
from operator import add

import torch
from torch import Tensor, nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, Read, is_given
from flopping.functional.grid import Grid, as_pair, check_square, check_tokens, sides_of
from flopping.nn.module import Module


class _Oriented(Module):
    """A layer on tokens that needs the side of every place, for each irrep."""

    in_layout: Layout
    leading = 2
    sides: Tensor
    """`(rows, N, 1)`: the entries of `sides_of`, irrep by irrep."""

    def __init__(self, layout: Layout, out_layout: Layout, grid_size: int | Grid, device: Device, dtype: Dtype) -> None:
        super().__init__(layout, out_layout)
        self.grid_size = as_pair(grid_size, "grid_size")
        check_square(layout.group, self.grid_size, type(self).__name__)
        *self.rows, total = accumulate([d * d for d in layout.irrep_dims], initial=0)
        shape = (total, prod(self.grid_size), 1)
        self.register_buffer("sides", torch.empty(shape, device=device, dtype=dtype), persistent=False)
        self.init_non_persistent_buffers()

    @torch.no_grad()
    def init_non_persistent_buffers(self) -> None:
        """Fill in the constants; again after `to_empty`, for a network built on the meta device."""
        entries = [side.flatten(0, 1) for side in sides_of(self.in_layout.group, self.grid_size)]
        self.sides.copy_(torch.cat(entries)[..., None])

    def extra_repr(self) -> str:
        return f"{self.in_layout}, grid_size={self.grid_size}"

    def _side(self, irrep: int, a: int = 0, b: int = 0) -> Tensor:
        """One entry of an irrep's matrices, `(N, 1)`."""
        return self.sides[self.rows[irrep] + a * self.in_layout.irrep_dims[irrep] + b]

    def _tokens(self, x: Feature) -> Feature:
        name = type(self).__name__
        x = self.in_layout.parts(x, name, self.leading)
        check_tokens(x, self.grid_size, name)
        return x


class OrientedBias(_Oriented):
    """A learned shift of every irrep but the trivial one, times the side of the token.

    For flop: odd + b on the left of the middle line, odd - b on the right, odd on the line itself. An irrep of
    dimension d is shifted by its side times a vector for each copy. Called with `read`, it shifts a feature that was
    read, by what is read of the shifts.

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
        sides = sides_of(layout.group, self.grid_size)
        for name, m, shape, side in list(
            zip(self.names, layout.multiplicities, layout.part_shapes, sides, strict=True)
        )[1:]:
            if m and side.any():
                self.bias[name] = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for bias in self.bias.values():
            nn.init.zeros_(bias)

    def _shift(self, irrep: int) -> Tensor | None:
        """The shifts of all places, `(N, [d,] m)`; None where there are none."""
        if self.names[irrep] not in self.bias:
            return None
        bias, d = self.bias[self.names[irrep]], self.in_layout.irrep_dims[irrep]
        if d == 1:
            shift: Tensor = self._side(irrep) * bias
            return shift
        rows = [reduce(add, [self._side(irrep, a, b) * bias[b] for b in range(d)]) for a in range(d)]
        return torch.stack(rows, -2)

    def forward(self, x: Feature, read: Read | None = None) -> Feature:
        x = self._tokens(x) if not is_given(read) else x
        table = [self._shift(i) for i in range(len(self.names))]
        if is_given(read):
            places = self.sides.shape[1]
            none = [part.new_zeros(1, places, *s) for part, s in zip(x, self.in_layout.part_shapes, strict=True)]
            table = list(read(tuple([a if b is None else b[None] for a, b in zip(none, table, strict=True)])))
        return tuple([part if shift is None else part + shift for part, shift in zip(x, table, strict=True)])


class Orient(_Oriented):
    """Multiply all parts of a token by their sides and add them. The result is invariant.

    For flop: (even + odd)/sqrt 2 on the left, (even - odd)/sqrt 2 on the right. In general it is the value of the
    regular basis for the element that leads to the token, or the mean of those for all such elements. Extra invariant
    channels stay. So a head, which takes even channels only, can also use the information in odd channels.

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
        return self.sum((x[0], *[self._turn_back(i + 1, part, torch.mul) for i, part in enumerate(x[1:])]))

    def mean(self, x: Feature) -> Feature:
        """The mean of all tokens, each seen from its own side: parts `(B, 1, [d,] m)` that the group leaves alone.

        `sum` of it is the mean of what `forward` gives. It is a linear map that `Linear` commutes with, as `Read` says.
        """
        places = self.sides.shape[1]
        return tuple([self._turn_back(i, part, _product) / places for i, part in enumerate(x)])

    def sum(self, oriented: Feature) -> Feature:
        """The sum of parts that were multiplied with their sides."""
        copies, extra = self.in_layout.copies, self.in_layout.extra
        even, *none = functional.invariant_only(oriented)
        if not copies or self.in_layout.group.order == 1:
            return even, *none
        total = even.narrow(-1, 0, copies)
        for irrep, part in zip(self.in_layout.group.irreps[1:], oriented[1:], strict=True):
            for c in range(irrep.regular_multiplicity):
                total = total + (part if irrep.dim == 1 else part.select(-2, c).narrow(-1, c * copies, copies))
        seen = total * self.in_layout.group.order**-0.5
        return torch.cat([seen, even.narrow(-1, copies, extra)], -1) if extra else seen, *none

    def _turn_back(self, irrep: int, part: Tensor, times: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """The transposed sides times a part; `times` multiplies one entry of them with one component."""
        d = self.in_layout.irrep_dims[irrep]
        if d == 1:
            return times(self._side(irrep), part)
        components = [part.select(-2, a) for a in range(d)]
        rows = [reduce(add, [times(self._side(irrep, a, b), components[a]) for a in range(d)]) for b in range(d)]
        return torch.stack(rows, -2)


def _product(side: Tensor, component: Tensor) -> Tensor:
    """The sum over all places, `(B, 1, m)`."""
    return side.T @ component
