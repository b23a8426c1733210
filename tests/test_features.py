"""Layouts, and features that follow them: packing, how a group moves them, and what is refused."""

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.finite_groups import abstract, near, random

from flopping import Feature, Group, Layout, flip, flop, octic, rot90, rot180, trivial
from flopping.groups import grid_groups

GROUPS = list(grid_groups().values())
quick = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any multiplicities of any group, of one with a quaternionic irrep too."""
    group = draw(st.sampled_from([*GROUPS, abstract("S3"), abstract("Q8")]))
    k = len(group.irreps)
    return Layout(group, tuple(draw(st.lists(st.integers(0, 3), min_size=k, max_size=k).filter(any))))


leading_shapes = st.lists(st.integers(0, 3), max_size=2)
seeds = st.integers(0, 1000)


def equal(a: Feature, b: Feature) -> None:
    for x, y in zip(a, b, strict=True):
        near(x, y)


def feature(layout: Layout, *leading: int, seed: int = 0) -> Feature:
    return layout.random(*leading, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("layout", "multiplicities", "text"),
    [
        (Layout.regular(trivial, 5), (5,), "Layout(trivial, even=5)"),
        (Layout.regular("flop", 8, extra=2), (5, 3), "Layout(flop, even=5, odd=3)"),
        (Layout.regular("octic", 25, extra=1), (4, 3, 3, 3, 6), "Layout(octic, A1=4, A2=3, B1=3, B2=3, E=2x6)"),
        (
            Layout.regular(abstract("Q8"), 8),
            (1, 1, 1, 1, 1),
            "Layout(Q8, irrep0=1, irrep1=1, irrep2=1, irrep3=1, irrep4=4x1)",
        ),
        (Layout.invariant(flop, 3), (3, 0), "Layout(flop, even=3, odd=0)"),
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
    assert Layout.regular(flop, 176) * (120 / 88) == Layout.regular(flop, 240)  # 88 times 120 / 88 is not quite 120


def test_layouts_are_values() -> None:
    layout = Layout.regular(flop, 8)
    assert layout == Layout(flop, (4, 4))
    assert hash(layout) == hash(Layout(flop, (4, 4)))
    assert layout not in (Layout(flip, (4, 4)), Layout(flop, (4, 3)), Layout(rot180, (4, 4)))
    with pytest.raises(FrozenInstanceError):
        layout.multiplicities = (1, 1)  # type: ignore[misc]


def test_random_features() -> None:
    layout = Layout(rot90, (2, 0, 3))
    x = layout.random(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float16)
    again = layout.random(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float16)
    assert [tuple(part.shape) for part in x] == [(4, 5, 2), (4, 5, 0), (4, 5, 2, 3)]
    assert {part.dtype for part in x} == {torch.float16}
    assert all(torch.equal(a, b) for a, b in zip(x, again, strict=True))
    assert {part.device.type for part in layout.random(1, device="meta")} == {"meta"}


# --- packing ---------------------------------------------------------------------------------------


def test_channels_are_ordered_irrep_then_component_then_copy() -> None:
    parts = Layout(octic, (1, 0, 2, 0, 3)).split(torch.arange(9))
    assert [part.tolist() for part in parts] == [[0], [], [1, 2], [], [[3, 4, 5], [6, 7, 8]]]
    layout = Layout(flop, (2, 3))
    packed = torch.arange(10.0).view(2, 5)
    even, odd = layout.split(packed)
    assert even.tolist() == [[0, 1], [5, 6]]
    assert odd.tolist() == [[2, 3, 4], [7, 8, 9]]
    assert layout.merge((odd.narrow(1, 0, 2), packed[:, :3])).tolist() == [[2, 3, 0, 1, 2], [7, 8, 5, 6, 7]]


@given(layout=layouts(), leading=leading_shapes, seed=seeds)
@quick
def test_split_and_merge_are_inverse(layout: Layout, leading: list[int], seed: int) -> None:
    packed = random(*leading, layout.dim, seed=seed)
    parts = layout.split(packed)
    assert [tuple(part.shape) for part in parts] == [(*leading, *shape) for shape in layout.part_shapes]
    assert torch.equal(layout.merge(parts), packed)
    x = feature(layout, *leading, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(layout.split(layout.merge(x)), x, strict=True))
    assert layout.parts(x) == x


def test_split_gives_views() -> None:
    packed = torch.zeros(3, 6)
    for layout in (Layout(flop, (4, 2)), Layout(rot90, (2, 2, 1))):
        packed.zero_()
        for part in layout.split(packed):
            part += 1
        assert bool((packed == 1).all())


# --- the group's action ----------------------------------------------------------------------------


@given(layout=layouts(), leading=leading_shapes, seed=seeds)
@quick
def test_acting_on_rows_is_a_matrix_on_packed_channels(layout: Layout, leading: list[int], seed: int) -> None:
    x = feature(layout, *leading, seed=seed)
    for g in range(layout.group.order):
        matrix = layout.matrix(g)
        assert (matrix.dtype, tuple(matrix.shape)) == (torch.float64, (layout.dim, layout.dim))
        near(layout.merge(layout.act(g, x)), layout.merge(x) @ matrix.T)


@given(layout=layouts(), seed=seeds, data=st.data())
@quick
def test_acting_on_rows_composes(layout: Layout, seed: int, data: st.DataObject) -> None:
    group = layout.group
    g, h = data.draw(st.tuples(*[st.integers(0, group.order - 1)] * 2))
    x = feature(layout, 3, seed=seed)
    equal(layout.act(g, layout.act(h, x)), layout.act(group.product(g, h), x))
    near(layout.matrix(g) @ layout.matrix(h), layout.matrix(group.product(g, h)))
    equal(layout.act(0, x), x)


@given(
    group=st.sampled_from(GROUPS),
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    prefix=st.integers(0, 2),
    seed=seeds,
    data=st.data(),
)
@quick
def test_acting_on_tokens_and_maps(
    group: Group, grid: tuple[int, int], prefix: int, seed: int, data: st.DataObject
) -> None:
    """Channels are mixed as in rows; places move as the pixels of an image; tokens in front of them stay."""
    k = len(group.irreps)
    layout = Layout(group, tuple(data.draw(st.lists(st.integers(0, 2), min_size=k, max_size=k).filter(any))))
    g, h = data.draw(st.tuples(*[st.integers(0, group.order - 1)] * 2))
    height, width = grid
    tokens = feature(layout, 2, prefix + height * width, seed=seed)
    packed = layout.merge(tokens)
    front, places = packed[:, :prefix], packed[:, prefix:].view(2, height, width, layout.dim)
    mixed = group.act(g, places @ layout.matrix(g).T, (1, 2))
    near(layout.merge(layout.act(g, layout.split(places))), mixed)
    expected = torch.cat([front @ layout.matrix(g).T, mixed.flatten(1, 2)], 1)
    near(layout.merge(layout.act(g, tokens, grid)), expected)
    turned = grid[::-1] if group.symmetries[h].transposes else grid
    both = layout.act(group.product(g, h), tokens, grid)
    equal(layout.act(g, layout.act(h, tokens, grid), turned), both)


# --- errors ----------------------------------------------------------------------------------------

UNEVEN = Layout(flop, (5, 2))
PLANE = Layout(rot90, (1, 1, 3))


def zeros(*shapes: tuple[int, ...]) -> Feature:
    return tuple(torch.zeros(shape) for shape in shapes)


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "too few": (lambda: Layout(flop, (1,)), "2 irreps (even, odd), got multiplicities (1,)"),
    "a list": (lambda: Layout(flop, [1, 1]), "got multiplicities [1, 1]"),  # type: ignore[arg-type]
    "negative": (lambda: Layout(flop, (3, -1)), "not all zero, got (3, -1)"),
    "nothing": (lambda: Layout(flop, (0, 0)), "not all zero, got (0, 0)"),
    "fraction": (lambda: Layout(flop, (1.5, 1)), "whole numbers, not all zero, got (1.5, 1)"),  # type: ignore[arg-type]
    "odd width": (lambda: Layout.regular(flop, 8, extra=3), "divisible by 2, got dim=8, extra=3"),
    "extra": (lambda: Layout.regular(flop, 4, extra=6), "extra <= dim, got dim=4, extra=6"),
    "negative width": (lambda: Layout.regular(flop, -2), "got dim=-2, extra=0"),
    "half": (lambda: UNEVEN * 0.5, "times 0.5 is not a whole number of copies"),
    "infinite": (lambda: UNEVEN * float("inf"), "times inf is not a whole number of copies"),
    "unknown group": (lambda: Layout.regular("flap", 4), "unknown group 'flap'"),
    "copies of unequal shares": (lambda: Layout(flop, (2, 3)).copies, "got Layout(flop, even=2, odd=3)"),
    "extra of unequal shares": (lambda: Layout(octic, (2, 2, 2, 2, 3)).extra, "equal shares of all irreps"),
    "packed width": (lambda: UNEVEN.split(torch.zeros(4, 6)), "has 7 channels, got a tensor of shape (4, 6)"),
    "packed scalar": (lambda: UNEVEN.split(torch.tensor(1.0)), "got a tensor of shape ()"),
    "one part": (lambda: UNEVEN.parts(zeros((4, 5)), "Block"), "Block: Layout(flop, even=5, odd=2) needs parts"),
    "no part": (lambda: UNEVEN.merge(()), "(..., 5), (..., 2), got "),
    "leading axes": (lambda: UNEVEN.act(1, zeros((4, 5), (3, 2))), "(..., 5), (..., 2), got (4, 5), (3, 2)"),
    "plane": (lambda: PLANE.merge(zeros((4, 1), (4, 1), (4, 3, 2))), "(..., 2, 3), got (4, 1), (4, 1), (4, 3, 2)"),
    "tokens": (lambda: UNEVEN.act(1, UNEVEN.random(2, 5), (2, 3)), "grid (2, 3) needs parts (B, N, ...) with N >= 6"),
    "rows on a grid": (lambda: UNEVEN.act(1, UNEVEN.random(6), (2, 3)), "got (6, 5)"),
    "group without places": (
        lambda: (layout := Layout.regular(abstract("S3"), 6)).act(1, layout.random(1, 2, 2)),
        "got S3",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize("arguments", [{"dim": "384"}, {"dim": 192.0}, {"dim": 8, "extra": "2"}], ids=str)
def test_widths_are_whole_numbers(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"whole numbers, got dim={arguments['dim']!r}"):
        Layout.regular(flop, **arguments)


@pytest.mark.parametrize("value", [torch.zeros(4, 5), [[1.0], [2.0]], (torch.zeros(2), None)], ids=str)
def test_what_is_not_a_tuple_of_tensors_is_refused(value: Any) -> None:
    for call in (UNEVEN.parts, UNEVEN.merge, partial(UNEVEN.act, 1)):
        with pytest.raises(TypeError, match="is a tuple of 2 tensors, got"):
            call(value)
