"""Sliding windows: which places they read, and whether a group maps these places onto themselves."""

from __future__ import annotations

from dataclasses import dataclass

from flopping.functional.grid import Grid, as_pair
from flopping.groups import Group

AXES = "height", "width"


@dataclass(frozen=True)
class Window:
    """How a window moves over a map, for rows and columns.

    >>> Window.of(3, stride=2, padding=1).out_size((57, 57))
    (29, 29)
    """

    kernel: Grid
    stride: Grid
    padding: Grid
    dilation: Grid

    @classmethod
    def of(
        cls, kernel: int | Grid, stride: int | Grid = 1, padding: int | Grid = 0, dilation: int | Grid = 1
    ) -> Window:
        pad = (padding, padding) if isinstance(padding, int) else tuple(padding)
        if len(pad) != 2 or any(not isinstance(n, int) or n < 0 for n in pad):
            raise ValueError(f"padding is a number of places, at least 0, or two of them, got {padding!r}")
        return cls(
            as_pair(kernel, "kernel_size"), as_pair(stride, "stride"), (pad[0], pad[1]), as_pair(dilation, "dilation")
        )

    def require_square(self, group: Group, who: str) -> None:
        """Raise ValueError, naming `who`, for a group without pixels or a window that it turns into another one."""
        group.require_grid(who)
        pairs = (self.kernel, self.stride, self.padding, self.dilation)
        if group.swaps_axes and any(rows != columns for rows, columns in pairs):
            raise ValueError(f"{who}: {group} turns rows into columns and needs a square window, got {self}")

    def out_size(self, size: Grid) -> Grid:
        """Height and width of the result."""
        rows, columns = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        )
        return rows, columns

    def check(self, group: Group, size: Grid, who: str) -> None:
        """Raise ValueError, naming `who`, for a map on which the mirror image of a window is no window.

        >>> from flopping import flop
        >>> Window.of(3, 2, 1).check(flop, (56, 56), "Conv2d")  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ...
        ValueError: Conv2d: kernel_size=3, stride=2, padding=1 on a width of 56: flop does not map the places that are
        read onto themselves; take another size (55, 57), or another kernel (kernel_size=4, padding=1)
        """
        for axis in mirrored_axes(group):
            k, s, p, d = (pair[axis] for pair in (self.kernel, self.stride, self.padding, self.dilation))
            n = size[axis]
            rest = (n + 2 * p - d * (k - 1) - 1) % s
            if rest:
                kernel = _fitting_kernel(n, k, s, d)
                other = "" if kernel is None else f", or another kernel (kernel_size={kernel[0]}, padding={kernel[1]})"
                dilated = "" if d == 1 else f", dilation={d}"
                raise ValueError(
                    f"{who}: kernel_size={k}, stride={s}, padding={p}{dilated} on a {AXES[axis]} of {n}: {group} does"
                    " not map the places that are read onto themselves; take another size"
                    f" ({n - rest}, {n - rest + s}){other}"
                )


def mirrored_axes(group: Group) -> tuple[int, ...]:
    """The axes that some element of the group reverses: 0 for rows, 1 for columns.

    >>> from flopping import flop, rot180
    >>> mirrored_axes(flop), mirrored_axes(rot180)
    ((1,), (0, 1))
    """
    return tuple(axis for axis in (0, 1) if any(axis in s.flipped_axes for s in group.symmetries))


def _fitting_kernel(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int] | None:
    """A larger kernel and its padding that fit the size and give one result for `stride` places."""
    for k in range(kernel + 1, kernel + stride + 1):
        for p in range(k):
            free = size + 2 * p - dilation * (k - 1) - 1
            if free % stride == 0 and free // stride + 1 == -(-size // stride):
                return k, p
    return None
