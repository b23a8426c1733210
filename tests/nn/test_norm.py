"""Norms in half precision, and signs that pass to the last bit."""

import pytest
import torch
from support.oracles import SIGNED

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.groups import Group
from flopping.testing import randomize_, relative_error


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
