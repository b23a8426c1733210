"""Features: a tuple of plain tensors, one per irrep, and the layout that says how many copies of each.

A 1-dimensional irrep with multiplicity m is a tensor `(..., m)`, a d-dimensional one `(..., d, m)`. For flop
a feature is `(even, odd)`. A layout holds no data; the leading axes `...` are free: `(B, N)` tokens,
`(B, H, W)` maps, or rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite, prod
from operator import index
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor
from torch.fx import Proxy

from flopping.groups import Group, get_group
from flopping.groups.representations import Cost, cost

Feature = tuple[Tensor, ...]
Read = Callable[[Feature], Feature]
"""What the head of a network reads of the last feature: a linear map that `nn.Linear` commutes with.

For example the mean over places, or one of them.
"""
Device = torch.device | str | None
Value = TypeVar("Value")
Dtype = torch.dtype | None


def is_symbolic(value: object) -> bool:
    """Whether `torch.fx` traces the value, so that its shape can't be looked at."""
    if torch.compiler.is_compiling():
        return False  # the compiler would follow every step of what comes now
    return isinstance(value, Proxy) or (isinstance(value, tuple) and any(isinstance(part, Proxy) for part in value))


def is_exporting() -> bool:
    """Whether `torch.export` or `torch.jit` records the operators of what runs; in torch 2.6 also any compiler."""
    exports: bool = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)()
    return exports or bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def is_given(value: Value | None) -> TypeGuard[Value]:
    """Whether an argument was given: `torch.fx` hands its own values to arguments that have a default."""
    return value is not None and not is_symbolic(value)


@dataclass(frozen=True)
class Layout:
    """How many copies of each irrep of a group a feature has.

    >>> from flopping import flop, octic
    >>> Layout.regular(flop, 384)
    Layout(flop, even=192, odd=192)
    >>> Layout.regular(flop, 384, extra=128)
    Layout(flop, even=256, odd=128)
    >>> Layout.regular(octic, 384)
    Layout(octic, A1=48, A2=48, B1=48, B2=48, E=2x96)
    """

    group: Group
    multiplicities: tuple[int, ...]
    irrep_dims: tuple[int, ...] = field(init=False, compare=False)
    """Components of each irrep."""
    part_dims: tuple[int, ...] = field(init=False, compare=False)
    """Channels of each part, components times copies."""
    part_shapes: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    """The last axes of each part: `(m,)` or `(d, m)`."""
    regular_shares: tuple[int, int] | None = field(init=False, compare=False)
    """Copies of the regular representation and extra invariant channels; None where that is not all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", get_group(self.group))
        names = [irrep.name for irrep in self.group.irreps]
        if not isinstance(self.multiplicities, tuple) or len(self.multiplicities) != len(names):
            raise ValueError(
                f"{self.group} has {len(names)} irreps ({', '.join(names)}), got multiplicities {self.multiplicities}"
            )
        try:
            counts = tuple(index(m) for m in self.multiplicities)
        except TypeError:
            counts = (-1,)
        if min(counts) < 0 or not any(counts):
            raise ValueError(f"multiplicities are whole numbers, not all zero, got {self.multiplicities}")
        # derived once, here: compiled code can't run the locks of a cached property, and every call counts
        dims = tuple(irrep.dim for irrep in self.group.irreps)
        pairs = list(zip(dims, counts, strict=True))
        object.__setattr__(self, "multiplicities", counts)
        object.__setattr__(self, "irrep_dims", dims)
        object.__setattr__(self, "part_dims", tuple(d * m for d, m in pairs))
        object.__setattr__(self, "part_shapes", tuple((m,) if d == 1 else (d, m) for d, m in pairs))
        object.__setattr__(self, "regular_shares", self._regular_shares())

    @classmethod
    def regular(cls, group: str | Group, dim: int, *, extra: int = 0) -> Layout:
        """`dim` channels: copies of the regular representation, of which `extra` more are invariant."""
        group = get_group(group)
        try:
            dim, extra = index(dim), index(extra)
        except TypeError:
            raise TypeError(f"numbers of channels are whole numbers, got dim={dim!r}, extra={extra!r}") from None
        if dim < 1 or not 0 <= extra <= dim:
            raise ValueError(f"a layout needs dim >= 1 and 0 <= extra <= dim, got dim={dim}, extra={extra}")
        copies, rest = divmod(dim - extra, group.order)
        if rest:
            raise ValueError(
                f"a regular layout for {group} needs dim - extra divisible by {group.order},"
                f" got dim={dim}, extra={extra}"
            )
        multiplicities = [copies * irrep.regular_multiplicity for irrep in group.irreps]
        return cls(group, (multiplicities[0] + extra, *multiplicities[1:]))

    @classmethod
    def invariant(cls, group: str | Group, dim: int) -> Layout:
        """`dim` channels that the group leaves alone."""
        return cls.regular(group, dim, extra=dim)

    def __repr__(self) -> str:
        counts = (
            f"{irrep.name}={m}" if irrep.dim == 1 else f"{irrep.name}={irrep.dim}x{m}"
            for irrep, m in zip(self.group.irreps, self.multiplicities, strict=True)
        )
        return f"Layout({self.group}, {', '.join(counts)})"

    @property
    def dim(self) -> int:
        """All channels of a feature."""
        return sum(self.part_dims)

    @property
    def copies(self) -> int:
        """How many copies of the regular representation; the rest are `extra` invariant channels."""
        return self.require_regular("the regular basis")[0]

    @property
    def extra(self) -> int:
        """Invariant channels beyond the copies of the regular representation."""
        return self.require_regular("the regular basis")[1]

    @property
    def invariant_part(self) -> Layout:
        """The same without all but the trivial irrep.

        >>> Layout.regular("flop", 8).invariant_part
        Layout(flop, even=4, odd=0)
        """
        return Layout.invariant(self.group, self.multiplicities[0])

    def require_regular(self, who: str) -> tuple[int, int]:
        """Copies and extra channels; raise ValueError, naming `who`, for a layout that has other shares."""
        if self.regular_shares is None:
            raise ValueError(
                f"{who} needs equal shares of all irreps, plus extra copies of {self.group.irreps[0].name} at most,"
                f" got {self}"
            )
        return self.regular_shares

    def _regular_shares(self) -> tuple[int, int] | None:
        first, *others = self.multiplicities
        ratios = {divmod(m, i.regular_multiplicity) for m, i in zip(others, self.group.irreps[1:], strict=True)}
        (copies, rest), *different = ratios or {(first, 0)}
        return None if different or rest or copies > first else (copies, first - copies)

    def __add__(self, other: Layout) -> Layout:
        """The layout of two features side by side, as `functional.cat` puts them."""
        if self.group != other.group:
            raise ValueError(f"layouts of one group can be added, got {self} and {other}")
        return Layout(self.group, tuple(m + n for m, n in zip(self.multiplicities, other.multiplicities, strict=True)))

    def __mul__(self, factor: float) -> Layout:
        """All multiplicities times a factor, e.g. the hidden layer of an MLP; the products must be whole."""
        scaled = [m * factor for m in self.multiplicities]
        whole = [round(m) if isfinite(m) else 0 for m in scaled]
        if any(not abs(m - n) <= 1e-9 * abs(n) for m, n in zip(scaled, whole, strict=True)):
            raise ValueError(f"{self} times {factor} is not a whole number of copies")
        return Layout(self.group, tuple(whole))

    __rmul__ = __mul__

    def linear_cost(self, out: Layout) -> Cost:
        """Blocks, parameters and multiply-adds of an equivariant linear layer to another layout.

        >>> Layout.regular("octic", 48).linear_cost(Layout.regular("octic", 96)).ratio
        0.1875
        """
        types = [irrep.type for irrep in self.group.irreps]
        return cost(self.irrep_dims, types, self.multiplicities, out.multiplicities)

    def matrix(self, element: int) -> Tensor:
        """What a group element does to packed channels, (dim, dim) in float64."""
        blocks = [
            torch.kron(irrep.tensor[element], torch.eye(m, dtype=torch.float64, device="cpu"))
            for irrep, m in zip(self.group.irreps, self.multiplicities, strict=True)
        ]
        whole: Tensor = torch.block_diag(*blocks)
        return whole

    def split(self, packed: Tensor) -> Feature:
        """One tensor `(..., dim)` to its parts, as views.

        >>> from flopping import flop
        >>> [tuple(part.shape) for part in Layout(flop, (3, 2)).split(torch.zeros(4, 5))]
        [(4, 3), (4, 2)]
        """
        if not is_symbolic(packed) and packed.shape[-1:] != (self.dim,):
            raise ValueError(f"{self} has {self.dim} channels, got a tensor of shape {tuple(packed.shape)}")
        parts = []
        start = 0
        for width, shape in zip(self.part_dims, self.part_shapes, strict=True):
            part = packed.narrow(-1, start, width)
            parts.append(part if len(shape) == 1 else part.unflatten(-1, shape))
            start += width
        return tuple(parts)

    def merge(self, feature: Feature) -> Tensor:
        """The parts as one tensor `(..., dim)`, in the order of the irreps: for flop [even | odd]."""
        parts = self.parts(feature)
        if len(parts) == 1:
            return parts[0]
        return torch.cat([p if d == 1 else p.flatten(-2) for p, d in zip(parts, self.irrep_dims, strict=True)], -1)

    def parts(self, feature: Feature, who: str = "feature", leading: int | None = None) -> Feature:
        """The parts of a feature; what is not one of this layout is refused, showing its shapes.

        `leading` says how many axes stand before the channels: 2 for tokens (B, N), 3 for maps (B, H, W).

        >>> from flopping import flop
        >>> _ = Layout(flop, (3, 2)).parts((torch.zeros(4, 3), torch.zeros(4, 3)))
        Traceback (most recent call last):
        ...
        ValueError: feature: Layout(flop, even=3, odd=2) needs parts (..., 3), (..., 2), got (4, 3), (4, 3)
        """
        if torch.compiler.is_compiling():
            return tuple(feature)  # a compiler takes a fifth of its time to follow the checks of all layers
        if is_symbolic(feature):
            return tuple(feature[i] for i in range(len(self.multiplicities)))
        wanted = self.part_shapes
        if not isinstance(feature, (tuple, list)) or any(not isinstance(part, Tensor) for part in feature):
            kind = f"a tensor of shape {tuple(feature.shape)}" if isinstance(feature, Tensor) else repr(feature)
            raise TypeError(f"{who}: a feature of {self} is a tuple of {len(wanted)} tensors, got {kind}")
        if len(feature) == len(wanted):
            places = feature[0].shape[: feature[0].dim() - len(wanted[0])]
            fits = leading is None or len(places) == leading
            for part, shape in zip(feature, wanted, strict=True):
                fits = fits and part.shape == places + shape
            if fits:
                return tuple(feature)
        axes = {None: "...", 2: "B, N", 3: "B, H, W"}[leading]
        needs = ", ".join(f"({axes}, {', '.join(map(str, shape))})" for shape in wanted)
        shapes = ", ".join(str(tuple(part.shape)) for part in feature)
        raise ValueError(f"{who}: {self} needs parts {needs}, got {shapes}")

    def act(self, element: int, feature: Feature, grid: tuple[int, int] | None = None) -> Feature:
        """A feature moved by a group element: components mixed by the irreps, places moved on the grid.

        Parts with three leading axes are maps `(B, H, W)` and always move. Tokens `(B, N)` move when `grid`
        says how they lie, row by row; tokens beyond height x width stand in front and stay. Rows stay.

        >>> from flopping import flop
        >>> even, odd = torch.ones(1, 2, 1), torch.tensor([[[1.0], [2.0]]])
        >>> Layout(flop, (1, 1)).act(1, (even, odd), grid=(1, 2))[1].flatten().tolist()
        [-2.0, -1.0]
        """
        moved = []
        for irrep, part in zip(self.group.irreps, self.parts(feature), strict=True):
            matrix = irrep.tensor[element].to(part)
            part = part * matrix[0, 0] if irrep.dim == 1 else matrix @ part
            moved.append(self._move(element, part, part.dim() - (1 if irrep.dim == 1 else 2), grid))
        return tuple(moved)

    def _move(self, element: int, part: Tensor, leading: int, grid: tuple[int, int] | None) -> Tensor:
        if leading == 3:
            return self.group.act(element, part, (1, 2))
        if grid is None:
            return part
        if leading != 2 or part.shape[1] < prod(grid):
            raise ValueError(f"grid {grid} needs parts (B, N, ...) with N >= {prod(grid)}, got {tuple(part.shape)}")
        prefix = part.shape[1] - prod(grid)
        places = part[:, prefix:].unflatten(1, grid)
        return torch.cat([part[:, :prefix], self.group.act(element, places, (1, 2)).flatten(1, 2)], 1)

    def random(
        self, *leading: int, generator: torch.Generator | None = None, dtype: Dtype = None, device: Device = None
    ) -> Feature:
        """A normally distributed feature with the given leading axes."""
        return tuple(
            torch.randn(*leading, *shape, generator=generator, dtype=dtype, device=device) for shape in self.part_shapes
        )
