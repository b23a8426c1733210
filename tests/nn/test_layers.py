"""What single layers promise beyond the laws that all of them share."""

from collections.abc import Callable

import pytest
import torch
from support.oracles import GROUPS, SIGNED, multiply_adds
from timm.models.vision_transformer import Block
from torch import nn

from flopping import Layout, flipflop, flop, octic, rot90, rot180, trivial
from flopping import nn as fnn
from flopping.groups import Group
from flopping.testing import assert_equivariant, randomize_, relative_error

each_group = pytest.mark.parametrize("group", GROUPS, ids=str)

# --- linear layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "share"), [(flop, 1 / 2), (rot180, 1 / 2), (flipflop, 1 / 4), (rot90, 3 / 8), (octic, 3 / 16)], ids=str
)
def test_linear_layers_cost_their_share(group: Group, share: float) -> None:
    """By torch's own counter; patch embedding, downsampling and token mixing no more than any other linear layer."""
    layout = Layout.regular(group, 48)
    dense = multiply_adds(nn.Linear(48, 96), torch.randn(5, 48))
    assert dense == 5 * 48 * 96
    assert multiply_adds(fnn.Linear(layout, layout * 2), layout.random(5)) == dense * share
    embed, image = fnn.PatchEmbed(layout, patch_size=4), torch.randn(2, 3, 8, 16)
    assert multiply_adds(embed, image) == multiply_adds(embed.to_dense(), image) * share
    down, maps = fnn.Downsample(layout, layout * 2), layout.random(2, 4, 8)
    packed = layout.merge(maps).permute(0, 3, 1, 2)
    assert multiply_adds(down, maps) == multiply_adds(down.to_dense(), packed) * share
    mix, tokens = fnn.TokenMix(layout, 8), layout.random(2, 64)
    places = mix.fold.layout.linear_cost(mix.fold.layout)
    assert multiply_adds(mix, tokens) == 2 * 48 * places.multiply_adds
    # the diagonals of the square make irreps of octic unequal: 784 multiply-adds for 64 places instead of 768
    assert places.ratio == (share if group != octic else 784 / 64**2)


@each_group
def test_linear_starts_with_the_same_spread_in_every_part(group: Group) -> None:
    """As an ordinary layer does for the width of the block: 1/sqrt(3) of the input's."""
    layout = Layout.regular(group, 64 * group.order)
    torch.manual_seed(0)
    out = fnn.Linear(layout, layout, bias=False)(layout.random(200))
    assert [part.std().item() for part in out] == pytest.approx([3**-0.5] * len(out), rel=0.1)


# --- norms and blocks ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("mean", "std"), [(0, 1), (30, 1), (0, 300)])
def test_layer_norm_in_half_precision(dtype: torch.dtype, mean: float, std: float) -> None:
    """Statistics don't overflow and lose no more than the ordinary layer's."""
    layout = Layout.regular(flop, 384)
    x = tuple(((part * std) + mean).to(dtype) for part in layout.random(20))
    exact = fnn.LayerNorm(layout).double()(tuple(part.double() for part in x))
    found = fnn.LayerNorm(layout).to(dtype)(x)
    assert {part.dtype for part in found} == {dtype}
    ordinary = torch.nn.LayerNorm(384, 1e-6, dtype=dtype)(layout.merge(x))
    allowed = relative_error(ordinary, torch.nn.LayerNorm(384, 1e-6).double()(layout.merge(x).double()))
    assert relative_error(found, exact) < 4 * max(allowed, torch.finfo(dtype).eps)


@pytest.mark.parametrize("group", SIGNED, ids=str)
def test_signs_pass_exactly(group: Group) -> None:
    """To the last bit, through what is no matrix product."""
    layout = Layout.regular(group, 8 * group.order + 3, extra=3)
    x = layout.random(5, 6)
    for layer in (fnn.Activation(layout), randomize_(fnn.LayerNorm(layout)), randomize_(fnn.Affine(layout))):
        for element in range(group.order):
            moved, expected = layer(layout.act(element, x)), layout.act(element, layer(x))
            assert all(torch.equal(a, b) for a, b in zip(moved, expected, strict=True))


INVARIANT_ONLY = {
    "LayerNorm": lambda layout, **args: fnn.LayerNorm(layout, **args),
    "TransformerBlock": lambda layout, **args: fnn.TransformerBlock(layout, 2, init_values=1.0, **args),
}


@pytest.mark.parametrize("name", INVARIANT_ONLY)
def test_invariant_only_is_the_even_half_of_the_whole(name: str) -> None:
    layout, build = Layout.regular(flop, 16), INVARIANT_ONLY[name]
    whole, part = randomize_(build(layout).double()), build(layout, invariant_only=True).double()
    part.load_state_dict({k: v for k, v in whole.state_dict().items() if k in part.state_dict()})
    x = layout.random(2, 5, dtype=torch.float64)
    even, none = part(x)
    torch.testing.assert_close(even, whole(x)[0])
    assert none.shape == (2, 5, 0)
    assert part.out_layout == layout.invariant_part


def test_trivial_group_is_timms_block() -> None:
    """With timm's weights, key by key."""
    ours = fnn.TransformerBlock(Layout.regular(trivial, 32), 4, qkv_bias=True, init_values=1.0)
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


# --- random drops ----------------------------------------------------------------------------------


def test_what_is_dropped_together() -> None:
    """Whole samples by DropPath; all components of a copy by Dropout."""
    layout = Layout.regular(octic, 16)
    torch.manual_seed(0)
    ones = tuple(torch.ones_like(part) for part in layout.random(400, 3))
    kept = [part.flatten(1) for part in fnn.DropPath(layout, 0.25)(ones)]
    assert all((part == part[:, :1]).all() and (part[:, 0] == kept[0][:, 0]).all() for part in kept)
    assert kept[0].unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.65 < (kept[0][:, 0] > 0).float().mean() < 0.85
    *_, plane = fnn.Dropout(layout, 0.5)(ones)
    assert (plane[..., 0, :] == plane[..., 1, :]).all()
    assert set(plane.unique().tolist()) == {0.0, 2.0}


@each_group
def test_drops_in_training_follow_the_action_on_channels(group: Group) -> None:
    """With the same random numbers; places are not moved, because masks don't move with them."""
    layout = Layout.regular(group, 4 * group.order)
    x = layout.random(6, 5, dtype=torch.float64)

    def dropped(layer: Callable[..., tuple[torch.Tensor, ...]], value: object) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        return layer(value)

    for layer in (fnn.Dropout(layout, 0.4), fnn.DropPath(layout, 0.4)):
        assert any((part == 0).any() for part in dropped(layer, x))
        for element in range(group.order):
            expected = layout.act(element, dropped(layer, x))
            assert relative_error(dropped(layer, layout.act(element, x)), expected) < 1e-12


# --- hand-offs and the head ------------------------------------------------------------------------


@pytest.mark.parametrize("large", GROUPS, ids=str)
@pytest.mark.parametrize("small", GROUPS, ids=str)
def test_restriction(large: Group, small: Group) -> None:
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


@each_group
def test_to_regular_is_permuted(group: Group) -> None:
    """A group element moves block k of the regular basis to block g k and leaves the extra channels alone."""
    layout = Layout.regular(group, 3 * group.order + 2, extra=2)
    layer, x = fnn.ToRegular(layout), layout.random(5, dtype=torch.float64)
    (y,) = layer(x)
    blocks = y[:, : 3 * group.order].unflatten(1, (group.order, 3))
    for g in range(group.order):
        (moved,) = layer(layout.act(g, x))
        expected = torch.empty_like(blocks)
        expected[:, [group.product(g, k) for k in range(group.order)]] = blocks
        torch.testing.assert_close(moved, torch.cat([expected.flatten(1), y[:, 3 * group.order :]], 1))
    with pytest.raises(ValueError, match="nothing to check: ToRegular claims the group trivial"):
        assert_equivariant(layer, x)


def test_regular_basis_of_flop() -> None:
    even, odd = torch.randn(2, 3), torch.randn(2, 3)
    (y,) = fnn.ToRegular(Layout(flop, (3, 3)))((even, odd))
    torch.testing.assert_close(y, torch.cat([even + odd, even - odd], -1) / 2**0.5)


@pytest.mark.parametrize("places", [(5,), (3, 4)], ids=str)
def test_head_without_classes_gives_pooled_features(places: tuple[int, ...]) -> None:
    layout = Layout.regular(flop, 8)
    x = layout.random(2, *places)
    torch.testing.assert_close(fnn.InvariantHead(layout, 0)(x), x[0].flatten(1, -2).mean(1))
