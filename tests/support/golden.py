"""Where the golden files of the reference code lie, and what their shapes don't tell."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("FLOPPING_GOLDEN") or ROOT.parent / "shared" / "golden")
HINTS = {
    "convnext_hierarchical_equivariant": {},
    "convnext_iso_equivariant": {},
    "convnext_iso_equivariant_noscale": {},
    "resmlp_equivariant": {},
    "vit_equivariant": {"num_heads": 4},
    "vit_equivariant_absfeats": {"num_heads": 4},
    "vit_hybrid": {"num_heads": 4, "handoff": "hybrid"},
    "vit_invariant_abs": {"num_heads": 4, "handoff": "abs"},
}
"""The arguments of `load_reference` for each file of the reference code."""
OCTIC = (
    "octic_deit_hybrid",
    "octic_deit_invariant_max_filtering",
    "octic_deit_invariant_polynomial",
    "octic_deit_invariant_power_spectrum",
    "octic_dinov2_hybrid",
    "octic_dinov2_invariant",
)
"""The files of octic-vits; they have two heads."""


def golden_file(name: str) -> Path:
    """A golden file; where there is none, the test is skipped."""
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        pytest.skip(f"no golden files in {FOLDER}; FLOPPING_GOLDEN says where they are")
    return path
