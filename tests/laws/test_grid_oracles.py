"""Layers on images, maps and grids against dense oracles: the same outputs and gradients."""

import pytest
import torch
from support.oracles import GROUPS, SIGNED, assert_same, check_dense_conv, layouts, on_maps
from torch import Tensor

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.functional.grid import basis_of
from flopping.groups import Group
from flopping.testing import randomize_


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("patch", [2, 3, 4])
def test_patch_embed(group: Group, patch: int) -> None:
    layout = layouts(group)[1]
    for size in [patch] if group.swaps_axes else [(patch, patch + 1), (patch + 1, patch)]:
        layer = randomize_(fnn.PatchEmbed(layout, patch_size=size).double())
        h, w = layer.patch_size
        image = torch.randn(2, 3, 2 * h, 3 * w, dtype=torch.float64)
        check_dense_conv(layer, image, lambda y: layout.merge(y), lambda conv, x: conv(x).flatten(2).transpose(1, 2))


@pytest.mark.parametrize("group", SIGNED, ids=str)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_downsample(group: Group, factor: int) -> None:
    first, second = layouts(group)[1], layouts(group)[0] * 2
    layer = randomize_(fnn.Downsample(first, second, factor).double())
    x = first.random(2, 2 * factor, 3 * factor, dtype=torch.float64)
    check_dense_conv(layer, x, second.merge, lambda conv, x: on_maps(conv, first.merge(x)))


@pytest.mark.parametrize("group", SIGNED, ids=str)
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise(group: Group, kernel: int) -> None:
    layout = Layout.regular(group, 5 * group.order + 2, extra=2)
    layer = randomize_(fnn.DepthwiseConv2d(layout, kernel).double())
    check_dense_conv(
        layer, layout.random(2, 5, 6, dtype=torch.float64), layout.merge, lambda conv, x: on_maps(conv, layout.merge(x))
    )
    reads = (layer.to_dense().weight.abs().sum((2, 3)) > 0).sum(1)
    assert (reads == 1).all(), "every output channel reads one input channel"


@pytest.mark.parametrize("group", SIGNED, ids=str)
@pytest.mark.parametrize("grid", [(1, 1), (2, 4), (3, 5), (4, 3)])
def test_token_mix(group: Group, grid: tuple[int, int]) -> None:
    layout = layouts(group)[1]
    layer = randomize_(fnn.TokenMix(layout, grid).double())
    weight, bias = layer.to_dense()
    x = layout.random(2, grid[0] * grid[1], dtype=torch.float64)
    torch.testing.assert_close(layout.merge(layer(x)), weight @ layout.merge(x) + bias)

    bases = [basis[0] for basis in basis_of(group, grid)]

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        matrix = sum(b.T @ layer.weight[n] @ b for n, b in zip(layer.names, bases, strict=True) if len(b))
        shifts = [
            (bases[i].T @ layer.bias[name] if name in layer.bias else torch.zeros(len(matrix)).double())[
                :, None
            ].expand(-1, m)
            for i, (name, m) in enumerate(zip(layer.names, layout.multiplicities, strict=True))
        ]
        return matrix @ layout.merge(x) + torch.cat(shifts, 1)

    assert_same(layer, x, oracle, layout.merge)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_positions_are_a_group_average(group: Group) -> None:
    """The positions span exactly what is left of free positions after averaging over the group."""
    grid = (3, 3) if group.swaps_axes else (3, 4)
    layout = Layout.regular(group, group.order)
    embed = randomize_(fnn.PosEmbed(layout, grid).double())
    places = grid[0] * grid[1]
    free = layout.random(1, places, dtype=torch.float64)
    moved = [layout.act(g, free, grid) for g in range(group.order)]
    averaged = [sum(parts) / group.order for parts in zip(*moved, strict=True)]
    with torch.no_grad():
        for i, irrep in enumerate(group.irreps):
            if irrep.name in embed.weight:
                embed.weight[irrep.name].copy_(embed.functions[irrep.name].fit(averaged[i][0]))
    zeros = tuple(torch.zeros_like(part) for part in free)
    torch.testing.assert_close(embed(zeros), tuple(averaged))


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_gradients_of_positions(group: Group) -> None:
    """By finite differences: values are linear in the parameters, for irreps of every dimension and type."""
    embed = randomize_(fnn.PosEmbed(Layout.regular(group, group.order), 3).double())
    names = list(embed.weight)

    def table(*weights: Tensor) -> tuple[Tensor, ...]:
        given = {f"weight.{name}": weight for name, weight in zip(names, weights, strict=True)}
        zeros = tuple(p.new_zeros(1, *p.shape) for p in embed.table())
        return torch.func.functional_call(embed, given, (zeros,))

    assert torch.autograd.gradcheck(table, tuple(embed.weight[n].detach().clone().requires_grad_() for n in names))


@pytest.mark.parametrize("width", [4, 5])
def test_oriented_layers_against_written_out_signs(width: int) -> None:
    """For flop: the left half of the columns counts +1, the right one -1, the middle one 0."""
    layout = Layout.regular(flop, 6, extra=2)
    grid = (2, width)
    columns = torch.arange(width, dtype=torch.float64)
    side = torch.sign((width - 1) / 2 - columns).repeat(2)[:, None]
    even, odd = layout.random(3, 2 * width, dtype=torch.float64)
    bias = fnn.OrientedBias(layout, grid, dtype=torch.float64)
    torch.nn.init.normal_(bias.bias["odd"])
    shifted = bias((even, odd))
    torch.testing.assert_close(shifted[0], even)
    torch.testing.assert_close(shifted[1], odd + side * bias.bias["odd"])
    (seen, none) = fnn.Orient(layout, grid, dtype=torch.float64)((even, odd))
    expected = torch.cat([(even[..., :2] + side * odd) / 2**0.5, even[..., 2:]], -1)
    torch.testing.assert_close(seen, expected)
    assert none.shape[-1] == 0
