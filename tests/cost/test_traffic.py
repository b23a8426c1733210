"""Launches and bytes of a forward pass, counted."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import pytest
import timm
import torch
from torch import nn

import flopping
from flopping.cost.roofline import A100, BATCH, Device, paper_kernels, predict
from flopping.cost.traffic import Kernel, Trace, compiled_kernels, trace_forward
from flopping.lab.bench.goals import LAUNCHES, launch_results
from flopping.models.paper import results

NUMBERS = torch.randn(10, 20)
SIZE = NUMBERS.nbytes


def traced(function: nn.Module) -> Trace:
    return trace_forward(function, NUMBERS)


def test_each_operation_reads_and_writes() -> None:
    linear = nn.Linear(20, 20)
    weights = linear.weight.nbytes + linear.bias.nbytes
    product, activation = traced(nn.Sequential(linear, nn.GELU())).kernels()
    assert product == Kernel("linear", 10 * 20 * 20, 2 * SIZE + weights, None)
    assert activation == Kernel("gelu", 0, 2 * SIZE, None)


class Chain(nn.Module):
    """(tanh(x) + tanh(x).exp()) W + tanh(x)"""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(20, 20, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        return self.linear(y.view(-1, 20) + y.exp()) + y


def test_fused_kernels_end_at_matrix_products() -> None:
    """What is read again behind a product is written; what only its own kernel reads is not."""
    chain = Chain()
    before, product, behind = traced(chain).kernels(fused=True)
    assert [k.name for k in (before, product, behind)] == ["tanh+exp+add", "linear", "add"]
    assert before.bytes == SIZE + 2 * SIZE  # x; tanh(x), and the sum
    assert product.bytes == 2 * SIZE + chain.linear.weight.nbytes
    assert behind.bytes == 3 * SIZE


def test_writing_in_place_makes_a_new_value() -> None:
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp().mul_(2).tanh()

    (kernel,) = traced(InPlace()).kernels(fused=True)
    assert (kernel.name, kernel.bytes) == ("exp+mul+tanh", 2 * SIZE)


def test_blocks_and_compiled_operations() -> None:
    """An eager block launches many kernels, one whose operations are compiled few; both do the same products."""
    model = flopping.fuse(timm.create_model("deit3_flop_test_patch16_64"))
    image = torch.randn(2, 3, 64, 64)
    plain, operations = trace_forward(model, image), trace_forward(model, image, operations=True)
    eager, fewer, best = plain.kernels(), operations.kernels(), plain.kernels(fused=True)
    assert len(eager) > len(fewer) > len(best)
    assert sum(k.macs for k in eager) == sum(k.macs for k in fewer) == sum(k.macs for k in best)
    assert sum(k.bytes for k in eager) > sum(k.bytes for k in fewer) > sum(k.bytes for k in best)
    assert {k.block for k in eager} == {None, *range(len(model.blocks))}
    whole = trace_forward(model, image, everything=True).kernels()
    assert sum(k.macs for k in whole) > sum(k.macs for k in eager)


@pytest.mark.long
def test_the_compiler_is_near_the_best() -> None:
    model = flopping.fuse(timm.create_model("deit3_flop_test_patch16_64"))
    image = torch.randn(2, 3, 64, 64)
    compiled = compiled_kernels(model, image)
    best = [k for k in trace_forward(model, image).kernels(fused=True) if k.block is not None]
    assert len(best) <= len(compiled) <= 1.5 * len(best)
    assert sum(k.bytes for k in compiled) == pytest.approx(sum(k.bytes for k in best), rel=0.25)


def test_launches_of_the_small_transformer() -> None:
    """The ordinary one has 12 in each block and 5 around them."""
    found = {verdict.what: verdict for verdict in launch_results()}
    assert {f"E(ViT-S), launches, {mode}" for mode in LAUNCHES["E(ViT-S)"]} == set(found)
    for verdict in found.values():
        assert verdict.found.endswith(" of 149")
        assert verdict.met


DATA_SHEET = Device(156e12, 1.555e12, 156e12)
"""An A100 with 40 GB of memory, half precision."""


def calibrate(networks: Mapping[str, Sequence[Kernel]], seconds: Mapping[str, float]) -> Device:
    """The device on which networks take the given seconds: the least squares of relative errors.

    Each of its three numbers is changed in turn, by ever smaller factors, as long as that helps.
    """
    # equal kernels are looked at once
    counts = {name: Counter(replace(k, block=None) for k in kernels) for name, kernels in networks.items()}

    def error(device: Device) -> float:
        found = {name: sum(n * device.seconds([k]) for k, n in kinds.items()) for name, kinds in counts.items()}
        return sum((found[name] / seconds[name] - 1) ** 2 for name in networks)

    best, step = DATA_SHEET, 16.0  # small steps change nothing where other kernels are the limit
    while step > 1.002:
        values = astuple(best)
        tried = [
            Device(*(value * factor if i == j else value for j, value in enumerate(values)))
            for i in range(len(values))
            for factor in (step, 1 / step)
        ]
        better = min(tried, key=error)
        if error(better) < error(best):
            best = better
        else:
            step **= 0.5
    return best


def test_a_device_is_found_from_its_times() -> None:
    true = Device(1e14, 1e12, 1e13)
    networks = {name: [Kernel(name, 10**10, 10**6, None)] for name in ("linear", "scaled_dot_product_attention")}
    networks["add"] = [Kernel("add", 0, 10**8, None)]
    found = calibrate(networks, {name: true.seconds(kernels) for name, kernels in networks.items()})
    for kernels in networks.values():
        assert found.seconds(kernels) == pytest.approx(true.seconds(kernels), rel=0.01)
    assert found != DATA_SHEET


@pytest.mark.long
def test_the_roofline_of_ordinary_networks_predicts_the_equivariant_ones() -> None:
    """In the paper's table: all within 20 %, and all but one within 15 %."""
    names = [name for name, row in results().items() if row.ordinary == name]
    found = calibrate({n: paper_kernels(n) for n in names}, {n: BATCH / results()[n].throughput for n in names})
    assert astuple(found) == pytest.approx(astuple(A100), rel=0.02)
    misses = sorted(abs(predict(name) / row.throughput - 1) for name, row in results().items() if row.ordinary != name)
    assert len(misses) == 17
    assert misses[-1] < 0.2
    assert misses[-2] < 0.15
