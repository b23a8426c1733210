"""Layers on images, maps and grids against dense oracles: the same outputs and gradients."""

import pytest
import torch
from support.oracles import GROUPS, assert_same, check_dense_conv, layouts, on_maps, regular_basis
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


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("factor", [1, 2, 3])
def test_downsample(group: Group, factor: int) -> None:
    first, second = layouts(group)[1], layouts(group)[0] * 2
    layer = randomize_(fnn.Downsample(first, second, factor).double())
    x = first.random(2, 2 * factor, 3 * factor, dtype=torch.float64)
    check_dense_conv(layer, x, second.merge, lambda conv, x: on_maps(conv, first.merge(x)))


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("kernel", [3, 5])
def test_depthwise(group: Group, kernel: int) -> None:
    layout = Layout.regular(group, 5 * group.order + 2, extra=2)
    layer = randomize_(fnn.DepthwiseConv2d(layout, kernel).double())
    check_dense_conv(
        layer, layout.random(2, 5, 6, dtype=torch.float64), layout.merge, lambda conv, x: on_maps(conv, layout.merge(x))
    )
    weight = layer.to_dense().weight
    if not group.signs_only:
        basis = regular_basis(layout)
        weight = torch.einsum("oc,cihw,pi->ophw", basis, weight, basis)
    reads = (weight.abs().sum((2, 3)) > 1e-12).sum(1)
    assert (reads == 1).all(), "every output channel reads one input channel"


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("grid", [(1, 1), (2, 4), (3, 5), (4, 3)])
def test_token_mix(group: Group, grid: tuple[int, int]) -> None:
    layout, grid = layouts(group)[1], (grid[1], grid[1]) if group.swaps_axes else grid
    layer = randomize_(fnn.TokenMix(layout, grid).double())
    weight, bias = layer.to_dense()
    x = layout.random(2, grid[0] * grid[1], dtype=torch.float64)
    torch.testing.assert_close(layout.merge(layer(x)), weight @ layout.merge(x) + bias)

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        matrix, shifts = torch.zeros(grid[0] * grid[1], grid[0] * grid[1]).double(), []
        for irrep, m, basis in zip(group.irreps, layout.multiplicities, basis_of(group, grid), strict=True):
            shift = torch.zeros(len(matrix), irrep.dim).double()
            if basis.shape[1]:
                maps = layer.weight[irrep.name].unflatten(0, (irrep.type.degree, -1))
                shifts_of = layer.bias[irrep.name].unflatten(0, (irrep.type.degree, -1))
                for turn, weight, bias in zip(irrep.endomorphisms, maps, shifts_of, strict=True):
                    for a in range(irrep.dim):
                        for b in range(irrep.dim):
                            matrix = matrix + turn[a, b] * basis[a].T @ weight @ basis[b]
                            shift[:, b] += turn[a, b] * basis[a].T @ bias
            shifts.append(shift.repeat_interleave(m, 1))
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


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_orient_takes_the_value_of_the_element_that_leads_to_a_token(group: Group, size: int) -> None:
    """In the regular basis, from the first place of the token's orbit; the mean where several elements lead there."""
    layout = layouts(group)[1]
    x = layout.random(2, size**2, dtype=torch.float64)
    regular = layout.merge(x) @ regular_basis(layout).T
    values, extra = regular.split([group.order * layout.copies, layout.extra], -1)
    index = torch.arange(size**2).view(size, size)
    sources = torch.stack([group.act(g, index).flatten() for g in range(group.order)])  # g^-1 p
    leads = (sources == sources.amin(0)).double()
    expected = torch.einsum("gp,bpgc->bpc", leads / leads.sum(0), values.unflatten(-1, (group.order, -1)))
    layer = fnn.Orient(layout, size, dtype=torch.float64)
    seen = layer(x)[0]
    torch.testing.assert_close(seen, torch.cat([expected, extra], -1))
    torch.testing.assert_close(layer.sum(layer.mean(x))[0], seen.mean(1, keepdim=True))
