"""Layouts, and features that follow them: packing, how a group moves them, and what is refused."""

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.finite_groups import abstract, near, random

from flopping import Feature, Group, Layout, flip, flop, functional, octic, rot90, rot180
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


@pytest.mark.parametrize("group", [*GROUPS, abstract("C3"), abstract("Q8")], ids=str)
@pytest.mark.parametrize(("copies", "extra"), [(3, 0), (2, 5), (0, 4), (1, 1)])
def test_copies_and_extra_channels(group: Group, copies: int, extra: int) -> None:
    layout = Layout.regular(group, copies * group.order + extra, extra=extra)
    assert layout.dim == copies * group.order + extra
    # the trivial group can't tell its one irrep's copies from extra ones
    assert (layout.copies, layout.extra) == ((copies, extra) if group.order > 1 else (copies + extra, 0))


def test_parts_of_a_layout() -> None:
    layout = Layout(octic, (4, 3, 0, 1, 5))
    assert layout.irrep_dims == (1, 1, 1, 1, 2)
    assert layout.part_dims == (4, 3, 0, 1, 10)
    assert layout.part_shapes == ((4,), (3,), (0,), (1,), (2, 5))
    assert repr(layout) == "Layout(octic, A1=4, A2=3, B1=0, B2=1, E=2x5)"
    assert Layout.invariant(flop, 3) == Layout(flop, (3, 0))


def test_layouts_multiply() -> None:
    assert Layout(flop, (3, 2)) * 4 == Layout(flop, (12, 8))
    assert Layout(flop, (4, 2)) * 1.5 == Layout(flop, (6, 3))
    assert Layout(octic, (2, 2, 2, 2, 4)) * 0.5 == Layout(octic, (1, 1, 1, 1, 2))
    assert Layout.regular(flop, 192) * (8 / 3) == Layout.regular(flop, 512)
    assert all(type(m) is int for m in (Layout(flop, (4, 2)) * 1.5).multiplicities)
    assert Layout.regular(flop, 176) * (120 / 88) == Layout.regular(flop, 240)  # 88 times 120 / 88 is not quite 120


def test_layouts_are_values() -> None:
    layout = Layout.regular(flop, 8)
    assert hash(layout) == hash(Layout(flop, (4, 4)))
    assert layout not in (Layout(flip, (4, 4)), Layout(flop, (4, 3)), Layout(rot180, (4, 4)))
    with pytest.raises(FrozenInstanceError):
        layout.multiplicities = (1, 1)  # type: ignore[misc]


def test_random_features() -> None:
    layout = Layout(rot90, (2, 0, 3))
    x, again = (layout.random(4, 5, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert [tuple(part.shape) for part in x] == [(4, 5, 2), (4, 5, 0), (4, 5, 2, 3)]
    assert all(torch.equal(a, b) for a, b in zip(x, again, strict=True))
    assert {(part.device.type, part.dtype) for part in layout.random(1, device="meta", dtype=torch.half)} == {
        ("meta", torch.half)
    }


@pytest.mark.parametrize("group", [*GROUPS, abstract("Q8")], ids=str)
def test_features_side_by_side(group: Group) -> None:
    """They are split again into what they were, the group acts on each, and their layout is the sum."""
    layouts = [Layout.regular(group, 2 * group.order + extra, extra=extra) for extra in (0, 3, 1)]
    parts = [feature(layout, 2, 5, seed=i) for i, layout in enumerate(layouts)]
    both, whole = layouts[0] + layouts[1] + layouts[2], functional.cat(parts)
    assert both == Layout.regular(group, 6 * group.order + 4, extra=4)
    for again, part in zip(functional.split(both.parts(whole), layouts), parts, strict=True):
        equal(again, part)
    for g in range(group.order):
        equal(both.act(g, whole), functional.cat([la.act(g, p) for la, p in zip(layouts, parts, strict=True)]))


@pytest.mark.parametrize("group", [*GROUPS, abstract("Q8")], ids=str)
@pytest.mark.parametrize(("copies", "extra"), [(2, 0), (2, 3), (0, 3)])
def test_regular_basis_and_back(group: Group, copies: int, extra: int) -> None:
    layout = Layout.regular(group, copies * group.order + extra, extra=extra)
    x = feature(layout, 4)
    values, rest = functional.to_regular(x, layout)
    copies, extra = layout.copies, layout.extra  # the trivial group has no extra channels
    assert [tuple(v.shape) for v in (*values, rest)] == [*[(4, copies)] * group.order, (4, extra)]
    equal(functional.from_regular(values, rest, layout), x)


# --- packing ---------------------------------------------------------------------------------------


def test_channels_are_ordered_irrep_then_component_then_copy() -> None:
    packed = torch.arange(9)
    parts = Layout(octic, (1, 0, 2, 0, 3)).split(packed)
    assert [part.tolist() for part in parts] == [[0], [], [1, 2], [], [[3, 4, 5], [6, 7, 8]]]
    for part in parts:  # they are views
        part += 1
    assert packed.tolist() == list(range(1, 10))


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


REFUSED: dict[str, Callable[[], object]] = {
    "2 irreps (even, odd), got multiplicities (1,)": lambda: Layout(flop, (1,)),
    "got multiplicities [1, 1]": lambda: Layout(flop, [1, 1]),  # type: ignore[arg-type]
    "got (3, -1)": lambda: Layout(flop, (3, -1)),
    "got (0, 0)": lambda: Layout(flop, (0, 0)),
    "got (1.5, 1)": lambda: Layout(flop, (1.5, 1)),  # type: ignore[arg-type]
    "divisible by 2, got dim=8, extra=3": lambda: Layout.regular(flop, 8, extra=3),
    "got dim=4, extra=6": lambda: Layout.regular(flop, 4, extra=6),
    "got dim=-2, extra=0": lambda: Layout.regular(flop, -2),
    "whole numbers, got dim='384'": lambda: Layout.regular(flop, "384"),  # type: ignore[arg-type]
    "whole numbers, got dim=192.0": lambda: Layout.regular(flop, 192.0),  # type: ignore[arg-type]
    "whole numbers, got dim=8, extra='2'": lambda: Layout.regular(flop, 8, extra="2"),  # type: ignore[arg-type]
    "times 0.5 is not a whole number of copies": lambda: UNEVEN * 0.5,
    "times inf is not a whole number of copies": lambda: UNEVEN * float("inf"),
    "got Layout(flop, even=5, odd=2) and Layout(rot90": lambda: UNEVEN + PLANE,
    "split: Layout(flop, even=10": lambda: functional.split(UNEVEN.random(2), [UNEVEN, UNEVEN]),
    "unknown group 'flap'": lambda: Layout.regular("flap", 4),
    "got Layout(flop, even=2, odd=3)": lambda: Layout(flop, (2, 3)).copies,
    "equal shares of all irreps": lambda: Layout(octic, (2, 2, 2, 2, 3)).extra,
    "has 7 channels, got a tensor of shape (4, 6)": lambda: UNEVEN.split(torch.zeros(4, 6)),
    "got a tensor of shape ()": lambda: UNEVEN.split(torch.tensor(1.0)),
    "Block: Layout(flop, even=5, odd=2) needs parts": lambda: UNEVEN.parts(zeros((4, 5)), "Block"),
    "(..., 5), (..., 2), got ": lambda: UNEVEN.merge(()),
    "(..., 5), (..., 2), got (4, 5), (3, 2)": lambda: UNEVEN.act(1, zeros((4, 5), (3, 2))),
    "(..., 2, 3), got (4, 1), (4, 1), (4, 3, 2)": lambda: PLANE.merge(zeros((4, 1), (4, 1), (4, 3, 2))),
    "grid (2, 3) needs parts (B, N, ...) with N >= 6": lambda: UNEVEN.act(1, UNEVEN.random(2, 5), (2, 3)),
    "got (6, 5)": lambda: UNEVEN.act(1, UNEVEN.random(6), (2, 3)),
    "got S3": lambda: (layout := Layout.regular(abstract("S3"), 6)).act(1, layout.random(1, 2, 2)),
    "a tuple of 2 tensors, got a tensor of shape (4, 5)": lambda: UNEVEN.parts(torch.zeros(4, 5)),  # type: ignore[arg-type]
    "a tuple of 2 tensors, got [[1.0], [2.0]]": lambda: UNEVEN.merge([[1.0], [2.0]]),  # type: ignore[arg-type]
    "a tuple of 2 tensors, got (": lambda: UNEVEN.act(1, (torch.zeros(2), None)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("got", REFUSED)
def test_refused(got: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(got)):
        REFUSED[got]()
