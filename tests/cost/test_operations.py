"""What single operations cost, forward and backward, against the formulas written out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.counting import backward, forward
from torch import Tensor

from flopping.cost.count import Count, count
from flopping.cost.operations import FREE, PER_INPUT, PER_OUTPUT, RULES

aten = torch.ops.aten
N = 3 * 4  # numbers in a sample
ELEMENTWISE: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "add": (lambda x: x + x, N),
    "add to fewer": (lambda x: x[..., :1] + x, N),
    "in place": (lambda x: x.add_(1).mul_(2), 2 * N),
    "sub, mul, div, neg": (lambda x: -((x - 1) * 2 / x), 4 * N),
    "one minus": (lambda x: 1 - x, N),
    "sigmoid": (torch.sigmoid, 4 * N),
    "sqrt, rsqrt": (lambda x: x.sqrt().rsqrt(), 8 * N),
    "softmax": (lambda x: x.softmax(-1), 5 * N),
    "pow": (lambda x: x**2, 5 * N),
    "gelu": (F.gelu, 8 * N),
    "silu is x sigmoid(x)": (F.silu, 5 * N),
    "addcmul": (lambda x: torch.addcmul(x, x, x), 2 * N),
    "mean, sum": (lambda x: x.mean(-1).sum(-1), N + 3),
    "largest, smallest": (lambda x: (x.max(-1), x.amin(), x.min()), 3 * N),
    "variance": (lambda x: x.var(-1), 4 * N),
    "vector norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), 2 * N),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), 4 * N),
    "layer norm, scaled": (lambda x: F.layer_norm(x, (4,), x.new_ones(4), x.new_ones(4)), 5 * N),
    "group norm": (lambda x: F.group_norm(x, 3), 4 * N),
    "group norm, scaled": (lambda x: F.group_norm(x, 3, x.new_ones(3), x.new_ones(3)), 5 * N),
    "batch norm": (lambda x: F.batch_norm(x, x.new_ones(3), x.new_ones(3)), N),
    "batch norm, scaled": (lambda x: F.batch_norm(x, *(x.new_ones(3) for _ in range(4))), 2 * N),
    "batch norm in training": (lambda x: F.batch_norm(x, None, None, training=True), 4 * N),
    "batch norm in training, scaled": (
        lambda x: F.batch_norm(x, *(x.new_ones(3) for _ in range(4)), training=True),
        5 * N,
    ),
    "bias": (lambda x: F.linear(x, x.new_ones(2, 4), x.new_ones(2)), 2 * N),
    "addmm": (lambda x: torch.addmm(x.new_ones(2), x[0], x.new_ones(4, 2)), 2 * N),
    "matrix and vector": (lambda x: x[0] @ x[0, 0], N),
    "movement": (
        lambda x: torch.cat([x.flip(-1), x.roll(1, 0)[..., [1, 0]]], -1).reshape(-1).clone().to(torch.half),
        0,
    ),
    "views in place": (lambda x: x.unsqueeze_(0).transpose_(1, 2).squeeze_(0), 0),
    "constants": (lambda x: torch.where(x > 0, x, torch.zeros_like(x)), 0),
    "random numbers": (lambda x: (torch.rand_like(x), torch.randn(3), torch.bernoulli(x), x.uniform_()), 0),
    "integers": (lambda x: torch.arange(5) * 2 + 1, 0),
    "integers and others": (lambda x: (torch.arange(5) + 1, torch.arange(5) + 1.0, torch.arange(5) + True), 5),
    "dropout": (lambda x: F.dropout(x, training=False), 0),
    "dropout in training": (lambda x: F.dropout(x, 0.3), 2 * N),  # the mask over 1 - p, and the product
    "native dropout": (lambda x: aten.native_dropout(x, 0.3, True), 2 * N),
    "put": (lambda x: x.index_put((torch.tensor([0]),), x), 0),
    "put and add": (lambda x: x.index_put((torch.tensor([0]),), x, accumulate=True), N),
    "scatter and add": (lambda x: x.scatter_add(-1, torch.zeros(1, 3, 2, dtype=torch.long), x[..., :2]), N / 2),
    "add rows": (lambda x: x.index_add(1, torch.tensor([1]), x[:, :1]), N / 3),
    "samples on a grid": (lambda x: F.grid_sample(x[None], x.new_ones(1, 5, 7, 2), align_corners=False), 4 * 35),
    "nearest": (lambda x: F.interpolate(x[None], scale_factor=2), 0),
    "linear in 1d": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), 2 * 2 * N),
    "bilinear": (lambda x: F.interpolate(x[None], scale_factor=2, mode="bilinear"), 4 * 4 * N),
    "bicubic": (lambda x: F.interpolate(x[None], scale_factor=2, mode="bicubic"), 16 * 4 * N),
    "bicubic, smoothed, larger": (
        lambda x: F.interpolate(x[None], scale_factor=2, mode="bicubic", antialias=True),
        16 * 4 * N,
    ),
    "bilinear, smoothed, smaller": (  # 3 rows become 1, which sees 2 * 3 of them; 4 columns become 2
        lambda x: F.interpolate(x[None], size=(1, 2), mode="bilinear", antialias=True),
        (2 * 3) * (2 * 2) * 2,
    ),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_work(name: str) -> None:
    function, flops = ELEMENTWISE[name]
    counted = forward(function, (3, 4))
    assert counted.flops == flops
    assert counted.macs == (flops if name in ("bias", "addmm", "matrix and vector") else 0)


INDEX = torch.tensor([0, 2, 2])
BACKWARD: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "add passes gradients on": (lambda x: x + 1, 0),
    "mul": (lambda x: x * 2, N),
    "used twice": (lambda x: (x * 2, x * 3), 3 * N),
    "mean": (lambda x: x.mean(-1), N),
    "sum": (lambda x: x.sum(-1), 0),
    "expand": (lambda x: x[:, None].expand(-1, 5, -1, -1), 5 * N),
    "relu": (F.relu, N),
    "relu6": (F.relu6, N),
    "leaky relu": (F.leaky_relu, N),
    "hard sigmoid": (F.hardsigmoid, N),
    "hard swish": (F.hardswish, 3 * N),
    "sigmoid": (torch.sigmoid, 3 * N),
    "tanh": (torch.tanh, 3 * N),
    "elu": (F.elu, 6 * N),
    "softmax": (lambda x: x.softmax(-1), 4 * N),
    "log softmax": (lambda x: x.log_softmax(-1), 7 * N),
    "silu": (F.silu, 9 * N),
    "gelu": (F.gelu, 17 * N),
    "prelu": (lambda x: F.prelu(x, x.new_ones(1)), 2 * N),  # both gradients, of which one is used
    "dropout": (lambda x: F.dropout(x, 0.3), N),
    "native dropout": (lambda x: aten.native_dropout(x, 0.3, True)[0], 2 * N),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), 9 * N),
    "layer norm, scaled": (lambda x: F.layer_norm(x, (4,), x.new_ones(4), x.new_ones(4)), 10 * N),
    "layer norm of a constant": (  # z again (2), to the weight (2), to the bias (1), and their sum
        lambda x: F.layer_norm(torch.ones(3, N), (N,), x.view(N), x.view(N)),
        5 * 3 * N + N,
    ),
    "group norm, scaled": (lambda x: F.group_norm(x, 3, x.new_ones(3), x.new_ones(3)), 10 * N),
    "batch norm, scaled": (lambda x: F.batch_norm(x, None, None, x.new_ones(3), x.new_ones(3), training=True), 10 * N),
    "batch norm in eval mode": (lambda x: F.batch_norm(x, *(x.new_ones(3) for _ in range(4))), N),
    "max pool": (lambda x: F.max_pool1d(x, 2), N / 2),
    "average pool": (lambda x: F.avg_pool2d(x[None], 1), N),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x[None], (3, 2)), N),
    "gather rows": (lambda x: x[:, INDEX.to(x.device)], N),
    "take columns": (lambda x: x.index_select(-1, INDEX.to(x.device)), 9),
    "gather": (lambda x: x.gather(-1, torch.zeros(1, 3, 2, dtype=torch.long)), 6),
    "embedding": (lambda x: F.embedding(INDEX.to(x.device), x[0]), N),
    "slice": (lambda x: x[..., :2], 0),
    "nearest": (lambda x: F.interpolate(x[None], scale_factor=2), 4 * N),
    "linear in 1d": (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), 2 * 2 * N),
    "bilinear": (lambda x: F.interpolate(x[None], scale_factor=2, mode="bilinear"), 4 * 4 * N),
    "bicubic": (lambda x: F.interpolate(x[None], scale_factor=2, mode="bicubic"), 16 * 4 * N),
    "bilinear, smoothed, smaller": (
        lambda x: F.interpolate(x[None], size=(1, 2), mode="bilinear", antialias=True),
        (2 * 3) * (2 * 2) * 2,
    ),
    "padding by reflection": (lambda x: F.pad(x[None], (1, 1, 1, 1), mode="reflect"), 5 * 6),
    "overlapping windows": (lambda x: x.unfold(-1, 3, 1), 3 * 2 * 3),
    "columns of windows": (lambda x: F.unfold(x[None], 2), 4 * 6),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_work_of_gradients(name: str) -> None:
    function, flops = BACKWARD[name]
    assert backward(function, (3, 4)) == (0, flops)


def test_gradients_of_products() -> None:
    assert backward(lambda x: x @ x.new_ones(4, 5), (3, 4)) == (3 * 4 * 5, 3 * 4 * 5)
    both, _ = backward(lambda x: x @ x.mT, (3, 4))
    assert both == 2 * 3 * 4 * 3


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [(True, True, True), (True, False, False), (False, True, False), (False, False, True)])
def test_gradients_of_convolutions(transposed: bool, mask: tuple[bool, bool, bool]) -> None:
    """Each gradient that is asked for costs as much as the way there; that of a bias is a sum."""
    convolution = F.conv_transpose2d if transposed else F.conv2d

    def there(x: Tensor) -> Tensor:
        return convolution(x, x.new_ones(4, 2, 3, 3), groups=2, stride=2)

    def back(x: Tensor) -> Any:
        grad, weight = torch.empty_like(there(x)), x.new_ones(4, 2, 3, 3)
        return aten.convolution_backward(grad, x, weight, [4], [2, 2], [0, 0], [1, 1], transposed, [0, 0], 2, mask)

    once = forward(there, (4, 9, 7)).macs
    counted = forward(back, (4, 9, 7))  # `there` is called inside
    assert counted.macs == once * (1 + mask[0] + mask[1])
    out = there(torch.empty(1, 4, 9, 7)).numel()
    assert counted.flops - counted.macs == (out if mask[2] else 0)


def test_every_operation_has_one_price() -> None:
    names = [name for names in (*PER_OUTPUT.values(), *PER_INPUT.values(), FREE) for name in names.split()]
    assert len(set(names)) == len(names)
    assert set(names) < set(RULES)
    with pytest.raises(ValueError, match="no operation 'gelo'"):
        count(torch.nn.GELU(), (4,), costs={"gelo": 1})


def test_costs_overrule_the_table() -> None:
    assert count(torch.nn.GELU(), (4,), costs={"gelu": 1}).flops == 4
    assert count(torch.nn.Linear(4, 4), (4,), costs={"linear": 1}) == Count(0, 4)
    assert count(torch.nn.LayerNorm(4), (4,), costs={"layer_norm": 1}).flops == 4  # a name that torch takes apart
