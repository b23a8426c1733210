"""Layouts: how many copies of each irrep, and what they refuse."""

import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from finite_groups import abstract

from flopping import Group, Layout, flip, flipflop, flop, octic, rot90, rot180, trivial
from flopping.groups import grid_groups

GROUPS = list(grid_groups().values())


@pytest.mark.parametrize(
    ("layout", "multiplicities", "text"),
    [
        (Layout.regular(trivial, 5), (5,), "Layout(trivial, even=5)"),
        (Layout.regular(flop, 8), (4, 4), "Layout(flop, even=4, odd=4)"),
        (Layout.regular("flop", 8, extra=2), (5, 3), "Layout(flop, even=5, odd=3)"),
        (
            Layout.regular(flipflop, 8, extra=4),
            (5, 1, 1, 1),
            "Layout(flipflop, even_even=5, odd_even=1, even_odd=1, odd_odd=1)",
        ),
        (Layout.regular(rot90, 12), (3, 3, 3), "Layout(rot90, A=3, B=3, E=2x3)"),
        (Layout.regular("octic", 25, extra=1), (4, 3, 3, 3, 6), "Layout(octic, A1=4, A2=3, B1=3, B2=3, E=2x6)"),
        (
            Layout.regular(abstract("Q8"), 8),
            (1, 1, 1, 1, 1),
            "Layout(Q8, irrep0=1, irrep1=1, irrep2=1, irrep3=1, irrep4=4x1)",
        ),
        (Layout.invariant(flop, 3), (3, 0), "Layout(flop, even=3, odd=0)"),
        (Layout.invariant("octic", 3), (3, 0, 0, 0, 0), "Layout(octic, A1=3, A2=0, B1=0, B2=0, E=2x0)"),
    ],
    ids=str,
)
def test_regular_and_invariant_layouts(layout: Layout, multiplicities: tuple[int, ...], text: str) -> None:
    assert layout.multiplicities == multiplicities
    assert repr(layout) == str(layout) == text


def test_parts_of_a_layout() -> None:
    layout = Layout(octic, (4, 3, 0, 1, 5))
    assert layout.irrep_dims == (1, 1, 1, 1, 2)
    assert layout.part_dims == (4, 3, 0, 1, 10)
    assert layout.part_shapes == ((4,), (3,), (0,), (1,), (2, 5))
    assert layout.dim == 18


@pytest.mark.parametrize("group", [*GROUPS, abstract("C3"), abstract("Q8")], ids=str)
@pytest.mark.parametrize(("copies", "extra"), [(3, 0), (2, 5), (0, 4), (1, 1)])
def test_copies_and_extra_channels(group: Group, copies: int, extra: int) -> None:
    layout = Layout.regular(group, copies * group.order + extra, extra=extra)
    assert layout.dim == copies * group.order + extra
    # the trivial group can't tell its one irrep's copies from extra ones
    assert (layout.copies, layout.extra) == ((copies, extra) if group.order > 1 else (copies + extra, 0))
    assert Layout.invariant(group, 7).dim == 7


def test_layouts_multiply() -> None:
    assert Layout(flop, (3, 2)) * 4 == Layout(flop, (12, 8))
    assert Layout(flop, (4, 2)) * 1.5 == Layout(flop, (6, 3))
    assert Layout(octic, (2, 2, 2, 2, 4)) * 0.5 == Layout(octic, (1, 1, 1, 1, 2))
    assert Layout.regular(flop, 192) * (8 / 3) == Layout.regular(flop, 512)
    assert all(type(m) is int for m in (Layout(flop, (4, 2)) * 1.5).multiplicities)


def test_layouts_are_values() -> None:
    layout = Layout.regular(flop, 8)
    assert layout == Layout(flop, (4, 4))
    assert hash(layout) == hash(Layout(flop, (4, 4)))
    assert layout not in (Layout(flip, (4, 4)), Layout(flop, (4, 3)), Layout(rot180, (4, 4)))
    with pytest.raises(FrozenInstanceError):
        layout.multiplicities = (1, 1)  # type: ignore[misc]


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "multiplicities", "message"),
    [
        (flop, (1,), "flop has 2 irreps (even, odd), got multiplicities (1,)"),
        (flop, (1, 2, 3), "flop has 2 irreps (even, odd), got multiplicities (1, 2, 3)"),
        (rot90, (1, 2, 3, 4), "rot90 has 3 irreps (A, B, E), got multiplicities (1, 2, 3, 4)"),
        (flop, (3, -1), "multiplicities are whole numbers, not all zero, got (3, -1)"),
        (flop, (0, 0), "multiplicities are whole numbers, not all zero, got (0, 0)"),
        (flop, (1.5, 1), "multiplicities are whole numbers, not all zero, got (1.5, 1)"),
    ],
)
def test_wrong_multiplicities_are_refused(group: Group, multiplicities: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Layout(group, multiplicities)


@pytest.mark.parametrize(
    ("group", "dim", "extra", "message"),
    [
        (flop, 7, 0, "for flop needs dim - extra divisible by 2, got dim=7, extra=0"),
        (octic, 12, 0, "for octic needs dim - extra divisible by 8, got dim=12, extra=0"),
        (flop, 8, 3, "divisible by 2, got dim=8, extra=3"),
        (flop, 4, 6, "got dim=4, extra=6"),
        (flop, 4, -2, "got dim=4, extra=-2"),
    ],
)
def test_a_width_without_a_regular_layout_is_refused(group: Group, dim: int, extra: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
        Layout.regular(group, dim, extra=extra)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(flop, (2, 3)),
        Layout(flipflop, (4, 2, 2, 1)),
        Layout(octic, (2, 2, 2, 2, 3)),
        Layout(octic, (2, 2, 2, 2, 2)),
        Layout(rot90, (3, 2, 3)),
    ],
    ids=str,
)
def test_unequal_shares_have_no_regular_basis(layout: Layout) -> None:
    message = f"equal shares of all irreps, plus extra copies of {layout.group.irreps[0].name} at most, got {layout}"
    for share in ("copies", "extra"):
        with pytest.raises(ValueError, match=f"{re.escape(message)}$"):
            getattr(layout, share)


@pytest.mark.parametrize("factor", [0.5, 1.25, 1 / 3])
def test_products_must_be_whole(factor: float) -> None:
    with pytest.raises(ValueError, match=rf"^Layout\(flop, even=5, odd=2\) times {factor} is not a whole number"):
        Layout(flop, (5, 2)) * factor


@pytest.mark.parametrize("factor", [0, -1])
def test_products_must_leave_something(factor: int) -> None:
    with pytest.raises(ValueError, match=rf"not all zero, got \({5 * factor}, {2 * factor}\)"):
        Layout(flop, (5, 2)) * factor


def test_products_may_be_rounded() -> None:
    """120 / 88 is no exact number, but 88 times it is meant to be 120."""
    assert (Layout.regular(flop, 176) * (120 / 88)).multiplicities == (120, 120)
