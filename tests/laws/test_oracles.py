"""Layers on channels and tokens against dense oracles: the same outputs and gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.finite_groups import ABSTRACT, abstract
from support.oracles import GROUPS, assert_same, dense_linear, layouts, regular_basis, spread
from torch import Tensor

from flopping import Layout, flipflop, octic, rot90, trivial
from flopping import nn as fnn
from flopping.groups import Group
from flopping.groups.representations import intertwiners
from flopping.testing import randomize_


@pytest.mark.parametrize("group", [trivial, *GROUPS], ids=str)
@pytest.mark.parametrize("shares", [0, 1])
def test_linear(group: Group, shares: int) -> None:
    first, second = layouts(group)[shares], layouts(group)[1 - shares] * 2
    layer = randomize_(fnn.Linear(first, second).double())
    weight, bias = dense_linear(layer)
    assert_same(
        layer, first.random(3, 4, dtype=torch.float64), lambda x: F.linear(first.merge(x), weight, bias), second.merge
    )
    dense = layer.to_dense()
    torch.testing.assert_close(dense.weight, weight)
    torch.testing.assert_close(dense.bias, bias)


@pytest.mark.parametrize("group", [*GROUPS, *map(abstract, ABSTRACT)], ids=str)
def test_linear_is_complete(group: Group) -> None:
    """Every equivariant linear map is one of ours: a dense map, averaged over the group, is represented exactly."""
    first, second = layouts(group)
    layer = fnn.Linear(first, second, bias=False).double()
    images = [torch.stack([layout.matrix(g) for g in range(group.order)]) for layout in (first, second)]
    dense = torch.randn(second.dim, first.dim, dtype=torch.float64)
    averaged = (images[1].transpose(1, 2) @ dense @ images[0]).mean(0)
    basis = intertwiners(*images, torch.tensor(group.table))
    assert sum(p.numel() for p in layer.parameters()) == len(basis)
    columns = []
    for parameter in layer.parameters():
        for i in range(parameter.numel()):
            with torch.no_grad():
                for other in layer.parameters():
                    other.zero_()
                parameter.view(-1)[i] = 1
            columns.append(layer.to_dense().weight.detach().flatten())
    solution = torch.linalg.lstsq(torch.stack(columns, 1), averaged.flatten()).solution
    torch.testing.assert_close((torch.stack(columns, 1) @ solution).view_as(averaged), averaged)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("function", [F.gelu, torch.relu, torch.tanh])
@pytest.mark.parametrize("shares", [0, 1])
def test_activation(group: Group, function: Callable[[Tensor], Tensor], shares: int) -> None:
    layout = layouts(group)[shares]
    basis = regular_basis(layout)
    torch.testing.assert_close(basis @ basis.T, torch.eye(layout.dim, dtype=torch.float64))
    x = layout.random(5, dtype=torch.float64)
    assert_same(
        fnn.Activation(layout, function), x, lambda x: function(layout.merge(x) @ basis.T) @ basis, layout.merge
    )


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("shares", [0, 1])
@pytest.mark.parametrize("by_irrep", [False, True])
def test_layer_norm(group: Group, shares: int, by_irrep: bool) -> None:
    """Both ways of computing it, for training and for inference, against the formula on packed channels."""
    layout = layouts(group)[shares]
    layer = randomize_(fnn.LayerNorm(layout, eps=1e-2, by_irrep=by_irrep).double())
    widths = [m for m, d in zip(layout.multiplicities, layout.irrep_dims, strict=True) for _ in range(d)]
    owner = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))  # which component a channel belongs to
    same = (owner[:, None] == owner).double()
    centre = torch.eye(layout.dim, dtype=torch.float64) - same / same.sum(1, keepdim=True)

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        deviations = layout.merge(x) @ centre
        parts = deviations.square().split([n for n in layout.part_dims if n], -1) if by_irrep else [deviations.square()]
        joint = torch.stack([part.mean(-1) for part in parts]).mean(0)[..., None]
        bias = torch.cat([layer.bias, layer.bias.new_zeros(layout.dim - len(layer.bias))])
        return deviations / (joint + 1e-2).sqrt() * spread(layout, layer.weight) + bias

    x = layout.random(6, dtype=torch.float64)
    assert_same(layer, x, oracle, layout.merge)
    with torch.no_grad():
        torch.testing.assert_close(layout.merge(layer(x)), oracle(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("shares", [0, 1])
def test_affine_and_layer_scale(group: Group, shares: int) -> None:
    layout = layouts(group)[shares]
    affine = randomize_(fnn.Affine(layout).double())
    beta = torch.cat([affine.beta, affine.beta.new_zeros(layout.dim - len(affine.beta))])
    x = layout.random(6, dtype=torch.float64)
    assert_same(affine, x, lambda x: layout.merge(x) * spread(layout, affine.alpha) + beta, layout.merge)
    scale = randomize_(fnn.LayerScale(layout).double())
    assert_same(scale, x, lambda x: layout.merge(x) * spread(layout, scale.gamma), layout.merge)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("shares", [0, 1])
def test_attention(group: Group, shares: int) -> None:
    """Head by head with a written-out softmax; a head's channels are picked from packed ones by index."""
    heads = 2
    layout = layouts(group)[shares] * heads
    layer = randomize_(fnn.Attention(layout, heads, qkv_bias=True).double())
    channels = layout.split(torch.arange(layout.dim)[None])
    of_head = [torch.cat([part.chunk(heads, -1)[h].flatten() for part in channels]) for h in range(heads)]
    thirds = [
        torch.cat([part.chunk(3, -1)[i].flatten() for part in (layout * 3).split(torch.arange(3 * layout.dim)[None])])
        for i in range(3)
    ]

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        qkv = F.linear(layout.merge(x), *dense_linear(layer.qkv))
        q, k, v = (qkv[..., third] for third in thirds)
        mixed = torch.zeros_like(v)
        for head in of_head:
            scores = q[..., head] @ k[..., head].transpose(-2, -1) / len(head) ** 0.5
            mixed = mixed.index_copy(-1, head, scores.softmax(-1) @ v[..., head])
        return F.linear(mixed, *dense_linear(layer.proj))

    assert_same(layer, layout.random(2, 5, dtype=torch.float64), oracle, layout.merge)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_block_and_mlp(group: Group) -> None:
    layout = layouts(group)[1] * 2
    block = randomize_(fnn.TransformerBlock(layout, 2, qkv_bias=True, init_values=1.0).double())
    basis = regular_basis(layout * 4)

    def mlp(x: Tensor) -> Tensor:
        hidden = F.linear(x, *dense_linear(block.mlp.fc1))
        return F.linear(F.gelu(hidden @ basis.T) @ basis, *dense_linear(block.mlp.fc2))

    x = layout.random(2, 5, dtype=torch.float64)
    assert_same(block.mlp, x, lambda x: mlp(layout.merge(x)), layout.merge)

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        y = layout.merge(x) + layout.merge(block.ls1(block.attn(block.norm1(x))))
        return y + mlp(layout.merge(block.norm2(layout.split(y)))) * spread(layout, block.ls2.gamma)

    assert_same(block, x, oracle, layout.merge)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_ends(group: Group) -> None:
    """Class token, head and the invariant hand-offs."""
    layout = layouts(group)[1]
    m = layout.multiplicities[0]
    x = layout.random(2, 5, dtype=torch.float64)
    token = randomize_(fnn.ClassToken(layout).double())

    def with_token(x: tuple[Tensor, ...]) -> Tensor:
        first = torch.cat([token.token, token.token.new_zeros(layout.dim - m)]).expand(2, 1, -1)
        return torch.cat([first, layout.merge(x)], 1)

    assert_same(token, x, with_token, layout.merge)
    for pool, pooled in {
        "avg": lambda packed: packed[:, 1:, :m].mean(1),
        "token": lambda packed: packed[:, 0, :m],
    }.items():
        head = randomize_(fnn.InvariantHead(layout, 7, pool, num_prefix_tokens=int(pool == "avg")).double())
        assert_same(
            head, x, lambda x, head=head, f=pooled: F.linear(f(layout.merge(x)), *head.linear.parameters()), lambda y: y
        )
    to_invariant = randomize_(fnn.ToInvariant(layout).double())
    assert_same(
        to_invariant,
        x,
        lambda x: F.linear(layout.merge(x)[..., :m], *to_invariant.linear.parameters()),
        to_invariant.out_layout.merge,
    )
    lengths = fnn.AbsToInvariant(layout)
    assert_same(lengths, x, lambda x: squared_lengths(x, layout).sqrt(), lambda y: y[0].abs())
    hybrid, basis = fnn.ToRegular(layout), regular_basis(layout)
    assert_same(hybrid, x, lambda x: layout.merge(x) @ basis.T, lambda y: y[0])


def squared_lengths(x: tuple[Tensor, ...], layout: Layout) -> Tensor:
    dims = zip(x, layout.irrep_dims, strict=True)
    return torch.cat([part.square() if d == 1 else part.square().sum(-2) for part, d in dims], -1)


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("shares", [0, 1])
def test_max_filtering(group: Group, shares: int) -> None:
    """The largest product with a reference that all elements move, the reference being that of the identity."""
    layout = layouts(group)[shares]
    layer = randomize_(fnn.MaxFilter(layout, references=3).double())
    weight, _ = dense_linear(layer.references)  # gradients reach the references through it
    references = (regular_basis(layer.references.out_layout) @ weight)[:3]
    moved = [references @ layout.matrix(g).T for g in range(group.order)]

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        return torch.stack([layout.merge(x) @ r.T for r in moved]).amax(0)

    assert_same(layer, layout.random(5, dtype=torch.float64), oracle, lambda y: y[0])


@pytest.mark.parametrize("group", [flipflop, rot90, octic], ids=str)
def test_channels_side_by_side(group: Group) -> None:
    """A group element acts on them by its irreps, copy by copy."""
    layout = Layout.regular(group, 3 * group.order + 2, extra=2)
    layer, x = fnn.Concat(layout), layout.random(5, dtype=torch.float64)
    before = layer(x)[0]
    for g in range(group.order):
        copies = [irrep.tensor[g] for irrep in group.irreps for _ in range(irrep.regular_multiplicity)]
        expected = torch.einsum("ij,bjc->bic", torch.block_diag(*copies), before[:, :-2].unflatten(1, (-1, 3)))
        (after,) = layer(layout.act(g, x))
        torch.testing.assert_close(after[:, :-2].unflatten(1, (-1, 3)), expected)
        torch.testing.assert_close(after[:, -2:], before[:, -2:])
