"""The cost of linear layers, and the spread of what they give."""

import pytest
import torch
from support.oracles import GROUPS, multiply_adds
from torch import nn

from flopping import Layout, flipflop, flop, octic, rot90, rot180
from flopping import nn as fnn
from flopping.groups import Group


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


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_linear_starts_with_the_same_spread_in_every_part(group: Group) -> None:
    """As an ordinary layer does for the width of the block: 1/sqrt(3) of the input's."""
    layout = Layout.regular(group, 64 * group.order)
    torch.manual_seed(0)
    out = fnn.Linear(layout, layout, bias=False)(layout.random(200))
    assert [part.std().item() for part in out] == pytest.approx([3**-0.5] * len(out), rel=0.1)
