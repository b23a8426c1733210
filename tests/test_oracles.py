"""Every layer against a dense oracle: the same outputs and gradients, from matrices without zeros left out."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flopping import Layout, flipflop, flop, octic, rot90, rot180, trivial
from flopping import nn as fnn
from flopping.grid import basis_of
from flopping.groups import Group, grid_groups
from flopping.representations import intertwiners
from flopping.testing import randomize_

GROUPS = [group for group in grid_groups().values() if group.order > 1]
SIGNED = [group for group in GROUPS if group.signs_only]


def layouts(group: Group) -> tuple[Layout, Layout]:
    """Equal shares, and shares with extra invariant channels."""
    return Layout.regular(group, 2 * group.order), Layout.regular(group, 2 * group.order + 3, extra=3)


def assert_same(
    layer: nn.Module, x: tuple[Tensor, ...] | Tensor, oracle: Callable[[Tensor], Tensor], pack: Callable[..., Tensor]
) -> None:
    """Outputs, gradients of the input and gradients of every parameter agree in float64."""
    leaves = [part.clone().requires_grad_() for part in (x if isinstance(x, tuple) else (x,))]
    inputs = tuple(leaves) if isinstance(x, tuple) else leaves[0]
    parameters = list(layer.parameters())
    results = []
    for compute in (lambda: pack(layer(inputs)), lambda: oracle(inputs)):
        y = compute()
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
        grads = torch.autograd.grad((y * weights).sum(), [*leaves, *parameters], materialize_grads=True)
        results.append((y.detach(), *grads))
    for ours, dense in zip(*results, strict=True):
        torch.testing.assert_close(ours, dense, rtol=1e-10, atol=1e-10)
    assert all(grad.abs().sum() > 0 for grad in results[0][1 + len(leaves) :]), "the oracle uses every parameter"


def dense_linear(layer: fnn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias on packed channels, built from the layer's own parameters."""
    blocks = []
    for irrep, m_in, m_out in zip(
        layer.in_layout.group.irreps, layer.in_layout.multiplicities, layer.out_layout.multiplicities, strict=True
    ):
        weights = getattr(layer, irrep.name).weight.view(irrep.type.degree, m_out, m_in)
        blocks.append(sum(torch.kron(e, w) for e, w in zip(irrep.endomorphisms, weights, strict=True)))
    bias = getattr(layer, layer.names[0]).bias
    return torch.block_diag(*blocks), torch.cat([bias, bias.new_zeros(layer.out_layout.dim - len(bias))])


def regular_basis(layout: Layout) -> Tensor:
    """The orthonormal matrix from packed channels to the regular basis, extra channels last."""
    group, copies, extra = layout.group, layout.copies, layout.extra
    rows = torch.kron(
        group.fourier.T.contiguous(), torch.eye(copies, dtype=torch.float64)
    )  # (element, copy) x (slot, copy)
    columns = []
    slot = 0
    for i, irrep in enumerate(group.irreps):
        for _ in range(irrep.dim):
            for _ in range(irrep.regular_multiplicity):
                columns.append(rows[:, slot * copies : (slot + 1) * copies])
                slot += 1
            if i == 0:
                columns.append(rows.new_zeros(len(rows), extra))
    last = torch.zeros(extra, layout.dim, dtype=torch.float64)
    last[:, copies : copies + extra] = torch.eye(extra)
    return torch.cat([torch.cat(columns, 1), last])


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


@pytest.mark.parametrize("group", GROUPS, ids=str)
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


def test_activation_of_flop_as_written() -> None:
    layout = Layout(flop, (3, 3))
    even, odd = layout.random(4)
    s, t = F.gelu((even + odd) / 2**0.5), F.gelu((even - odd) / 2**0.5)
    expected = (s + t) / 2**0.5, (s - t) / 2**0.5
    torch.testing.assert_close(fnn.Activation(layout)((even, odd)), expected)


def spread(layout: Layout, weights: dict[str, Tensor]) -> Tensor:
    """One number per copy, repeated for each component, on packed channels."""
    return torch.cat([weights[irrep.name].repeat(irrep.dim) for irrep in layout.group.irreps])


@pytest.mark.parametrize("group", GROUPS, ids=str)
@pytest.mark.parametrize("shares", [0, 1])
def test_layer_norm(group: Group, shares: int) -> None:
    """Both ways of computing it, for training and for inference, against the formula on packed channels."""
    layout = layouts(group)[shares]
    layer = randomize_(fnn.LayerNorm(layout, eps=1e-2).double())
    widths = [m for m, d in zip(layout.multiplicities, layout.irrep_dims, strict=True) for _ in range(d)]
    owner = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))  # which component a channel belongs to
    same = (owner[:, None] == owner).double()
    centre = torch.eye(layout.dim, dtype=torch.float64) - same / same.sum(1, keepdim=True)

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        deviations = layout.merge(x) @ centre
        joint = deviations.square().mean(-1, keepdim=True)
        bias = torch.cat([layer.bias, layer.bias.new_zeros(layout.dim - len(layer.bias))])
        return deviations / (joint + 1e-2).sqrt() * spread(layout, layer.weight) + bias

    x = layout.random(6, dtype=torch.float64)
    assert_same(layer, x, oracle, layout.merge)
    with torch.no_grad():
        torch.testing.assert_close(layout.merge(layer(x)), oracle(x), rtol=1e-12, atol=1e-12)


def test_joint_variance_of_flop() -> None:
    layout = Layout.regular(flop, 8)
    even, odd = layout.random(5, dtype=torch.float64)
    variance = (even.var(-1, correction=0, keepdim=True) + odd.var(-1, correction=0, keepdim=True)) / 2
    expected = [(part - part.mean(-1, keepdim=True)) / (variance + 1e-6).sqrt() for part in (even, odd)]
    torch.testing.assert_close(fnn.LayerNorm(layout).double()((even, odd)), tuple(expected))


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


def on_maps(conv: nn.Conv2d, x: Tensor) -> Tensor:
    return conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


def check_dense_conv(layer: nn.Module, x, pack: Callable[..., Tensor], dense_forward: Callable[..., Tensor]) -> None:
    """`to_dense` gives the same outputs and input gradients, and the gradient of its weight pulls back to ours.

    The dense weight is linear in the layer's parameters, so for any direction d of the parameters
    <our gradient, d> = <dense gradient, dense weight of d>.
    """
    conv = layer.to_dense()
    leaves = [part.clone().requires_grad_() for part in (x if isinstance(x, tuple) else (x,))]
    inputs = tuple(leaves) if isinstance(x, tuple) else leaves[0]
    ours, dense = pack(layer(inputs)), dense_forward(conv, inputs)
    torch.testing.assert_close(ours, dense, rtol=1e-10, atol=1e-10)
    weights = torch.randn_like(ours)
    parameters = list(layer.parameters())
    our_grads = torch.autograd.grad((ours * weights).sum(), [*leaves, *parameters])
    dense_grads = torch.autograd.grad((dense * weights).sum(), [*leaves, conv.weight, conv.bias])
    for a, b in zip(our_grads[: len(leaves)], dense_grads[: len(leaves)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for seed in range(3):
        randomize_(layer, seed=100 + seed)
        direction = layer.to_dense()
        ours_along = sum((g * p).sum() for g, p in zip(our_grads[len(leaves) :], parameters, strict=True))
        dense_along = (dense_grads[-2] * direction.weight).sum() + (dense_grads[-1] * direction.bias).sum()
        torch.testing.assert_close(ours_along, dense_along)


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


def test_positions_of_flop() -> None:
    """Even channels symmetric, odd ones antisymmetric and zero in the middle column; gradients of each value."""
    layout = Layout(flop, (2, 2))
    embed = randomize_(fnn.PosEmbed(layout, (2, 3)).double())
    w_even, w_odd = embed.weight["even"], embed.weight["odd"]

    def oracle(x: tuple[Tensor, ...]) -> Tensor:
        even = torch.stack([w_even[0], w_even[1], w_even[0], w_even[2], w_even[3], w_even[2]])
        odd = torch.stack([w_odd[0], 0 * w_odd[0], -w_odd[0], w_odd[1], 0 * w_odd[0], -w_odd[1]])
        return layout.merge(x) + torch.cat([even, odd], -1)

    even, odd = embed.table()
    grid_even, grid_odd = even.view(2, 3, 2), odd.view(2, 3, 2)
    torch.testing.assert_close(grid_even, grid_even.flip(1))
    torch.testing.assert_close(grid_odd, -grid_odd.flip(1))
    assert not grid_odd[:, 1].any()
    assert_same(embed, layout.random(2, 6, dtype=torch.float64), oracle, layout.merge)


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
    if group.signs_only:
        layer = fnn.AbsToInvariant(layout)

        def absolute(x: tuple[Tensor, ...]) -> Tensor:
            packed = layout.merge(x)
            return torch.cat([packed[..., :m], packed[..., m:].abs()], -1)

        assert_same(layer, x, absolute, layer.out_layout.merge)
    hybrid, basis = fnn.ToRegular(layout), regular_basis(layout)
    assert_same(hybrid, x, lambda x: layout.merge(x) @ basis.T, lambda y: y[0])


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


@pytest.mark.parametrize(
    ("large", "small"), [(octic, flop), (octic, rot90), (flipflop, flop), (rot90, rot180)], ids=str
)
def test_restriction_is_an_orthogonal_matrix(large: Group, small: Group) -> None:
    layout = layouts(large)[1]
    layer = fnn.Restrict(layout, small)
    matrix = layer.out_layout.merge(layer(layout.split(torch.eye(layout.dim, dtype=torch.float64))))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(layout.dim, dtype=torch.float64))
    assert_same(
        layer, layout.random(4, dtype=torch.float64), lambda x: layout.merge(x) @ matrix, layer.out_layout.merge
    )


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
