"""Vision networks that know a mirrored image shows the same thing, and do half the arithmetic."""

from importlib.metadata import version

from flopping import models, nn, testing
from flopping.checkpoints import load_reference
from flopping.features import Feature, Layout
from flopping.functional import compile_operations, tune_cpu, use_onednn
from flopping.groups import Group, flip, flipflop, flop, get_group, octic, rot90, rot180, trivial
from flopping.groups.irreps import Irrep
from flopping.groups.symmetries import Symmetry
from flopping.models.blocks import compile_blocks
from flopping.models.fuse import fuse

__version__ = version("flopping")

__all__ = [
    "Feature",
    "Group",
    "Irrep",
    "Layout",
    "Symmetry",
    "compile_blocks",
    "compile_operations",
    "flip",
    "flipflop",
    "flop",
    "fuse",
    "get_group",
    "load_reference",
    "models",
    "nn",
    "octic",
    "rot90",
    "rot180",
    "testing",
    "trivial",
    "tune_cpu",
    "use_onednn",
]
