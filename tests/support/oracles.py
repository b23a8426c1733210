"""Dense oracles: what layers do, written as matrices on packed channels without zeros left out."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flopping import Layout
from flopping import nn as fnn
from flopping.groups import Group, grid_groups
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
    dense_grads = torch.autograd.grad((dense * weights).sum(), [*leaves, *conv.parameters()])
    for a, b in zip(our_grads[: len(leaves)], dense_grads[: len(leaves)], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    for seed in range(3):
        randomize_(layer, seed=100 + seed)
        direction = layer.to_dense()
        ours_along = sum((g * p).sum() for g, p in zip(our_grads[len(leaves) :], parameters, strict=True))
        pairs = zip(dense_grads[len(leaves) :], direction.parameters(), strict=True)
        dense_along = sum((g * p).sum() for g, p in pairs)
        torch.testing.assert_close(ours_along, dense_along)


def dense_linear(layer: fnn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias on packed channels, built from the layer's own parameters."""
    blocks = []
    for irrep, m_in, m_out in zip(
        layer.in_layout.group.irreps, layer.in_layout.multiplicities, layer.out_layout.multiplicities, strict=True
    ):
        weights = getattr(layer, irrep.name).weight.view(irrep.type.degree, m_out, m_in)
        blocks.append(sum(torch.kron(e, w) for e, w in zip(irrep.endomorphisms, weights, strict=True)))
    bias = getattr(layer, layer.names[0]).bias
    shift = blocks[0].new_zeros(layer.out_layout.dim)
    if bias is not None:
        shift[: len(bias)] = bias
    return torch.block_diag(*blocks), shift


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


def spread(layout: Layout, weights: dict[str, Tensor]) -> Tensor:
    """One number per copy, repeated for each component, on packed channels."""
    return torch.cat([weights[irrep.name].repeat(irrep.dim) for irrep in layout.group.irreps])


def multiply_adds(module: nn.Module, x: object) -> int:
    """By torch's own counter."""
    with FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2
