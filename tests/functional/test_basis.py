"""ReLU in compiled training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flopping import Layout, flop, trivial
from flopping import nn as fnn
from flopping.groups import Group


@pytest.mark.parametrize("group", [trivial, flop], ids=str)
@pytest.mark.parametrize("relu", [F.relu, torch.relu])
def test_compiled_training_stores_no_mask_of_relu(group: Group, relu: Callable[[Tensor], Tensor]) -> None:
    layout = Layout.regular(group, 8)
    layer = fnn.Activation(layout, relu)
    x = tuple(part.requires_grad_() for part in layout.random(2, 3))
    with torch.no_grad():
        x[0][0, 0, :2] = 0  # where ReLU has no derivative, torch's is 0
        x[-1][0, 0, :2] = 0
    weights = layout.random(2, 3)

    def gradients(call: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        total = torch.stack([(out * w).sum() for out, w in zip(call(x), weights, strict=True)]).sum()
        return torch.autograd.grad(total, x)

    kept: list[torch.dtype] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.dtype)
        return tensor

    expected = gradients(layer)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = gradients(torch.compile(layer, backend="aot_eager_decomp_partition", fullgraph=True))
    torch.testing.assert_close(found, expected)
    assert kept
    assert torch.bool not in kept
