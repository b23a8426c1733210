"""Equivariance over a table of cases: every layer, every group it supports, odd and even sizes, random weights."""

import os
import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.forked_python import ForkedPython

from flopping import Group, Layout, flop, octic
from flopping import nn as fnn
from flopping.functional.grid import as_pair
from flopping.groups import grid_groups
from flopping.testing import assert_equivariant, randomize_
from flopping.testing.cases import LAYERS, Case, cases

ALL = list(cases())
GROUPS = [group for group in grid_groups().values() if group.order > 1]
DTYPES = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ALL, ids=str)
def test_equivariance(case: Case, dtype: torch.dtype) -> None:
    module, x = case.make(dtype)
    assert all((p != 0).any() for p in module.parameters())
    assert_equivariant(module, x, grid=case.grid)


def test_table_holds_every_layer() -> None:
    """A new layer is tested from the moment it is exported."""
    # a RotaryEmbed is part of an attention; the last two give up the group: test_oracles.py
    others = {"Module", "Sequential", "RotaryEmbed", "ToRegular", "Concat"}
    assert {name.partition(" ")[0] for name in LAYERS} | others == set(fnn.__all__)


def test_bfloat16_autocast(forks: ForkedPython) -> None:
    """In a child, because some machines advertise bfloat16 units that crash the process."""
    script = """
import torch
from flopping import flop, octic
from flopping.testing.cases import cases
from flopping.testing import TOLERANCES, equivariance_errors
worst = 0.0
for case in [*cases(flop), *cases(octic)]:
    if case.shape.name == "even":
        continue
    module, x = case.make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        worst = max(worst, *equivariance_errors(module, x, grid=case.grid).values())
print(worst)
assert 1e-5 < worst <= TOLERANCES[torch.bfloat16], worst
"""
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run([forks.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_network_gives_the_same_logits(group) -> None:
    """Positions, class token, blocks and head together; a rectangle where the group keeps rectangles."""
    size = 12 if group.swaps_axes else (12, 20)
    width = Layout.regular(group, 2 * 2 * group.order)
    grid = (3, 3) if group.swaps_axes else (3, 5)
    net = fnn.Sequential(
        fnn.PatchEmbed(width, size, 4),
        fnn.PosEmbed(width, grid),
        fnn.ClassToken(width),
        fnn.TransformerBlock(width, num_heads=2, drop_path=0.2, attn_drop=0.0),
        fnn.LayerNorm(width),
        fnn.InvariantHead(width, num_classes=7, pool="token"),
    )
    image = torch.randn(2, 3, *as_pair(size, "size"))
    assert_equivariant(randomize_(net), image)
    assert_equivariant(net.double(), image.double())


@given(group=st.sampled_from(GROUPS), data=st.data())
def test_any_layout(group, data) -> None:
    """Layers without a regular basis take any multiplicities, zeros included."""
    counts = st.lists(st.integers(0, 4), min_size=len(group.irreps), max_size=len(group.irreps))
    first, second = (Layout(group, (1 + c[0], *c[1:])) for c in (data.draw(counts), data.draw(counts)))
    leading = data.draw(st.lists(st.integers(1, 3), min_size=0, max_size=2))
    x = first.random(*leading, dtype=torch.float64)
    for layer in (fnn.Linear(first, second), fnn.LayerNorm(first), fnn.Affine(first), fnn.LayerScale(first)):
        assert_equivariant(randomize_(layer.double()), x)


@given(group=st.sampled_from(GROUPS), copies=st.integers(0, 3), extra=st.integers(0, 3), heads=st.integers(1, 3))
def test_any_shares_of_a_block(group, copies: int, extra: int, heads: int) -> None:
    if copies + extra == 0:
        return
    layout = Layout.regular(group, heads * (copies * group.order + extra), extra=heads * extra)
    block = randomize_(fnn.TransformerBlock(layout, heads, mlp_ratio=2, function=torch.tanh).double())
    assert_equivariant(block, layout.random(2, 6, dtype=torch.float64), grid=None if group.swaps_axes else (2, 3))


@given(
    group=st.sampled_from(GROUPS),
    h=st.integers(1, 4),
    w=st.integers(1, 4),
    p=st.integers(1, 5),
    q=st.integers(1, 5),
    chans=st.integers(1, 4),
)
def test_any_patches(group, h: int, w: int, p: int, q: int, chans: int) -> None:
    """Images may be rectangles for every group; patches only where rows stay rows."""
    q = p if group.swaps_axes else q
    embed = fnn.PatchEmbed(Layout.regular(group, group.order), patch_size=(p, q), in_chans=chans).double()
    assert_equivariant(randomize_(embed), torch.randn(2, chans, h * p, w * q, dtype=torch.float64))


@given(
    group=st.sampled_from(GROUPS), h=st.integers(1, 5), w=st.integers(1, 5),
    kernel=st.sampled_from([3, 5]), factor=st.integers(1, 3), copies=st.integers(1, 5), extra=st.integers(0, 2),
)  # fmt: skip
def test_any_maps(group, h: int, w: int, kernel: int, factor: int, copies: int, extra: int) -> None:
    layout = Layout.regular(group, copies * group.order + extra, extra=extra)
    maps = layout.random(1, h * factor, w * factor, dtype=torch.float64)
    assert_equivariant(randomize_(fnn.DepthwiseConv2d(layout, kernel).double()), maps)
    assert_equivariant(randomize_(fnn.Downsample(layout, layout * 2, factor).double()), maps)
    w = h if group.swaps_axes else w
    assert_equivariant(randomize_(fnn.TokenMix(layout, (h, w)).double()), layout.random(1, h * w, dtype=torch.float64))


def test_a_mirror_at_the_diagonal() -> None:
    """A group of one's own with 1-dimensional irreps that swaps rows and columns."""
    diagonal = Group(
        "diagonal", ("identity", "transpose"), flop.table, flop.irreps, tuple(octic.symmetries[i] for i in (0, 5))
    )
    layout = Layout.regular(diagonal, 8)
    assert_equivariant(randomize_(fnn.PatchEmbed(layout, patch_size=3).double()), torch.randn(1, 3, 6, 9).double())
    for layer in (fnn.PosEmbed, fnn.TokenMix, fnn.OrientedBias, fnn.Orient):
        assert_equivariant(randomize_(layer(layout, 3).double()), layout.random(1, 9, dtype=torch.float64))
    maps = layout.random(1, 4, 6, dtype=torch.float64)
    assert_equivariant(randomize_(fnn.DepthwiseConv2d(layout, 3).double()), maps)
    assert_equivariant(randomize_(fnn.Downsample(layout, layout).double()), maps)
