"""The counter against torch's own, against the paper's numbers, and against work written out by hand."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.models.convnext import ConvNeXtBlock
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flopping import Layout, flop, octic, trivial
from flopping import nn as fnn
from flopping.bench.count import Count, count
from flopping.cases import Case, cases


class Call(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class WrittenNorm(nn.Module):
    """Layer norm as the paper's ConvNeXt has it, one operation at a time; it counts 11 and not 5 per number."""

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return self.weight * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) + self.bias


def resmlp(width: int) -> nn.Module:
    return MlpMixer(num_blocks=24, embed_dim=width, mlp_ratio=4, block_layer=ResBlock, norm_layer=Affine)


def convnext(width: int, depth: int, scale: float | None = None, norm: Any = WrittenNorm) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 16, 16),
        *(ConvNeXtBlock(width, ls_init_value=scale, norm_layer=norm) for _ in range(depth)),
        Call(lambda x: x.mean((-2, -1))),
        nn.LayerNorm(width),
        nn.Linear(width, 1000),
    )


BASELINES: dict[str, tuple[Callable[[], nn.Module], float, int]] = {
    "ViT-S": (lambda: timm.create_model("deit3_small_patch16_224"), 4.7, 1),
    "ViT-B": (lambda: timm.create_model("deit3_base_patch16_224"), 17.678, 3),
    "ViT-L": (lambda: timm.create_model("deit3_large_patch16_224"), 61.9, 1),
    "ViT-H": (lambda: timm.create_model("deit3_huge_patch14_224"), 168.0, 1),
    "ResMLP-T12": (lambda: timm.create_model("resmlp_12_224"), 3.0, 1),
    "ResMLP-S24": (lambda: timm.create_model("resmlp_24_224"), 6.0, 1),
    "ResMLP-B24": (lambda: resmlp(768), 23.166, 3),
    "ResMLP-L24": (lambda: resmlp(1280), 63.3, 1),
    "ConvNeXt-S": (lambda: convnext(384, 18), 4.3, 1),
    "ConvNeXt-B": (lambda: convnext(768, 18), 17.016, 3),
    "ConvNeXt-B with torch's norm": (lambda: convnext(768, 18, norm=nn.LayerNorm), 16.999, 3),
    "ConvNeXt-L": (lambda: convnext(1024, 36, scale=1e-6), 60.0, 1),
}


@pytest.mark.parametrize("name", BASELINES)
def test_numbers_of_the_paper(name: str) -> None:
    make, giga, decimals = BASELINES[name]
    assert round(count(make).flops / 1e9, decimals) == giga


def by_torch(model: nn.Module, x: Any) -> float:
    """Multiply-adds as torch counts them: two FLOPs each."""
    with FlopCounterMode(display=False) as counter:
        model.eval().requires_grad_(False)(x)
    return counter.get_total_flops() / 2


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
    "ViT": (timm.create_model("test_vit", num_classes=5), (3, 160, 160)),
    "ConvNeXt": (timm.create_model("test_convnext", num_classes=5), (3, 64, 64)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_multiply_adds_as_torch_counts_them(name: str) -> None:
    model, size = MATRICES[name]
    expected = by_torch(model, torch.randn(2, *size)) / 2
    assert expected > 0
    assert count(model, size, batch=2).macs == expected


@pytest.mark.parametrize("case", [*cases(flop), *cases(octic)], ids=str)
def test_every_layer_can_be_counted(case: Case) -> None:
    """No operation of ours is without a rule, and the multiply-adds are right."""
    layer, x = case.make()
    parts = (x,) if isinstance(x, Tensor) else x
    sizes = tuple(tuple(part.shape[1:]) for part in parts)
    counted = count(layer, sizes[0] if isinstance(x, Tensor) else sizes, batch=len(parts[0]))
    assert counted.macs == by_torch(layer, x) / len(parts[0])
    assert counted.flops >= counted.macs


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
    "variance": (lambda x: x.var(-1), 4 * N),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), 4 * N),
    "layer norm, scaled": (lambda x: F.layer_norm(x, (4,), x.new_ones(4), x.new_ones(4)), 5 * N),
    "batch norm": (lambda x: F.batch_norm(x, x.new_ones(3), x.new_ones(3)), N),
    "batch norm, scaled": (lambda x: F.batch_norm(x, *(x.new_ones(3) for _ in range(4))), 2 * N),
    "bias": (lambda x: F.linear(x, x.new_ones(2, 4), x.new_ones(2)), 2 * N),
    "addmm": (lambda x: torch.addmm(x.new_ones(2), x[0], x.new_ones(4, 2)), 2 * N),
    "matrix and vector": (lambda x: x[0] @ x[0, 0], N),
    "movement": (
        lambda x: torch.cat([x.flip(-1), x.roll(1, 0)[..., [1, 0]]], -1).reshape(-1).clone().to(torch.half),
        0,
    ),
    "views in place": (lambda x: x.unsqueeze_(0).transpose_(1, 2).squeeze_(0), 0),
    "constants": (lambda x: torch.where(x > 0, x, torch.zeros_like(x)), 0),
    "integers": (lambda x: torch.arange(5) * 2 + 1, 0),
    "dropout": (lambda x: F.dropout(x, training=False), 0),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_work(name: str) -> None:
    function, flops = ELEMENTWISE[name]
    counted = count(Call(function), input_size=(3, 4))
    assert counted.flops == flops
    assert counted.macs == (flops if name in ("bias", "addmm", "matrix and vector") else 0)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_counts_as_if_unfused(masked: bool) -> None:
    def mask(q: Tensor) -> Tensor | None:
        return q.new_zeros(q.shape[-2], q.shape[-2]) if masked else None

    def written(x: Tensor) -> Tensor:
        q, k, v = x.unbind(1)
        scores = (q * 0.5) @ k.mT
        return ((scores + mask(q)) if masked else scores).softmax(-1) @ v

    def fused(x: Tensor) -> Tensor:
        q, k, v = x.unbind(1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask(q))

    size = (3, 2, 7, 4)
    assert count(Call(fused), size) == count(Call(written), size)
    if masked:
        causal = Call(lambda x: F.scaled_dot_product_attention(*x.unbind(1), is_causal=True))
        assert count(causal, size) == count(Call(fused), size)


def test_flop_halves_the_matrices() -> None:
    """But not attention itself, which sees even and odd together."""
    tokens, width = 49, 64
    attention = 2 * tokens * tokens * width
    dense = count(fnn.TransformerBlock(Layout.regular(trivial, width), 4), ((tokens, width),))
    halved = count(fnn.TransformerBlock(Layout.regular(flop, width), 4), ((tokens, width // 2),) * 2)
    assert dense.macs == tokens * width * width * 12 + attention
    assert halved.macs == tokens * width * width * 12 / 2 + attention


def test_operation_without_a_rule_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Call(torch.lgamma), Call(torch.digamma))
    with pytest.raises(ValueError, match="cost of digamma, lgamma"):
        count(model, (4,))
    assert count(model, (4,), costs={"lgamma": 10, "digamma": 20}).flops == 16 + 120


def test_costs_overrule_the_table() -> None:
    assert count(nn.GELU(), (4,), costs={"gelu": 1}).flops == 4
    assert count(nn.Linear(4, 4), (4,), costs={"linear": 1}) == Count(0, 4)
    assert count(nn.LayerNorm(4), (4,), costs={"layer_norm": 1}).flops == 4  # a name that torch would take apart


def test_custom_operation_is_named_with_its_namespace() -> None:
    @torch.library.custom_op("flopping_test::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    @twice.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    with pytest.raises(ValueError, match="cost of flopping_test::twice:"):
        count(lambda: Call(twice), (4,))
    assert count(lambda: Call(twice), (4,), costs={"flopping_test::twice": 1}).flops == 4


def test_model_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    before = copy.deepcopy(model.state_dict())
    assert "2" not in count(model, (3, 8, 8)).layers  # no dropout: the copy is in eval mode
    assert all(layer.training and not layer._forward_hooks and not layer._forward_pre_hooks for layer in model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_numbers_are_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that fills the memory can still be counted."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    def refuse(*args: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(Tensor, "clone", refuse)
    monkeypatch.setattr(Tensor, "__deepcopy__", refuse)
    monkeypatch.setattr(nn.Parameter, "__deepcopy__", refuse)
    assert count(model, (4,)).macs == 16


def test_a_function_builds_without_memory() -> None:
    devices = []

    def make() -> nn.Module:
        layer = nn.Linear(1 << 20, 1 << 20)  # 4 TB
        devices.append(layer.weight.device.type)
        return layer

    assert count(make, (1 << 20,)).macs == 1 << 40
    assert devices == ["meta"]


def test_per_sample_of_the_batch() -> None:
    model = timm.create_model("test_vit", num_classes=5)
    assert count(model, (3, 160, 160), batch=1) == count(model, (3, 160, 160), batch=64)


def test_work_on_weights_is_shared_by_the_batch() -> None:
    model = Call(lambda x: x + torch.ones(3, 8).exp().sum(-1))  # 4 * 24 + 24 for all samples together
    assert [count(model, (3,), batch=b).flops for b in (1, 4)] == [3 + 120, 3 + 30]


def test_layers() -> None:
    model = timm.create_model("test_vit", num_classes=5)
    total = count(model, (3, 160, 160))
    layers = total.layers
    assert layers["patch_embed.proj"] == Count(100 * 64 * 3 * 16 * 16, 100 * 64 * 3 * 16 * 16)
    inner = [path for path in layers if path.startswith("blocks.0.") and path.count(".") == 2]
    adds = 2 * 101 * 64  # the residual sums belong to the block itself
    assert layers["blocks.0"].flops == sum(layers[path].flops for path in inner) + adds
    assert layers["blocks"].macs == sum(layers[f"blocks.{i}"].macs for i in range(len(model.blocks)))
    assert layers["head"] == Count(64 * 5, 64 * 5)
    top = sum(layer.flops for path, layer in layers.items() if "." not in path)
    assert total.flops == top + 101 * 64  # and the position embedding


def test_a_list_of_layers_has_a_sum() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    assert count(Net(), (4,)).layers["layers"].macs == 48


@pytest.mark.parametrize("size", [(3, "4"), ((3, 4), 5), ((3,), (4.0,)), (3, -1)])
def test_impossible_arguments_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="input_size"):
        count(nn.Identity(), size)
    with pytest.raises(ValueError, match="batch is at least 1, got 0"):
        count(nn.Identity(), (3,), batch=0)
