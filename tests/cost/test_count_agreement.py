"""The counter against others: multiply-adds as torch and fvcore count them, and the paper's FLOPs made by fvcore."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from support.counting import Call
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from flopping import flop, octic
from flopping.cost.count import Count, count
from flopping.models import ZOO
from flopping.models.backbone import Backbone
from flopping.testing.cases import Case, cases

with warnings.catch_warnings():  # fvcore scripts a loss when it is imported, which torch has deprecated
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)
    from fvcore.nn import FlopCountAnalysis
    from fvcore.nn.jit_handles import get_shape

aten = torch.ops.aten
BATCH = 2


def compute_all(model: nn.Module) -> nn.Module:
    """The network as the paper counts it: `forward` leaves out what the head doesn't read of the last block."""
    if isinstance(model, Backbone):
        model.forward = model.forward_all  # type: ignore[method-assign]
    return model


def by_torch(model: nn.Module, x: Any) -> float:
    """Multiply-adds of a forward pass as torch counts them: two FLOPs each."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(x)
    return counter.get_total_flops() / 2


@contextmanager
def slow_path() -> Iterator[None]:
    """torch's attention layer has one kernel for all of it in eval mode, which torch's own counter doesn't know."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


MATRICES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 10), (7, 6)),
    "linear on other strides": (nn.Sequential(Call(lambda x: x.mT), nn.Linear(7, 10)), (7, 6)),
    "conv": (nn.Conv2d(3, 8, 3, stride=2, padding=1), (3, 9, 11)),
    "grouped conv": (nn.Conv2d(8, 12, 3, groups=4), (8, 9, 11)),
    "depthwise conv": (nn.Conv1d(8, 8, 5, groups=8), (8, 20)),
    "transposed conv": (nn.ConvTranspose2d(6, 4, 3, stride=2, groups=2), (6, 5, 7)),
    "matmul": (Call(lambda x: x @ x.mT), (4, 7, 6)),
    "einsum": (Call(lambda x: torch.einsum("bij,bkj->ik", x, x)), (7, 6)),
    "baddbmm": (Call(lambda x: torch.baddbmm(x, x, x)), (6, 6)),
    "attention": (Call(lambda x: F.scaled_dot_product_attention(x, x[..., :5, :], x[..., :5, :3])), (4, 7, 6)),
    "attention of torch": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (5, 8)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_multiply_adds_of_layers(name: str) -> None:
    model, size = MATRICES[name]
    with slow_path():
        expected = by_torch(model, torch.randn(2, *size)) / 2
        assert expected > 0
        assert count(model, size, batch=2).macs == expected


@pytest.mark.parametrize("case", [*cases(flop), *cases(octic)], ids=str)
def test_every_layer_can_be_counted(case: Case) -> None:
    """No operation of ours is without a rule, and the multiply-adds are right."""
    layer, x = case.make()
    parts = (x,) if isinstance(x, Tensor) else x
    sizes = tuple(tuple(part.shape[1:]) for part in parts)
    size = sizes[0] if isinstance(x, Tensor) else sizes
    counted = count(layer, size, batch=len(parts[0]))
    step = count(layer, size, batch=len(parts[0]), training=True)
    assert counted.macs == by_torch(layer, x) / len(parts[0])
    assert counted.flops >= counted.macs
    assert step.flops >= counted.flops


class Differences(TorchDispatchMode):
    """Multiply-adds that torch counts in a backward pass and we don't.

    A fused kernel of attention works its scores out again. And torch counts the gradient of a filter as if each
    output channel saw all channels of the input, which is too much by the number of groups.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recomputed = 0
        self.ungrouped = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
            _, q, k, *_ = args
            self.recomputed += q.numel() * k.shape[-2]
        if func is aten.convolution_backward.default:
            grad, _, weight, *_, groups, (_, to_weight, _) = args
            self.ungrouped += (groups - 1) * to_weight * grad.numel() * prod(weight.shape[1:])
        return func(*args, **(kwargs or {}))


TIMM = ["test_vit", "test_vit2", "test_convnext", "test_resnet", "test_efficientnet", "mixer_s32_224"]


@pytest.mark.parametrize("name", [*(name for name in ZOO if "test" in name), *TIMM])
def test_multiply_adds_of_networks_there_and_back(name: str) -> None:
    model = compute_all(timm.create_model(name, num_classes=5, drop_path_rate=0.1))
    size = (3, 64, 64) if name.startswith(("conv", "test_conv")) else model.pretrained_cfg["input_size"]
    x = torch.randn(BATCH, *size)
    with FlopCounterMode(display=False) as counter, Differences() as differences:
        model.train()(x).sum().backward()
    expected = counter.get_total_flops() / 2 - differences.recomputed - differences.ungrouped
    assert count(model, size, BATCH, training=True).macs == expected / BATCH
    assert (differences.recomputed > 0) == ("vit" in name or "deit" in name)
    assert (differences.ungrouped > 0) == ("conv" in name or "efficient" in name)
    assert count(model, size, BATCH).macs == by_torch(model, x) / BATCH


def numbers(values: list[Any]) -> int:
    return sum(prod(shape) for value in values if (shape := get_shape(value)))  # fvcore traces sizes, too: no tensors


def per_output(flops: int) -> Callable[[list[Any], list[Any]], int]:
    return lambda inputs, outputs: flops * numbers(outputs)


def attention(inputs: list[Any], outputs: list[Any]) -> Counter[str]:
    """Written out: q scaled, q k, softmax, times v."""
    q, k, v = (get_shape(value) for value in inputs[:3])
    scores = prod(q[:-1]) * k[-2]
    return Counter({"matmul": scores * (q[-1] + v[-1]), "mul": prod(q), "softmax": 5 * scores})


# The paper's prices, as handlers of fvcore. Norms have fvcore's own, which the paper took.
PRICES: dict[str, Callable[[list[Any], list[Any]], Any]] = {
    **{f"aten::{name}": per_output(1) for name in ("add", "add_", "mul", "mul_", "sub", "div", "neg", "relu", "relu_")},
    **{f"aten::{name}": per_output(4) for name in ("sigmoid", "sqrt", "rsqrt")},
    **{f"aten::{name}": per_output(5) for name in ("softmax", "pow")},
    "aten::gelu": per_output(8),
    "aten::addcmul": per_output(2),
    **{
        f"aten::{name}": lambda inputs, outputs: numbers(inputs[:1])
        for name in ("mean", "sum", "max_pool2d", "avg_pool2d")
    },
    "aten::baddbmm": lambda inputs, outputs: Counter({"bmm": numbers(outputs) * get_shape(inputs[1])[-1]}),
    "aten::scaled_dot_product_attention": attention,
}
MOVEMENT = {f"aten::{name}" for name in ("index_select", "flip", "unflatten", "pad", "numpy_T")}
PRODUCTS = {"linear", "matmul", "conv", "addmm", "bmm", "mm", "einsum"}


def unfused(model: nn.Module) -> nn.Module:
    """fvcore has no rule of its own for fused attention."""
    for layer in model.modules():
        if hasattr(layer, "fused_attn"):
            layer.fused_attn = False
    return model


def resmlp() -> nn.Module:
    return MlpMixer(
        5, 64, patch_size=16, num_blocks=2, embed_dim=32, mlp_ratio=4, block_layer=ResBlock, norm_layer=Affine
    )


class Einsum(nn.Module):
    """Products with weights, in the ways that networks write them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.einsum("bij,bik->bjk", x[:, 0], x[:, 1])[:, None]  # one that fvcore doesn't round
        rows = torch.addmm(self.weight, x[0, 0], x[0, 1])
        return torch.bmm(x[0], x[0]) + torch.mm(rows, self.weight)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "products": (Einsum, 64),
    "ViT": (lambda: unfused(timm.create_model("test_vit", num_classes=5)), 160),
    "DeiT III": (lambda: unfused(timm.create_model("deit3_small_patch16_224", depth=2)), 224),
    "ResMLP": (resmlp, 64),
    "ResNet": (lambda: timm.create_model("test_resnet", num_classes=5), 64),
    "ConvNeXt": (lambda: timm.create_model("test_convnext", num_classes=5), 64),
    "ConvNeXt, our own": (lambda: timm.create_model("convnext_iso_test", num_classes=5), 64),
    "E(ViT)": (lambda: timm.create_model("deit3_flop_test_patch16_64", num_classes=5), 64),
    "E(ResMLP)": (lambda: timm.create_model("resmlp_flop_test_64", num_classes=5), 64),
    "E(ConvNeXt)": (lambda: timm.create_model("convnext_flop_test", num_classes=5), 64),
}


def unread(name: str, path: str) -> int:
    """What fvcore leaves out, because nobody reads it: odd hidden values of ConvNeXt's last block, two steps each."""
    last = "stages.3.blocks.0.mlp.act"
    inside = not path or last == path or last.startswith(f"{path}.")
    return 2 * 4 * 256 if name == "E(ConvNeXt)" and inside else 0


@pytest.mark.parametrize("name", NETWORKS)
def test_fvcore_counts_the_same_in_every_layer(name: str) -> None:
    """Multiply-adds, as fvcore counts products, and the paper's FLOPs, as it counts with the paper's prices."""
    make, size = NETWORKS[name]
    model = compute_all(make()).eval().requires_grad_(False)
    theirs = FlopCountAnalysis(model, torch.randn(1, 3, size, size))
    theirs.unsupported_ops_warnings(False).uncalled_modules_warnings(False).set_op_handle(**PRICES)
    ours = count(model, (3, size, size))
    layers = theirs.by_module_and_operator()
    assert not theirs.unsupported_ops().keys() - MOVEMENT
    for path, counts in layers.items():
        layer = ours if path == "" else ours.layers.get(path, Count(0, 0))
        assert layer.macs == sum(counts[product] for product in PRODUCTS), path
        assert layer.flops == sum(counts.values()) + unread(name, path), path
