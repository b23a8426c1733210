"""Equivariance over a table of cases: every layer, every group it supports, odd and even sizes, random weights."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Attention, Block
from torch import nn

from flopping import Group, Layout, flipflop, flop, get_group, octic, rot90, rot180, trivial
from flopping import nn as fnn
from flopping.cases import LAYERS, Case, cases, shapes
from flopping.grid import as_pair
from flopping.groups import grid_groups
from flopping.testing import assert_equivariant, equivariance_errors, randomize_, relative_error, run

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
    others = {"Module", "Sequential", "ToRegular"}  # the last gives up the group: a test of its own below
    assert set(LAYERS) | others == set(fnn.__all__)


@pytest.mark.parametrize("name", [name for name, (_, signs_only, _) in LAYERS.items() if signs_only])
@pytest.mark.parametrize("group", [rot90, octic], ids=str)
def test_groups_that_are_not_supported_are_refused(name: str, group) -> None:
    with pytest.raises(ValueError, match=rf"{name} supports .*flop, flip, rot180, flipflop.*got {group} with E"):
        LAYERS[name][2](shapes(group)[0])


def test_bfloat16_autocast() -> None:
    """In a child, because some machines advertise bfloat16 units that crash the process."""
    script = """
import torch
from flopping.cases import cases
from flopping.testing import TOLERANCES, equivariance_errors
worst = 0.0
for case in cases():
    module, x = case.make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        worst = max(worst, *equivariance_errors(module, x, grid=case.grid).values())
print(worst)
assert 1e-5 < worst <= TOLERANCES[torch.bfloat16], worst
"""
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class _OnMaps(nn.Module):
    """An ordinary convolution on packed maps (B, H, W, C)."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class _Positions(nn.Module):
    def __init__(self, places: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(places, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


ORDINARY = {
    "Linear": (lambda: nn.Linear(16, 16), (5, 16)),
    "bias alone": (lambda: _Positions(1, 16), (5, 16)),
    "LayerNorm": (lambda: nn.LayerNorm(16), (5, 16)),
    "GELU": (lambda: nn.GELU(), (5, 16)),
    "Mlp": (lambda: Mlp(16), (5, 16)),
    "Attention": (lambda: Attention(16, num_heads=2), (2, 6, 16)),
    "Block": (lambda: Block(16, num_heads=2), (2, 6, 16)),
    "positions": (lambda: _Positions(6, 16), (2, 6, 16)),
    "depthwise": (lambda: _OnMaps(nn.Conv2d(16, 16, 3, padding=1, groups=16)), (2, 4, 6, 16)),
    "downsample": (lambda: _OnMaps(nn.Conv2d(16, 16, 2, 2)), (2, 4, 6, 16)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_layers_fail(name: str) -> None:
    """The tester is tested: it must find the symmetry missing where it is missing."""
    build, shape = ORDINARY[name]
    layout = Layout.regular(flop, 16)
    errors = equivariance_errors(
        randomize_(build()),
        torch.randn(shape),
        in_layout=layout,
        out_layout=layout,
        grid=(2, 3) if len(shape) == 3 else None,
    )
    assert errors["flop"] > 1e-2
    with pytest.raises(AssertionError, match="not equivariant under flop"):
        assert_equivariant(
            randomize_(build()),
            torch.randn(shape),
            in_layout=layout,
            out_layout=layout,
            grid=(2, 3) if len(shape) == 3 else None,
        )


def test_ordinary_patch_embedding_fails() -> None:
    layout = Layout.regular(flop, 16)
    with pytest.raises(AssertionError, match="not equivariant under flop"):
        assert_equivariant(
            randomize_(PatchEmbed(8, 4, 3, 16)), torch.randn(2, 3, 8, 8), group=flop, out_layout=layout, out_grid=(2, 2)
        )


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


@pytest.mark.parametrize("large", GROUPS, ids=str)
@pytest.mark.parametrize("small", GROUPS, ids=str)
def test_restriction(large, small) -> None:
    layout = Layout.regular(large, 2 * large.order + 1, extra=1)
    if not set(small.symmetries) <= set(large.symmetries):
        with pytest.raises(ValueError, match=f"{small} is not a subgroup of {large}"):
            fnn.Restrict(layout, small)
        return
    layer = fnn.Restrict(layout, small)
    assert layer.out_layout.dim == layout.dim
    assert layer.out_layout.copies == 2 * large.order // small.order
    x = layout.random(3, dtype=torch.float64)
    assert_equivariant(layer, x)
    norms = [sum(part.square().sum() for part in feature) for feature in (x, layer(x))]
    torch.testing.assert_close(*norms)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_to_regular_is_permuted(group) -> None:
    """A group element moves block k of the regular basis to block g k and leaves the extra channels alone."""
    layout = Layout.regular(group, 3 * group.order + 2, extra=2)
    layer, x = fnn.ToRegular(layout), layout.random(5, dtype=torch.float64)
    (y,) = layer(x)
    blocks = y[:, : 3 * group.order].unflatten(1, (group.order, 3))
    for g in range(group.order):
        (moved,) = layer(layout.act(g, x))
        expected = torch.empty_like(blocks)
        for k in range(group.order):
            expected[:, group.product(g, k)] = blocks[:, k]
        torch.testing.assert_close(moved[:, : 3 * group.order], expected.flatten(1))
        torch.testing.assert_close(moved[:, 3 * group.order :], y[:, 3 * group.order :])
    with pytest.raises(ValueError, match="nothing to check: ToRegular claims the group trivial"):
        assert_equivariant(layer, x)


def test_hybrid_basis_of_flop() -> None:
    even, odd = torch.randn(2, 3), torch.randn(2, 3)
    (y,) = fnn.ToRegular(Layout(flop, (3, 3)))((even, odd))
    torch.testing.assert_close(y, torch.cat([even + odd, even - odd], -1) / 2**0.5)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_positions_of_another_grid(group) -> None:
    old, new = ((4, 4), (7, 7)) if group.swaps_axes else ((4, 6), (7, 5))
    layout = Layout.regular(group, 2 * group.order)
    embed = randomize_(fnn.PosEmbed(layout, old).double())

    class At(fnn.Module):
        def forward(self, x):
            return embed.at(x, new)

    tokens = layout.random(2, new[0] * new[1], dtype=torch.float64)
    at = At(layout, layout)
    before = at(tokens)
    assert_equivariant(at, tokens, grid=new)
    embed.resize_(new)
    assert embed.grid_size == new
    torch.testing.assert_close(embed(tokens), before)


def test_resizing_to_the_same_grid_keeps_positions() -> None:
    embed = randomize_(fnn.PosEmbed(Layout.regular(octic, 16), 5).double())
    before = {name: value.clone() for name, value in embed.state_dict().items()}
    torch.testing.assert_close(dict(embed.resize_(5).state_dict()), before)


def test_class_token_is_zero_on_odd() -> None:
    layout = Layout.regular(flop, 8)
    token = randomize_(fnn.ClassToken(layout))
    even, odd = token(layout.random(2, 6))
    assert [name for name, _ in token.named_parameters()] == ["token"]
    torch.testing.assert_close(even[:, 0], token.token.expand(2, 4))
    assert not odd[:, 0].any()


def test_drop_path_drops_whole_samples() -> None:
    layout = Layout.regular(octic, 16)
    x = tuple(torch.ones_like(part) for part in layout.random(400, 3))
    torch.manual_seed(0)
    kept = [part.flatten(1) for part in fnn.DropPath(layout, 0.25)(x)]
    assert all((part == part[:, :1]).all() and (part[:, 0] == kept[0][:, 0]).all() for part in kept)
    assert kept[0].unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.65 < (kept[0][:, 0] > 0).float().mean() < 0.85


def test_dropout_spares_no_component() -> None:
    layout = Layout.regular(octic, 16)
    *_, plane = fnn.Dropout(layout, 0.5)(tuple(torch.ones_like(p) for p in layout.random(50)))
    assert (plane[:, 0] == plane[:, 1]).all()
    assert set(plane.unique().tolist()) == {0.0, 2.0}


PLAIN = {"Activation", "Dropout", "DropPath", "AbsToInvariant", "Restrict"}  # layers without parameters


@pytest.mark.parametrize("case", [c for c in ALL if c.shape.name == "odd" and c.layer not in PLAIN], ids=str)
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    module, x = case.make()
    y = module.eval()(x)
    parts = y if isinstance(y, tuple) else (y,)
    sum(part.square().sum() for part in parts).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


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
    group=st.sampled_from([g for g in GROUPS if g.signs_only]), h=st.integers(1, 5), w=st.integers(1, 5),
    kernel=st.sampled_from([3, 5]), factor=st.integers(1, 3), copies=st.integers(1, 5), extra=st.integers(0, 2),
)  # fmt: skip
def test_any_maps(group, h: int, w: int, kernel: int, factor: int, copies: int, extra: int) -> None:
    layout = Layout.regular(group, copies * group.order + extra, extra=extra)
    maps = layout.random(1, h * factor, w * factor, dtype=torch.float64)
    assert_equivariant(randomize_(fnn.DepthwiseConv2d(layout, kernel).double()), maps)
    assert_equivariant(randomize_(fnn.Downsample(layout, layout * 2, factor).double()), maps)
    assert_equivariant(randomize_(fnn.TokenMix(layout, (h, w)).double()), layout.random(1, h * w, dtype=torch.float64))


def test_trivial_group_is_the_ordinary_network() -> None:
    """timm's block with timm's weights, key by key."""
    layout = Layout.regular(trivial, 32)
    ours = fnn.TransformerBlock(layout, 4, qkv_bias=True, init_values=1.0)
    theirs = randomize_(Block(32, 4, qkv_bias=True, init_values=1.0))
    renamed = {}
    for name, value in theirs.state_dict().items():
        stem, leaf = name.rsplit(".", 1)
        if "norm" in stem or leaf == "gamma":
            renamed[f"{stem}.{leaf}" if leaf == "bias" else f"{stem}.{leaf}.even"] = value
        else:
            renamed[f"{stem}.even.{leaf}"] = value
    ours.load_state_dict(renamed)
    x = torch.randn(2, 9, 32)
    torch.testing.assert_close(ours((x,))[0], theirs(x))


@pytest.mark.parametrize("group", [trivial, flop, flipflop, rot180, octic], ids=str)
def test_design_example(group) -> None:
    """The same lines with another group give another network."""
    width = Layout.regular(group, 32)
    net = fnn.Sequential(
        fnn.PatchEmbed(width, img_size=32, patch_size=8),
        *(fnn.TransformerBlock(width, num_heads=2) for _ in range(2)),
        fnn.LayerNorm(width),
        fnn.InvariantHead(width, num_classes=10),
    )
    image = torch.randn(2, 3, 32, 32)
    randomize_(net)
    if group.order > 1:
        assert_equivariant(net, image)
    errors = {
        name: relative_error(run(net, octic.act(element, image)), run(net, image))
        for element, name in enumerate(octic.elements)
    }
    assert {name for name, error in errors.items() if error < 1e-5} == set(get_group(group).elements)


def test_checker_leaves_the_module_alone() -> None:
    """It runs in eval mode, where dropped tokens don't matter, and puts the mode of every layer back."""
    layout = Layout.regular(flop, 8)
    block = randomize_(fnn.TransformerBlock(layout, 2, proj_drop=0.5, attn_drop=0.5, drop_path=0.5))
    block.mlp.eval()
    assert_equivariant(block, layout.random(2, 6), grid=(2, 3))
    assert block.training
    assert block.attn.training
    assert not block.mlp.training


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_drops_in_training_follow_the_action_on_channels(group) -> None:
    """With the same random numbers; places are not moved, because masks don't move with them."""
    layout = Layout.regular(group, 4 * group.order)
    x = layout.random(6, 5, dtype=torch.float64)
    for layer in (fnn.Dropout(layout, 0.4), fnn.DropPath(layout, 0.4)):
        for element in range(group.order):
            results = []
            for value in (x, layout.act(element, x)):
                torch.manual_seed(3)
                results.append(layer(value))
            assert relative_error(results[1], layout.act(element, results[0])) < 1e-12
            assert any((part == 0).any() for part in results[0])


@pytest.mark.parametrize("asked", [flop, flipflop, octic], ids=str)
def test_another_group_than_the_layouts(asked) -> None:
    """A subgroup may be checked on its own; an element that can't act on the feature is named."""
    layout = Layout.regular(octic, 16)
    layer = randomize_(fnn.Linear(layout, layout))
    assert set(equivariance_errors(layer, layout.random(3), group=asked)) == set(asked.elements[1:])
    assert_equivariant(layer, layout.random(3), group=asked)
    small = Layout.regular(flop, 16)
    with pytest.raises(ValueError, match=r"rot90 of octic has no action on Layout\(flop"):
        assert_equivariant(fnn.LayerNorm(small), small.random(3), group=octic)


def test_every_parameter_of_a_network_gets_a_gradient() -> None:
    """Also of the last norm, whose odd channels nobody would read: it gives even ones only."""
    width = Layout.regular(flop, 16)
    norm = fnn.LayerNorm(width, invariant_only=True)
    net = fnn.Sequential(
        fnn.PatchEmbed(width, 8, 4),
        fnn.PosEmbed(width, 2),
        fnn.ClassToken(width),
        fnn.TransformerBlock(width, 2, qkv_bias=True, init_values=0.1),
        norm,
        fnn.InvariantHead(norm.out_layout, 3),
    )
    net(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []
    both = randomize_(fnn.LayerNorm(width))
    norm.load_state_dict({name: value for name, value in both.state_dict().items() if "odd" not in name})
    x = width.random(2, 5)
    torch.testing.assert_close(norm(x)[0], both(x)[0])
    assert norm(x)[1].shape == (2, 5, 0)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_linear_starts_with_the_same_spread_in_every_part(group) -> None:
    """As an ordinary layer does for the width of the block: 1/sqrt(3) of the input's."""
    layout = Layout.regular(group, 64 * group.order)
    torch.manual_seed(0)
    out = fnn.Linear(layout, layout, bias=False)(layout.random(200))
    assert [part.std().item() for part in out] == pytest.approx([3**-0.5] * len(out), rel=0.1)


@pytest.mark.parametrize("case", [c for c in ALL if c.shape.name == "odd" and c.layer not in PLAIN], ids=str)
def test_parameters_can_be_started_again(case: Case) -> None:
    """`reset_parameters` fills what `to_empty` left open, in every layer that owns parameters."""
    module, _ = case.make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(float("nan"))
    for layer in module.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    assert all(p.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("mean", "std"), [(0, 1), (30, 1), (0, 300)])
def test_layer_norm_in_half_precision(dtype: torch.dtype, mean: float, std: float) -> None:
    """Statistics don't overflow and lose no more than the ordinary layer's."""
    layout = Layout.regular(flop, 384)
    layer = fnn.LayerNorm(layout)
    x = tuple(((part * std) + mean).to(dtype) for part in layout.random(20))
    exact = fnn.LayerNorm(layout).double()(tuple(part.double() for part in x))
    layer.to(dtype)
    for compiling in (False, True):
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
            error = relative_error(layer(x), exact)
        ordinary = torch.nn.LayerNorm(384, 1e-6, dtype=dtype)(layout.merge(x))
        allowed = relative_error(ordinary, torch.nn.LayerNorm(384, 1e-6).double()(layout.merge(x).double()))
        assert error < 4 * max(allowed, torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_positions_interpolate_in_half_precision(dtype: torch.dtype) -> None:
    embed = randomize_(fnn.PosEmbed(Layout.regular(flop, 8), 4)).requires_grad_(False)
    exact = embed.table((6, 5))
    embed.to(dtype)
    assert relative_error(embed.table((6, 5)), exact) < 2e-2
    assert not any(p.requires_grad for p in embed.resize_((6, 5)).parameters())


def test_parts_keep_one_precision_under_autocast() -> None:
    layout = Layout.regular(flop, 8)
    x = tuple(part.bfloat16() for part in layout.random(2, 5))
    assert {part.dtype for part in fnn.ClassToken(layout)(x)} == {torch.float32}


def test_head_without_classes_gives_pooled_features() -> None:
    layout = Layout.regular(flop, 8)
    x = layout.random(2, 5)
    torch.testing.assert_close(fnn.InvariantHead(layout, 0)(x), x[0].mean(1))
    maps = layout.random(2, 3, 4)
    torch.testing.assert_close(fnn.InvariantHead(layout, 0)(maps), maps[0].mean((1, 2)))


def test_a_mirror_at_the_diagonal() -> None:
    """A group of one's own with 1-dimensional irreps that swaps rows and columns."""
    diagonal = Group(
        "diagonal", ("identity", "transpose"), flop.table, flop.irreps, tuple(octic.symmetries[i] for i in (0, 5))
    )
    layout = Layout.regular(diagonal, 8)
    assert_equivariant(randomize_(fnn.PatchEmbed(layout, patch_size=3).double()), torch.randn(1, 3, 6, 9).double())
    assert_equivariant(randomize_(fnn.PosEmbed(layout, 3).double()), layout.random(1, 9, dtype=torch.float64))
    maps = layout.random(1, 4, 6, dtype=torch.float64)
    assert_equivariant(randomize_(fnn.DepthwiseConv2d(layout, 3).double()), maps)
    assert_equivariant(randomize_(fnn.Downsample(layout, layout).double()), maps)
    with pytest.raises(ValueError, match="keeps rows and columns apart, got diagonal"):
        fnn.TokenMix(layout, 3)
