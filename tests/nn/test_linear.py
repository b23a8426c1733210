"""The linear layer: its share of a dense layer's multiply-adds, by torch's own counter, and how it starts."""

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
def test_costs_its_share(group: Group, share: float) -> None:
    small, large = Layout.regular(group, 48), Layout.regular(group, 96)
    dense = multiply_adds(nn.Linear(48, 96), torch.randn(5, 48))
    assert dense == 5 * 48 * 96
    assert multiply_adds(fnn.Linear(small, large), small.random(5)) == dense * share


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_starts_with_the_same_spread_in_every_part(group: Group) -> None:
    """As an ordinary layer does for the width of the block: 1/sqrt(3) of the input's."""
    layout = Layout.regular(group, 64 * group.order)
    torch.manual_seed(0)
    out = fnn.Linear(layout, layout, bias=False)(layout.random(200))
    assert [part.std().item() for part in out] == pytest.approx([3**-0.5] * len(out), rel=0.1)
