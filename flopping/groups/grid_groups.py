"""The groups of the pixel grid, by name: mirrors, turns, and all eight symmetries of the square."""

from __future__ import annotations

import torch

from flopping.errors import UsageError
from flopping.groups import characters
from flopping.groups.group import Group, as_indices
from flopping.groups.irreps import Irrep, Matrix, as_tuples
from flopping.groups.symmetries import SYMMETRIES, planes

ARROW = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64, device="cpu")
"""From (row, column) to (x, y)."""


def _grid_group(name: str, elements: str, irreps: dict[str, str]) -> Group:
    """A subgroup of the square's symmetries; 1-dimensional irreps as signs, 'plane' for arrows in the plane.

    An arrow is (x, y) with x to the right and y up, as in octic-vits: the place (row, column) is (column, -row).
    """
    names = tuple(elements.split())
    symmetries = tuple(SYMMETRIES[n] for n in names)
    plane = planes(symmetries)

    def matrices(signs: str) -> tuple[Matrix, ...]:
        if signs == "plane":
            return tuple(as_tuples(m) for m in ARROW @ plane @ ARROW.T + 0.0)  # no -0.0
        return tuple(((float(f"{sign}1"),),) for sign in signs)

    return Group(
        name,
        names,
        as_indices(characters.multiplication_table(plane)),
        tuple(Irrep(n, matrices(signs)) for n, signs in irreps.items()),
        symmetries,
    )


trivial = _grid_group("trivial", "identity", {"even": "+"})
flop = _grid_group("flop", "identity flop", {"even": "++", "odd": "+-"})
flip = _grid_group("flip", "identity flip", {"even": "++", "odd": "+-"})
rot180 = _grid_group("rot180", "identity rot180", {"even": "++", "odd": "+-"})
flipflop = _grid_group(
    "flipflop",  # the names say what a flop does, then what a flip does
    "identity flop flip rot180",
    {"even_even": "++++", "odd_even": "+-+-", "even_odd": "++--", "odd_odd": "+--+"},
)
rot90 = _grid_group("rot90", "identity rot90 rot180 rot270", {"A": "++++", "B": "+-+-", "E": "plane"})
octic = _grid_group(
    "octic",
    "identity rot90 rot180 rot270 flop transpose flip antitranspose",
    {"A1": "++++++++", "A2": "++++----", "B1": "+-+-+-+-", "B2": "+-+--+-+", "E": "plane"},
)


def grid_groups() -> dict[str, Group]:
    """The groups of the pixel grid by name, smallest first."""
    return {g.name: g for g in (trivial, flop, flip, rot180, flipflop, rot90, octic)}


GRID_NAMES = ", ".join(grid_groups())


def get_group(group: str | Group) -> Group:
    """A group by name; a group passes through.

    >>> get_group("octic") is octic
    True
    """
    if isinstance(group, Group):
        return group
    if group not in grid_groups():
        raise UsageError(f"unknown group {group!r}; the groups of the pixel grid are {GRID_NAMES}")
    return grid_groups()[group]
