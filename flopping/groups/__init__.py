"""Finite groups as values, and the mathematics behind them: characters, real irreps, intertwiners."""

from flopping.groups.grid_groups import (
    GRID_NAMES,
    flip,
    flipflop,
    flop,
    get_group,
    grid_groups,
    octic,
    rot90,
    rot180,
    trivial,
)
from flopping.groups.group import Group
from flopping.groups.irreps import Irrep
from flopping.groups.symmetries import Symmetry

__all__ = [
    "GRID_NAMES",
    "Group",
    "Irrep",
    "Symmetry",
    "flip",
    "flipflop",
    "flop",
    "get_group",
    "grid_groups",
    "octic",
    "rot90",
    "rot180",
    "trivial",
]
