"""Norms over places, pooling, upsampling and gates: against ordinary layers, under the group, and what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import timm.layers
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.forked_python import ForkedPython
from support.oracles import GROUPS, assert_same, layouts, regular_basis, spread
from support.two_ranks import environment, torchrun
from torch import Tensor, nn

from flopping import Group, Layout, flop, octic, trivial
from flopping import nn as fnn
from flopping.functional.pool import avg_pool2d
from flopping.functional.window import Window
from flopping.testing import assert_equivariant, randomize_, relative_error

PLAIN = Layout.regular(trivial, 16)

# With the trivial group: our layer, and the ordinary one on (B, C, H, W)
ORDINARY: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "Conv2d": (lambda: fnn.Conv2d(PLAIN, PLAIN * 2, 3, 2, 1, groups=2), lambda: nn.Conv2d(16, 32, 3, 2, 1, groups=2)),
    "1 x 1": (lambda: fnn.Conv2d(PLAIN, PLAIN * 2, 1, 2, bias=False), lambda: nn.Conv2d(16, 32, 1, 2, bias=False)),
    "BatchNorm": (lambda: fnn.BatchNorm(PLAIN), lambda: nn.BatchNorm2d(16)),
    "GroupNorm": (lambda: fnn.GroupNorm(PLAIN, 4), lambda: nn.GroupNorm(4, 16)),
    "MaxPool2d": (lambda: fnn.MaxPool2d(PLAIN, 3, 2, 1), lambda: nn.MaxPool2d(3, 2, 1)),
    "AvgPool2d": (
        lambda: fnn.AvgPool2d(PLAIN, 3, 2, 1, count_include_pad=False),
        lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    ),
    "Upsample": (
        lambda: fnn.Upsample(PLAIN, size=(9, 13), mode="bilinear"),
        lambda: nn.Upsample(size=(9, 13), mode="bilinear"),
    ),
    "SqueezeExcite": (lambda: fnn.SqueezeExcite(PLAIN), lambda: timm.layers.SqueezeExcite(16)),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ORDINARY)
def test_the_trivial_group_is_the_ordinary_layer(name: str, training: bool) -> None:
    """Weights by timm's names, outputs in evaluation and training, and the state that training leaves."""
    ours, ordinary = (randomize_(build().double()).train(training) for build in ORDINARY[name])
    state = {key.replace(".even", ""): key for key in ours.state_dict()}
    assert sorted(state) == sorted(ordinary.state_dict())
    weights = ordinary.state_dict()
    ours.load_state_dict({key: weights[name].view_as(ours.state_dict()[key]) for name, key in state.items()})
    x = torch.randn(3, 16, 7, 9, dtype=torch.float64)
    (y,) = ours((x.permute(0, 2, 3, 1),))
    torch.testing.assert_close(y.permute(0, 3, 1, 2), ordinary(x))
    for theirs, key in state.items():
        torch.testing.assert_close(ours.state_dict()[key].flatten(), ordinary.state_dict()[theirs].flatten())


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_batch_norm_written_out(group: Group) -> None:
    """Outputs and gradients in training, and running statistics, on packed channels."""
    layout = layouts(group)[1]
    norm = randomize_(fnn.BatchNorm(layout, eps=1e-3, momentum=0.2).double())
    before = {name: value.clone() for name, value in norm.named_buffers()}
    even = layout.multiplicities[0]
    x = layout.random(5, 4, 6, dtype=torch.float64)

    def moments(packed: Tensor) -> tuple[Tensor, Tensor]:
        mean = packed.mean((0, 1, 2)) * (torch.arange(layout.dim) < even)
        square = (packed - mean).square().mean((0, 1, 2))
        parts = layout.split(square)  # one variance per copy: components share it
        shared = [
            p if d == 1 else p.mean(-2, keepdim=True).expand_as(p)
            for p, d in zip(parts, layout.irrep_dims, strict=True)
        ]
        return mean, layout.merge(tuple(shared))

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        packed = layout.merge(x)
        mean, variance = moments(packed)
        shift = F.pad(norm.bias, (0, layout.dim - even))
        return (packed - mean) / (variance + 1e-3).sqrt() * spread(layout, norm.weight) + shift

    assert_same(norm, x, oracle, layout.merge)
    mean, variance = moments(layout.merge(x))
    count = 5 * 4 * 6
    torch.testing.assert_close(norm.running_mean, 0.8 * before["running_mean"] + 0.2 * mean[:even])
    for i, (irrep, part) in enumerate(zip(group.irreps, layout.split(variance), strict=True)):
        value = part if irrep.dim == 1 else part[0]
        wanted = value * count / (count - 1) if i == 0 else value  # the mean that was subtracted was estimated
        running = getattr(norm.running_var, irrep.name)
        torch.testing.assert_close(running, 0.8 * before[f"running_var.{irrep.name}"] + 0.2 * wanted)
    assert norm.num_batches_tracked == before["num_batches_tracked"] + 1


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_statistics_ignore_which_images_are_moved(group: Group) -> None:
    """In training, too: some samples of a batch are moved, and the result is that of the others unchanged."""
    layout = layouts(group)[1]
    norm = randomize_(fnn.BatchNorm(layout).double()).train()
    x = layout.random(4, 5, 5, dtype=torch.float64)
    y = norm(x)
    for g in range(1, group.order):
        moved = [torch.cat([a[:2], b[2:]]) for a, b in zip(x, layout.act(g, x), strict=True)]
        wanted = [torch.cat([a[:2], b[2:]]) for a, b in zip(y, layout.act(g, y), strict=True)]
        assert relative_error(norm(tuple(moved)), tuple(wanted)) < 1e-12


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_group_norm_written_out(group: Group) -> None:
    layout = layouts(group)[0] * 2
    norm = randomize_(fnn.GroupNorm(layout, 2, eps=1e-3).double())
    # which group each packed channel belongs to, and which component it is
    owner = layout.merge(tuple(torch.arange(2).repeat_interleave(s[-1] // 2).expand(s) for s in layout.part_shapes))
    component = torch.arange(sum(layout.irrep_dims)).repeat_interleave(
        torch.tensor([m for d, m in zip(layout.irrep_dims, layout.multiplicities, strict=True) for _ in range(d)])
    )

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        packed = layout.merge(x).clone()
        for g in range(2):
            for c in range(sum(layout.irrep_dims)):
                one = (owner == g) & (component == c)
                packed[..., one] = packed[..., one] - packed[..., one].mean((1, 2, 3), keepdim=True)
            square = packed[..., owner == g].square().mean((1, 2, 3), keepdim=True)
            packed[..., owner == g] = packed[..., owner == g] / (square + 1e-3).sqrt()
        return packed * spread(layout, norm.weight) + F.pad(norm.bias, (0, layout.dim - len(norm.bias)))

    assert_same(norm, layout.random(2, 3, 4, dtype=torch.float64), oracle, layout.merge)


@pytest.mark.parametrize("function", [None, F.gelu])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_max_pooling_written_out(group: Group, function: Callable[[Tensor], Tensor] | None) -> None:
    layout = layouts(group)[1]
    basis = regular_basis(layout)
    layer = fnn.MaxPool2d(layout, 3, 2, 1, function)

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        values = (layout.merge(x) @ basis.T).permute(0, 3, 1, 2)
        values = values if function is None else function(values)
        return F.max_pool2d(values, 3, 2, 1).permute(0, 2, 3, 1) @ basis

    x = layout.random(2, 5, 7, dtype=torch.float64)
    assert_same(layer, x, oracle, layout.merge)
    rows = fnn.GlobalPool(layout, "max")(x)
    torch.testing.assert_close(layout.merge(rows), (layout.merge(x) @ basis.T).amax((1, 2)) @ basis)


@given(
    group=st.sampled_from(GROUPS),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    places=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    copies=st.integers(0, 2),
    extra=st.integers(1, 2),
)
def test_any_pooling(group, kernel, stride, padding, places, copies, extra) -> None:
    """Odd and even sizes, and layouts without some irreps."""
    if 2 * padding > kernel:
        return
    size = [stride * (n - 1) + kernel - 2 * padding for n in places]
    if min(size) < 1:
        return
    layout = Layout.regular(group, copies * group.order + extra, extra=extra)
    x = layout.random(1, *size, dtype=torch.float64)
    for layer in (
        fnn.MaxPool2d(layout, kernel, stride, padding, torch.tanh),
        fnn.AvgPool2d(layout, kernel, stride, padding),
        fnn.Upsample(layout, stride, mode="bilinear"),
        fnn.Upsample(layout, stride),
        fnn.GlobalPool(layout),
        fnn.GlobalPool(layout, "max"),
        randomize_(fnn.SqueezeExcite(layout).double()),
        randomize_(fnn.BatchNorm(layout).double()),
    ):
        assert_equivariant(layer, x)
        layer.out_layout.parts(layer.eval()(x))  # all parts have the same places
    assert fnn.MaxPool2d(layout, kernel, stride, padding)(x)[0].shape[1:3] == places


def test_gates_read_all_parts() -> None:
    """An odd channel that grows changes the gates; one that changes its sign does not."""
    layout = Layout.regular(flop, 8)
    layer = randomize_(fnn.SqueezeExcite(layout))
    even, odd = layout.random(2, 5, 5)
    gated = layer((even, odd))[0]
    torch.testing.assert_close(layer((even, -odd))[0], gated)
    assert relative_error(layer((even, 3 * odd))[0], gated) > 1e-3


SMALL = Layout.regular(flop, 8)
REFUSED = {
    "max": (
        lambda: fnn.MaxPool2d(SMALL, 3, 2, 1)(SMALL.random(1, 56, 56)),
        r"MaxPool2d: .*width of 56.*\(55, 57\), or",
    ),
    "avg": (lambda: fnn.AvgPool2d(SMALL, 2)(SMALL.random(1, 57, 57)), r"AvgPool2d: .*width of 57.*\(56, 58\), or"),
    "octic": (lambda: fnn.AvgPool2d(Layout.regular(octic, 8), (2, 3)), "needs a square window"),
    "padding": (lambda: fnn.MaxPool2d(SMALL, 3, padding=2), "at most half of the window"),
    "regular": (lambda: fnn.MaxPool2d(Layout(flop, (1, 3)), 2), "MaxPool2d needs equal shares"),
    "kind": (lambda: fnn.GlobalPool(SMALL, "mean"), "got 'mean'"),
    "nearest": (
        lambda: fnn.Upsample(SMALL, size=7)(SMALL.random(1, 3, 3)),
        r"\(7, 7\) is no multiple of \(3, 3\).*or mode='bilinear'",
    ),
    "both": (lambda: fnn.Upsample(SMALL, 2, size=7), "a scale_factor or a size, got 2 and 7"),
    "mode": (lambda: fnn.Upsample(SMALL, 2, mode="bicubic"), "got 'bicubic'"),
    "factor": (lambda: fnn.Upsample(SMALL, 1.5), "a whole number, at least 1, got 1.5"),
    "dilation": (
        lambda: avg_pool2d(SMALL.random(1, 5, 5), SMALL, Window.of(3, dilation=2)),
        r"avg_pool2d .*got dilation=\(2, 2\)",
    ),
    "groups": (lambda: fnn.GroupNorm(SMALL, 3), "got num_groups=3"),
    "rows": (lambda: fnn.GroupNorm(SMALL, 2)(SMALL.random(3)), r"got \(3, 4\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    action, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        action()


def test_batch_norm_of_two_processes(forks: ForkedPython) -> None:
    """Outputs, gradients and running statistics of two processes are those of one with the whole batch."""
    command = torchrun("-m", "support.synchronized_norm", python=forks.executable)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
