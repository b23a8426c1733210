"""Checks of equivariance, for any module: yours, ours, or a whole network."""

from flopping.testing.equivariance import (
    TOLERANCES,
    Value,
    act,
    assert_equivariant,
    equivariance_errors,
    grid_of,
    group_of,
    layouts_of,
    randomize_,
    relative_error,
    require_value,
    run,
)

__all__ = [
    "TOLERANCES",
    "Value",
    "act",
    "assert_equivariant",
    "equivariance_errors",
    "grid_of",
    "group_of",
    "layouts_of",
    "randomize_",
    "relative_error",
    "require_value",
    "run",
]
