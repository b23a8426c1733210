"""The group over the depth of a network: which blocks have which group, and the hand-offs between them."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from flopping.features import Device, Dtype, Layout
from flopping.groups import Group, get_group, grid_groups, trivial
from flopping.nn import AbsToInvariant, Concat, Module, Restrict, ToInvariant, ToRegular
from flopping.nn.handoff import InvariantKind

Handoffs = Mapping[int, str | Group] | Mapping[str, str]
"""Block index -> what happens before it: ordinary or invariant blocks follow, or those of a subgroup."""

_TO_ORDINARY = ("hybrid", "concat")
_INVARIANTS: dict[str, InvariantKind] = {
    "invariant": "linear",
    "power_spectrum": "power_spectrum",
    "max_filtering": "max_filtering",
    "polynomial": "polynomial",
}
_KINDS = (*_TO_ORDINARY, *_INVARIANTS, "abs")


@dataclass(frozen=True)
class Segment:
    """Consecutive blocks of one group; `extra_share` is the share of invariant channels beyond the regular ones.

    >>> Segment(get_group("flop"), 1 / 3).layout(384)
    Layout(flop, even=256, odd=128)
    """

    group: Group
    extra_share: float = 0.0

    def layout(self, dim: int) -> Layout:
        extra = round(dim * self.extra_share)
        if (dim - extra) % self.group.order:
            raise ValueError(
                f"{dim} channels with extra_share={self.extra_share:.3g} have {extra} extra ones; the other"
                f" {dim - extra} are not a multiple of {self.group.order}, the order of {self.group}"
            )
        return Layout.regular(self.group, dim, extra=extra)

    def after(self, handoff: str) -> Segment:
        """What follows a hand-off."""
        if handoff in _TO_ORDINARY:
            return Segment(trivial)
        if handoff in _KINDS:
            return replace(self, extra_share=1.0)
        return replace(self, group=get_group(handoff))


class Schedule:
    """The segments of a network, block by block.

    >>> schedule = Schedule("flop", depth=4, handoffs={2: "hybrid"})
    >>> [segment.group.name for segment in schedule.segments]
    ['flop', 'flop', 'trivial', 'trivial']
    """

    def __init__(
        self, group: str | Group, depth: int, handoffs: Handoffs | None = None, extra_share: float = 0.0
    ) -> None:
        if not 0 <= extra_share <= 1:
            raise ValueError(f"extra_share is between 0 and 1, got {extra_share}")
        if depth < 1:
            raise ValueError(f"a network has at least one block, got {depth}")
        self.handoffs = _checked(handoffs, depth)
        if self.handoffs.get(0) == "invariant":
            raise ValueError("an invariant hand-off needs at least one block before it, got one before block 0")
        self.first = Segment(get_group(group), extra_share)
        segments = []
        segment = self.first
        for block in range(depth):
            if block in self.handoffs:
                segment = segment.after(self.handoffs[block])
            segments.append(segment)
        self.segments = tuple(segments)

    def layout_in(self, block: int, dim: int) -> Layout:
        """What a block takes."""
        return self.segments[block].layout(dim)

    def layout_out(self, block: int, dim: int) -> Layout:
        """What a block gives: only the trivial irrep where an invariant hand-off, which drops the rest, follows."""
        layout = self.layout_in(block, dim)
        return layout.invariant_part if self.handoffs.get(block + 1) == "invariant" else layout

    def handoff(self, block: int, dim: int, *, device: Device, dtype: Dtype) -> Module:
        """The layer that stands before a block of `handoffs`."""
        kind = self.handoffs[block]
        layout = (self.segments[block - 1] if block else self.first).layout(dim)
        if kind == "invariant":
            layout = layout.invariant_part
        if kind in _INVARIANTS:
            return ToInvariant(layout, dim, invariants=_INVARIANTS[kind], device=device, dtype=dtype)
        if kind == "abs":
            layout.group.require_signs("the hand-off abs, which keeps the number of channels,")
        layers: dict[str, Callable[[Layout], Module]] = {"hybrid": ToRegular, "concat": Concat, "abs": AbsToInvariant}
        return layers[kind](layout) if kind in layers else Restrict(layout, kind)

    def per_block(self, value: float | Sequence[float], what: str) -> list[float]:
        """A number for each block, from one for all or one for each segment between hand-offs.

        >>> Schedule("flop", depth=3, handoffs={2: "hybrid"}).per_block((1e-5, 1e-6), "norm_eps")
        [1e-05, 1e-05, 1e-06]
        """
        starts = sorted({0, *self.handoffs})
        values = [value] * len(starts) if isinstance(value, int | float) else list(value)
        if len(values) != len(starts):
            raise ValueError(f"{what} is one number, or one for each of {len(starts)} segments, got {value!r}")
        return [values[bisect(starts, block) - 1] for block in range(len(self.segments))]


def _checked(handoffs: Handoffs | None, depth: int) -> dict[int, str]:
    if handoffs is not None and not isinstance(handoffs, Mapping):
        raise TypeError(f"handoffs map a block to the hand-off before it, e.g. {{6: 'hybrid'}}, got {handoffs!r}")
    found: dict[int, str] = {}
    for key, kind in (handoffs or {}).items():
        # JSON, where configurations are kept, makes strings of numbers
        block = int(key) if isinstance(key, int) or (isinstance(key, str) and key.isdecimal()) else -1
        if not 0 <= block < depth:
            raise ValueError(f"the key of a hand-off is a block from 0 to {depth - 1}, got {key!r}")
        if block in found:
            raise ValueError(f"two hand-offs stand before block {block}: {dict(handoffs or {})}")
        name = kind.name if isinstance(kind, Group) else kind
        if name not in _KINDS and name not in grid_groups():
            raise ValueError(f"a hand-off is {', '.join(_KINDS)} or a group ({', '.join(grid_groups())}), got {kind!r}")
        found[block] = name
    return found
