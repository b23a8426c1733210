"""What single layers do beyond equivariance: hand-offs, positions, drops, precision."""

import pytest
import torch
from timm.models.vision_transformer import Block

from flopping import Layout, flop, functional, octic, trivial
from flopping import nn as fnn
from flopping.groups import Group, grid_groups
from flopping.models.convnext import ConvNeXtBlock
from flopping.testing import assert_equivariant, randomize_, relative_error

GROUPS = [group for group in grid_groups().values() if group.order > 1]


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("mean", "std"), [(0, 1), (30, 1), (0, 300)])
def test_layer_norm_in_half_precision(dtype: torch.dtype, mean: float, std: float) -> None:
    """Statistics don't overflow and lose no more than the ordinary layer's."""
    layout = Layout.regular(flop, 384)
    layer = fnn.LayerNorm(layout)
    x = tuple(((part * std) + mean).to(dtype) for part in layout.random(20))
    exact = fnn.LayerNorm(layout).double()(tuple(part.double() for part in x))
    layer.to(dtype)
    found = layer(x)
    assert {part.dtype for part in found} == {dtype}
    ordinary = torch.nn.LayerNorm(384, 1e-6, dtype=dtype)(layout.merge(x))
    allowed = relative_error(ordinary, torch.nn.LayerNorm(384, 1e-6).double()(layout.merge(x).double()))
    assert relative_error(found, exact) < 4 * max(allowed, torch.finfo(dtype).eps)


@pytest.mark.parametrize("group", [group for group in GROUPS if group.signs_only], ids=str)
def test_signs_pass_exactly(group: Group) -> None:
    """To the last bit, through what is no matrix product."""
    layout = Layout.regular(group, 8 * group.order + 3, extra=3)
    x = layout.random(5, 6)
    for layer in (fnn.Activation(layout), randomize_(fnn.LayerNorm(layout)), randomize_(fnn.Affine(layout))):
        for element in range(group.order):
            moved, expected = layer(layout.act(element, x)), layout.act(element, layer(x))
            assert all(torch.equal(a, b) for a, b in zip(moved, expected, strict=True))


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_called_for_the_trivial_irrep_alone(group: Group, training: bool) -> None:
    """The same as the first part of the whole, without the rest."""
    layout = Layout.regular(group, 4 * group.order + 1, extra=1)
    layers = [
        (fnn.Linear(layout, layout * 2), layout),
        (fnn.Mlp(layout, drop=0.5), layout),
        (fnn.LayerScale(layout, 0.5), layout.invariant_part),
        (fnn.Dropout(layout, 0.5), layout.invariant_part),
        (fnn.DropPath(layout, 0.5), layout.invariant_part),
    ]
    if group.signs_only:
        layers += [(ConvNeXtBlock(layout, drop_path=0.5), layout), (ConvNeXtBlock(layout, init_values=None), layout)]
    for layer, takes in layers:
        x = layout.random(2, 3, 3)
        randomize_(layer).train(training)
        torch.manual_seed(1)
        whole = layer(x)
        torch.manual_seed(1)
        even, *others = layer(x if takes == layout else functional.invariant_only(x), True)
        assert torch.equal(even, whole[0])
        assert all(part.shape[-1] == 0 for part in others)


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
