"""Convolution: multiply-adds by torch's counter, results of the dense layer, geometry that is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracles import GROUPS, check_dense_conv, layouts, multiply_adds, on_maps
from torch import nn

from flopping import Group, Layout, flipflop, flop, octic, rot90, rot180, trivial
from flopping import nn as fnn
from flopping.functional.window import mirrored_axes
from flopping.testing import assert_equivariant, randomize_, relative_error

KERNELS = [1, 2, 3, 4, 5, 7]


def padding_and_size(kernel: int, stride: int) -> tuple[int, int]:
    """A size that fits: odd for odd kernels, even for even ones."""
    return (kernel - 1) // 2, 9 if kernel % 2 else 10


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("group", "share"),
    [(flop, 1 / 2), (flipflop, 1 / 4), (rot180, 1 / 2), (trivial, 1), (rot90, 3 / 8), (octic, 3 / 16)],
    ids=str,
)
def test_multiply_adds(group: Group, share: float, kernel: int, stride: int) -> None:
    """By torch's own counter: exactly this share of the dense layer's, from features and from images."""
    padding, size = padding_and_size(kernel, stride)
    small, large = Layout.regular(group, 8), Layout.regular(group, 16)
    layer = fnn.Conv2d(small, large, kernel, stride, padding)
    x = small.random(2, size, size)
    dense = multiply_adds(layer.to_dense(), small.merge(x).permute(0, 3, 1, 2))
    assert dense > 0
    assert multiply_adds(layer, x) == dense * share
    if kernel > 1:  # a filter of one tap has no odd part
        stem, image = fnn.Conv2d(4, large, kernel, stride, padding), torch.randn(2, 4, size, size)
        exact = kernel % 2 == 0 or group.order < 3
        got, wanted = multiply_adds(stem, image), multiply_adds(stem.to_dense(), image) * share
        assert got == wanted if exact else got <= wanted * 1.1


@given(
    group=st.sampled_from(GROUPS),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    places=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    rest=st.integers(0, 2),
    copies=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    extra=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.integers(1, 2),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    gradients=st.booleans(),
)
def test_any_window(
    group, kernel, stride, padding, dilation, places, rest, copies, extra, groups, dtype, gradients
) -> None:
    """All groups, rectangles, odd and even sizes; where the group leaves an axis alone any size is taken.

    The form of a convolution depends on the type, and on whether gradients are recorded.
    """
    if group.swaps_axes:
        kernel, stride, padding, dilation = ((n, n) for n, _ in (kernel, stride, padding, dilation))
    size = [s * (n - 1) + 1 + d * (k - 1) - 2 * p for n, k, s, p, d in
            zip(places, kernel, stride, padding, dilation, strict=True)]  # fmt: skip
    size = [n + (0 if axis in mirrored_axes(group) else min(rest, stride[axis] - 1)) for axis, n in enumerate(size)]
    if min(size) < 1:
        return
    first, second = (
        Layout.regular(group, groups * (c * group.order + e), extra=groups * e)
        for c, e in zip(copies, extra, strict=True)
    )
    layer = randomize_(fnn.Conv2d(first, second, kernel, stride, padding, dilation, groups).to(dtype))
    x = first.random(2, *size, dtype=dtype)
    with torch.set_grad_enabled(gradients):
        assert_equivariant(layer, x)
        assert layer(x)[0].shape[1:3] == places
        dense = on_maps(layer.to_dense(), first.merge(x))
        assert relative_error(second.merge(layer(x)), dense) < (1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("width", [29, 30])
def test_one_row_on_large_maps(width: int, gradients: bool) -> None:
    """With gradients, maps wider than 29 places keep their rows. Oracle: the dense layer."""
    layout = Layout.regular(flop, 4)
    layer, x = fnn.Conv2d(layout, layout, 3, padding=2, dilation=2, groups=2), layout.random(1, 5, width)
    with torch.set_grad_enabled(gradients):
        dense = on_maps(layer.to_dense(), layout.merge(x))
        assert relative_error(layout.merge(layer(x)), dense) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_equivariance_from_images(group: Group, stride: int, kernel: int, dtype: torch.dtype) -> None:
    padding, size = padding_and_size(kernel, stride)
    layer = randomize_(fnn.Conv2d(3, Layout.regular(group, 8), kernel, stride, padding).to(dtype))
    assert_equivariant(layer, torch.randn(2, 3, size, size + 2, dtype=dtype))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", [1, 2, 3, (3, 4)])
@pytest.mark.parametrize("group", [trivial, *GROUPS], ids=str)
def test_gradients_of_the_dense_layer(group: Group, kernel, groups: int) -> None:
    kernel = 4 if group.swaps_axes and kernel == (3, 4) else kernel
    first, second = layouts(group)[1] * 2, layouts(group)[0] * 2
    layer = randomize_(fnn.Conv2d(first, second, kernel, padding=1, groups=groups).double())
    x = first.random(2, 4, 5, dtype=torch.float64)
    check_dense_conv(layer, x, second.merge, lambda conv, x: on_maps(conv, first.merge(x)))
    if groups == 2:
        weight = layer.to_dense().weight
        assert weight.count_nonzero() <= weight.numel() / 2


@pytest.mark.parametrize("kernel", [(1, 1), (2, 3), (3, 2), (3, 3)])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_every_equivariant_filter_is_one_of_ours(group: Group, kernel: tuple[int, int]) -> None:
    """There are as many parameters as equivariant filters, by characters: the mean of the traces over the group."""
    kernel = (kernel[1], kernel[1]) if group.swaps_axes else kernel
    first, second = Layout.regular(group, group.order + 2, extra=2), Layout.regular(group, 2 * group.order)
    layer = fnn.Conv2d(first, second, kernel, bias=False)
    taps = torch.arange(kernel[0] * kernel[1]).view(kernel)
    fixed = [(group.act(g, taps) == taps).sum() for g in range(group.order)]
    traces = [first.matrix(g).trace() * second.matrix(g).trace() * fixed[g] for g in range(group.order)]
    assert sum(p.numel() for p in layer.parameters()) == sum(traces) / group.order


def test_parts_without_channels_and_parts_that_nothing_reaches() -> None:
    invariant, regular = Layout.invariant(flop, 4), Layout.regular(flop, 4)
    even, odd = fnn.Conv2d(regular, invariant, 3, padding=1)(regular.random(2, 5, 5))
    assert (even.shape, odd.shape) == ((2, 5, 5, 4), (2, 5, 5, 0))
    even, odd = randomize_(fnn.Conv2d(invariant, regular, (3, 1)))(invariant.random(2, 5, 5))
    assert odd.shape == (2, 3, 5, 2)
    assert even.any()
    assert not odd.any()


@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize("group", [flop, flipflop, rot90, octic], ids=str)
@pytest.mark.parametrize("smooth", [False, True])
def test_outputs_start_as_those_of_the_dense_layer(group: Group, kernel: int, smooth: bool) -> None:
    torch.manual_seed(0)
    width = Layout.regular(group, 256)
    layer = fnn.Conv2d(width, width, kernel, bias=False)
    packed = torch.randn(4, 256, 2, 2) if smooth else torch.randn(4, 256, 12, 12)
    packed = nn.functional.interpolate(packed, size=12, mode="bilinear") if smooth else packed
    dense = nn.Conv2d(256, 256, kernel, bias=False)
    ours = layer(width.split(packed.permute(0, 2, 3, 1)))
    for part in [width.merge(ours)] if smooth else ours:
        assert 0.8 < part.std() / dense(packed).std() < 1.25


SMALL = Layout.regular(flop, 8)
REFUSED = {
    "odd kernel, even width": (
        lambda: fnn.Conv2d(SMALL, SMALL, 3, 2, 1)(SMALL.random(1, 56, 56)),
        r"on a width of 56: flop .*\(55, 57\), or another kernel \(kernel_size=4, padding=1\)",
    ),
    "even kernel, odd width": (
        lambda: fnn.Conv2d(SMALL, SMALL, 2, 2)(SMALL.random(1, 57, 57)),
        r"on a width of 57: flop .*\(56, 58\), or another kernel \(kernel_size=3, padding=1\)",
    ),
    "shortcut": (
        lambda: fnn.Conv2d(3, SMALL, 1, 2)(torch.randn(1, 3, 57, 224)),
        r"on a width of 224: .*\(223, 225\), or another kernel \(kernel_size=2, padding=0\)",
    ),
    "height": (
        lambda: fnn.Conv2d(3, Layout.regular("flip", 8), 7, 2, 3)(torch.randn(1, 3, 224, 225)),
        r"on a height of 224: flip .*\(223, 225\), or another kernel \(kernel_size=8, padding=3\)",
    ),
    "rotations": (lambda: fnn.Conv2d(3, Layout.regular(octic, 8), (3, 5)), "octic turns rows .*square window, got"),
    "groups": (lambda: fnn.Conv2d(SMALL, SMALL, 3, groups=3), r"got groups=3, Layout\(flop, even=4, odd=4\)"),
    "padding": (lambda: fnn.Conv2d(SMALL, SMALL, 3, padding=-1), "at least 0, .*got -1"),
    "kernel": (lambda: fnn.Conv2d(SMALL, SMALL, 0), "kernel_size is a positive number .*got 0"),
    "nothing to read": (lambda: fnn.Conv2d(3, Layout(flop, (0, 4)), 1, bias=False), r"no filter of \(1, 1\) taps"),
    "bias": (lambda: fnn.Conv2d(SMALL, Layout(flop, (0, 4)), 3), "a bias needs even channels"),
    "image": (lambda: fnn.Conv2d(3, SMALL, 3)(torch.randn(1, 4, 9, 9)), r"\(B, 3, H, W\), got shape \(1, 4, 9, 9\)"),
    "map": (lambda: fnn.Conv2d(SMALL, SMALL, 3)(SMALL.random(2, 9)), r"\(B, H, W, 4\).*got \(2, 9, 4\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    action, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        action()


@pytest.mark.parametrize("size", [55, 57])
def test_the_remedies_work(size: int) -> None:
    """What the message above says: another size, or another kernel."""
    assert_equivariant(randomize_(fnn.Conv2d(SMALL, SMALL, 3, 2, 1)), SMALL.random(1, 5, size))
    assert_equivariant(randomize_(fnn.Conv2d(SMALL, SMALL, 4, 2, 1)), SMALL.random(1, 5, 56))


def test_an_asymmetric_stride_would_break_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why it is refused."""
    monkeypatch.setattr("flopping.functional.window.Window.check", lambda *_: None)
    with pytest.raises(AssertionError, match="not equivariant under flop"):
        assert_equivariant(randomize_(fnn.Conv2d(SMALL, SMALL, 3, 2, 1)), SMALL.random(1, 5, 8))


def test_a_mirror_at_the_diagonal() -> None:
    """A group of one's own with 1-dimensional irreps that swaps rows and columns; any size fits its stride."""
    diagonal = Group(
        "diagonal", ("identity", "transpose"), flop.table, flop.irreps, tuple(octic.symmetries[i] for i in (0, 5))
    )
    layout = Layout.regular(diagonal, 8)
    layer = randomize_(fnn.Conv2d(layout, layout, 3, 2, 1).double())
    assert_equivariant(layer, layout.random(1, 6, 7, dtype=torch.float64))
    with pytest.raises(ValueError, match="needs a square window"):
        fnn.Conv2d(layout, layout, (3, 5))


@pytest.mark.parametrize("group", [trivial, flop, flipflop, octic], ids=str)
@pytest.mark.parametrize(("kernel", "stride", "size"), [(4, 2, 16), (3, 1, 15)])
def test_whitened_filters(group: Group, kernel: int, stride: int, size: int) -> None:
    """On images and all their images under the group outputs have covariance one: filters and their negatives."""
    layout = Layout.regular(group, 32)
    layer = fnn.Conv2d(3, layout, kernel, stride, bias=False, dtype=torch.float64)
    image = torch.randn(64, 3, size, size, dtype=torch.float64).cumsum(-1).cumsum(-2)  # neighbours are correlated
    image = torch.cat([symmetry(image) for symmetry in group.symmetries])
    untouched = {name: weight.clone() for name, weight in layer.weight.items()}
    parts = layer.whiten_(image, eps=0.0)(image)
    for name, part, dim in zip(layer.names, parts, layout.irrep_dims, strict=True):
        weight = layer.weight.get(name)
        if weight is None:  # no filter leads from images to this irrep
            continue
        filters = min(weight.shape[0], weight[0].numel())
        values = (part if dim == 1 else part[..., 0, :]).flatten(0, 2)[:, :filters]
        covariance = values.T.cov(correction=0)
        torch.testing.assert_close(covariance, torch.eye(filters, dtype=torch.float64), rtol=0, atol=1e-6)
        negated = weight[filters : 2 * filters]
        assert torch.equal(negated, -weight[: len(negated)])
        assert torch.equal(weight[2 * filters :], untouched[name][2 * filters :])
    assert_equivariant(layer, image[:2])


def test_what_whitening_refuses() -> None:
    image, layout = torch.randn(2, 4, 8, 8), Layout.regular(flop, 8)
    with pytest.raises(ValueError, match="groups=2"):
        fnn.Conv2d(4, layout, 2, groups=2).whiten_(image)
    with pytest.raises(ValueError, match="rot90"):
        fnn.Conv2d(4, Layout.regular(rot90, 8), 2).whiten_(image)
    with pytest.raises(ValueError, match="width of 8"):
        fnn.Conv2d(4, layout, 3, stride=2, padding=1).whiten_(image)
    with pytest.raises(ValueError, match="variance 0 for even"):
        fnn.Conv2d(4, layout, 2).whiten_(torch.ones(2, 4, 8, 8))
    with pytest.raises(ValueError, match="-1"):
        fnn.Conv2d(4, layout, 2).whiten_(image, eps=-1)
