"""Features that follow a layout: packing, how a group moves them, and what is refused."""

import itertools
import re
from functools import partial
from typing import Any

import pytest
import torch
from finite_groups import abstract, near, random
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from flopping import Feature, Group, Layout, flop, octic, rot90
from flopping.groups import grid_groups

GROUPS = list(grid_groups().values())
each_group = pytest.mark.parametrize("group", GROUPS, ids=str)
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


def test_random_features() -> None:
    layout = Layout(rot90, (2, 0, 3))
    x = layout.random(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float16)
    again = layout.random(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float16)
    assert [tuple(part.shape) for part in x] == [(4, 5, 2), (4, 5, 0), (4, 5, 2, 3)]
    assert {part.dtype for part in x} == {torch.float16}
    assert all(torch.equal(a, b) for a, b in zip(x, again, strict=True))
    assert {part.device.type for part in layout.random(1, device="meta")} == {"meta"}


# --- packing ---------------------------------------------------------------------------------------


def test_channels_are_ordered_even_then_odd() -> None:
    layout = Layout(flop, (2, 3))
    packed = torch.arange(10.0).view(2, 5)
    even, odd = layout.split(packed)
    assert even.tolist() == [[0, 1], [5, 6]]
    assert odd.tolist() == [[2, 3, 4], [7, 8, 9]]
    assert layout.merge((odd.narrow(1, 0, 2), packed[:, :3])).tolist() == [[2, 3, 0, 1, 2], [7, 8, 5, 6, 7]]


def test_channels_of_a_larger_irrep_are_ordered_component_then_copy() -> None:
    parts = Layout(octic, (1, 0, 2, 0, 3)).split(torch.arange(9))
    assert [part.tolist() for part in parts] == [[0], [], [1, 2], [], [[3, 4, 5], [6, 7, 8]]]


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


class RoundTrip(nn.Module):
    def forward(self, packed: Tensor) -> Tensor:
        layout = Layout(octic, (1, 0, 2, 0, 3))
        return layout.merge(layout.parts(layout.split(packed)))


def test_packing_can_be_traced() -> None:
    packed = random(2, 9)
    traced: nn.Module = torch.fx.symbolic_trace(RoundTrip())
    assert torch.equal(traced(packed), packed)


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


def test_a_flop_of_maps_and_tokens() -> None:
    layout = Layout(flop, (1, 1))
    even, odd = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    moved = layout.act(1, (even[None, :, :, None], odd[None, :, :, None]))
    assert [part.flatten().tolist() for part in moved] == [[2, 1, 4, 3], [-6, -5, -8, -7]]
    class_token = torch.tensor([9.0])
    tokens = [torch.cat([class_token, part.flatten()])[None, :, None] for part in (even, odd)]
    moved = layout.act(1, (tokens[0], tokens[1]), grid=(2, 2))
    assert [part.flatten().tolist() for part in moved] == [[9, 2, 1, 4, 3], [-9, -6, -5, -8, -7]]


def test_tokens_without_a_grid_stay_in_place() -> None:
    layout = Layout(flop, (2, 1))
    even, odd = feature(layout, 3, 4)
    equal(layout.act(1, (even, odd)), (even, -odd))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_acting_keeps_the_precision(dtype: torch.dtype) -> None:
    layout = Layout.regular(octic, 8)
    assert {part.dtype for part in layout.act(1, layout.random(2, dtype=dtype))} == {dtype}


# --- errors ----------------------------------------------------------------------------------------


def test_a_packed_tensor_of_another_width_is_refused() -> None:
    message = r"^Layout\(flop, even=3, odd=2\) has 5 channels, got a tensor of shape \(4, 6\)$"
    with pytest.raises(ValueError, match=message):
        Layout(flop, (3, 2)).split(torch.zeros(4, 6))


def zeros(*shapes: tuple[int, ...]) -> Feature:
    return tuple(torch.zeros(shape) for shape in shapes)


@pytest.mark.parametrize(
    ("layout", "parts", "needs"),
    [
        (Layout(flop, (3, 2)), zeros((4, 3)), "(..., 3), (..., 2), got (4, 3)"),
        (Layout(flop, (3, 2)), zeros((4, 3), (4, 2), (4, 1)), "got (4, 3), (4, 2), (4, 1)"),
        (Layout(flop, (3, 2)), zeros((4, 2), (4, 3)), "(..., 3), (..., 2), got (4, 2), (4, 3)"),
        (Layout(flop, (3, 2)), zeros((4, 3), (5, 2)), "got (4, 3), (5, 2)"),
        (Layout(flop, (3, 2)), zeros((4, 3), (2,)), "got (4, 3), (2,)"),
        (Layout(flop, (3, 2)), zeros((), ()), "got (), ()"),
        (
            Layout(rot90, (1, 1, 3)),
            zeros((4, 1), (4, 1), (4, 3)),
            "(..., 1), (..., 1), (..., 2, 3), got (4, 1), (4, 1), (4, 3)",
        ),
        (Layout(rot90, (1, 1, 3)), zeros((4, 1), (4, 1), (4, 3, 2)), "got (4, 1), (4, 1), (4, 3, 2)"),
        (Layout(rot90, (1, 1, 3)), zeros((1,), (1,), (3,)), "got (1,), (1,), (3,)"),
    ],
)
def test_parts_of_other_shapes_are_refused(layout: Layout, parts: Feature, needs: str) -> None:
    message = f"{re.escape(str(layout))} needs parts .*{re.escape(needs)}$"
    with pytest.raises(ValueError, match=f"^Block: {message}"):
        layout.parts(parts, "Block")
    for call in (layout.merge, partial(layout.act, 1)):
        with pytest.raises(ValueError, match=f"^feature: {message}"):
            call(parts)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.zeros(4, 5), "a tensor of shape (4, 5)"),
        ([[1.0], [2.0]], "[[1.0], [2.0]]"),
        ((torch.zeros(2), None), "(tensor([0., 0.]), None)"),
        (None, "None"),
    ],
    ids=["tensor", "list", "hole", "None"],
)
def test_what_is_not_a_tuple_of_tensors_is_refused(value: Any, got: str) -> None:
    layout = Layout(flop, (3, 2))
    message = f"feature: a feature of {layout} is a tuple of 2 tensors, got {got}"
    for call in (layout.parts, layout.merge, partial(layout.act, 1)):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            call(value)


@pytest.mark.parametrize(
    ("leading", "grid", "got"),
    [
        ((2, 5), (2, 3), "grid (2, 3) needs parts (B, N, ...) with N >= 6, got (2, 5, 1)"),
        ((6,), (2, 3), "grid (2, 3) needs parts (B, N, ...) with N >= 6, got (6, 1)"),
    ],
)
def test_tokens_that_do_not_fill_the_grid_are_refused(
    leading: tuple[int, ...], grid: tuple[int, int], got: str
) -> None:
    layout = Layout(flop, (1, 1))
    with pytest.raises(ValueError, match=f"^{re.escape(got)}$"):
        layout.act(1, feature(layout, *leading), grid)


def test_maps_need_a_group_that_moves_places() -> None:
    layout = Layout.regular(abstract("S3"), 6)
    with pytest.raises(ValueError, match=r"^acting on an image needs a group .*, got S3$"):
        layout.act(1, feature(layout, 1, 2, 2))
    assert len(layout.act(1, feature(layout, 1, 4))) == 3


@each_group
def test_all_elements_move_a_feature_differently(group: Group) -> None:
    layout = Layout.regular(group, group.order)
    orbit = [layout.merge(layout.act(g, feature(layout, 1))) for g in range(group.order)]
    for a, b in itertools.combinations(orbit, 2):
        assert not torch.allclose(a, b)


def test_small_slips_get_an_answer() -> None:
    """An empty feature, a scalar, a list of multiplicities, an infinite factor."""
    layout = Layout(flop, (1, 1))
    with pytest.raises(ValueError, match=r"needs parts \(\.\.\., 1\), \(\.\.\., 1\), got $"):
        layout.parts(())
    with pytest.raises(ValueError, match=r"2 channels, got a tensor of shape \(\)"):
        layout.split(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"2 irreps \(even, odd\), got multiplicities \[1, 1\]"):
        Layout(flop, [1, 1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="times inf is not a whole number"):
        layout * float("inf")
