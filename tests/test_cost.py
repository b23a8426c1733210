"""Layers cost their share of a dense layer's multiply-adds, by torch's own counter."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flopping import Layout, flipflop, flop, octic, rot90, rot180
from flopping import nn as fnn
from flopping.groups import Group


def multiply_adds(module: nn.Module, x: object) -> int:
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("group", "share"),
    [(flop, (1, 2)), (rot180, (1, 2)), (flipflop, (1, 4)), (rot90, (3, 8)), (octic, (3, 16))],
    ids=str,
)
def test_linear_costs_its_share(group: Group, share: tuple[int, int]) -> None:
    small, large = Layout.regular(group, 48), Layout.regular(group, 96)
    dense = multiply_adds(nn.Linear(48, 96), torch.randn(5, 48))
    assert dense == 5 * 48 * 96
    assert multiply_adds(fnn.Linear(small, large), small.random(5)) * share[1] == dense * share[0]


@pytest.mark.parametrize(("group", "share"), [(flop, 2), (rot180, 2), (flipflop, 4)], ids=str)
def test_folded_layers_cost_their_share(group: Group, share: int) -> None:
    """Patch embedding, downsampling and token mixing: no more than any other linear layer."""
    layout = Layout.regular(group, 32)
    embed, image = fnn.PatchEmbed(layout, patch_size=4), torch.randn(2, 3, 8, 16)
    assert multiply_adds(embed, image) * share == multiply_adds(embed.to_dense(), image)
    down, maps = fnn.Downsample(layout, layout * 2), layout.random(2, 4, 8)
    packed = layout.merge(maps).permute(0, 3, 1, 2)
    assert multiply_adds(down, maps) * share == multiply_adds(down.to_dense(), packed)
    mix, tokens = fnn.TokenMix(layout, (4, 8)), layout.random(2, 32)
    assert multiply_adds(mix, tokens) * share == 2 * 32 * 32 * 32
