"""Positions of other grids, and the class token."""

import pytest
import torch
from support.oracles import GROUPS

from flopping import Layout, flop, octic
from flopping import nn as fnn
from flopping.groups import Group
from flopping.testing import assert_equivariant, randomize_, relative_error


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_positions_of_another_grid(group: Group) -> None:
    """Equivariant, equal to torch's interpolation of both axes, and the same once they are stored."""
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
    images = layout.merge(embed.table()).T.unflatten(1, old)[None]
    resized = torch.nn.functional.interpolate(images, new, mode="bicubic", antialias=True)[0].flatten(1).T
    torch.testing.assert_close(layout.merge(embed.table(new)), resized)
    embed.resize_(new)
    assert embed.grid_size == new
    torch.testing.assert_close(embed(tokens), before)


def test_resizing_to_the_same_grid_keeps_positions() -> None:
    embed = randomize_(fnn.PosEmbed(Layout.regular(octic, 16), 5).double())
    before = {name: value.clone() for name, value in embed.state_dict().items()}
    torch.testing.assert_close(dict(embed.resize_(5).state_dict()), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_positions_interpolate_in_half_precision(dtype: torch.dtype) -> None:
    embed = randomize_(fnn.PosEmbed(Layout.regular(flop, 8), 4)).requires_grad_(False)
    exact = embed.table((6, 5))
    embed.to(dtype)
    assert relative_error(embed.table((6, 5)), exact) < 2e-2
    assert not any(p.requires_grad for p in embed.resize_((6, 5)).parameters())


def test_class_token() -> None:
    """Learned on even, zero on odd; under autocast all parts keep the precision of the token."""
    layout = Layout.regular(flop, 8)
    token = randomize_(fnn.ClassToken(layout))
    even, odd = token(layout.random(2, 6))
    assert [name for name, _ in token.named_parameters()] == ["token"]
    torch.testing.assert_close(even[:, 0], token.token.expand(2, 4))
    assert not odd[:, 0].any()
    assert {part.dtype for part in token(layout.random(2, 5, dtype=torch.bfloat16))} == {torch.float32}
