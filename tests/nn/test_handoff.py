"""Hand-offs to smaller groups and to the regular basis, and the head."""

import pytest
import torch
from support.oracles import GROUPS

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.groups import Group
from flopping.testing import assert_equivariant


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


@pytest.mark.parametrize("group", GROUPS, ids=str)
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
