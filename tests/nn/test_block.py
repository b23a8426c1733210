"""Blocks that compute even channels only, and the ordinary block."""

import pytest
import torch
from timm.models.vision_transformer import Block

from flopping import Layout, flop, trivial
from flopping import nn as fnn
from flopping.testing import randomize_

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
