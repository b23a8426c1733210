"""The counter: the paper's numbers, layers, batches, what it leaves alone, and what it refuses."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from support.counting import Call
from timm.models.convnext import ConvNeXtBlock
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock
from torch import Tensor, nn

from flopping import Layout, flop, trivial
from flopping import nn as fnn
from flopping.cost.count import Count, count
from flopping.cost.meta import build_on_meta


class WrittenNorm(nn.Module):
    """Layer norm as the paper's ConvNeXt has it, one operation at a time; it counts 11 and not 5 per number."""

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        return self.weight * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)) + self.bias


def resmlp() -> nn.Module:
    return MlpMixer(num_blocks=24, embed_dim=768, mlp_ratio=4, block_layer=ResBlock, norm_layer=Affine)


def convnext(norm: Any = WrittenNorm) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 768, 16, 16),
        *(ConvNeXtBlock(768, ls_init_value=None, norm_layer=norm) for _ in range(18)),
        Call(lambda x: x.mean((-2, -1))),
        nn.LayerNorm(768),
        nn.Linear(768, 1000),
    )


# The zoo is counted in tests/models/test_zoo.py; these are written without it.
BASELINES: dict[str, tuple[Callable[[], nn.Module], float]] = {
    "ViT-B": (lambda: timm.create_model("deit3_base_patch16_224"), 17.678),
    "ResMLP-B24": (resmlp, 23.166),
    "ConvNeXt-B": (convnext, 17.016),
    "ConvNeXt-B with torch's norm": (lambda: convnext(nn.LayerNorm), 16.999),
}


@pytest.mark.parametrize("name", BASELINES)
def test_numbers_of_the_paper(name: str) -> None:
    make, giga = BASELINES[name]
    assert round(count(make).flops / 1e9, 3) == giga


@pytest.mark.parametrize("training", [False, True])
def test_flop_halves_the_matrices(training: bool) -> None:
    """But not attention itself, which sees even and odd together."""
    tokens, width = 49, 64
    times = 3 if training else 1  # a norm first, so that the gradient of the block's input is asked for
    for group, of in ((trivial, 1), (flop, 2)):
        layout = Layout.regular(group, width)
        model = nn.Sequential(fnn.LayerNorm(layout), fnn.TransformerBlock(layout, 4))
        found = count(model, ((tokens, width // of),) * of, training=training).layers["1"]
        assert found.macs == times * (tokens * width * width * 12 / of + 2 * tokens * tokens * width)


@torch.library.custom_op("flopping_test::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return 2 * x


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


DEEP = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Call(torch.lgamma)), Call(torch.digamma))
SOFT = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Call(F.softplus)), nn.Linear(4, 4))
WITHOUT_A_RULE: dict[str, tuple[nn.Module, bool, dict[str, float], str, float]] = {
    "several": (DEEP, False, {"lgamma": 10, "digamma": 20}, "digamma in layer '2' (Call), lgamma in layer '1.0'", 136),
    "the network itself": (Call(torch.lgamma), False, {"lgamma": 10}, "lgamma in the network itself (Call)", 40),
    "a custom operation": (Call(lambda x: twice(x)), False, {"flopping_test::twice": 1}, "flopping_test::twice in", 4),
    # the layer that has it, and not the one that was last or that autograd came from
    "a gradient": (SOFT, True, {"softplus_backward": 5}, "softplus_backward in layer '1.0' (Call)", 16 * 5 + 8 + 56),
    # not silently zero: what is written to may be all there is
    "no result": (Call(lambda x: torch._foreach_add_([x], 1.0)), False, {"_foreach_add": 1}, "_foreach_add in", 4),
}


@pytest.mark.parametrize(("model", "training", "costs", "words", "flops"), WITHOUT_A_RULE.values(), ids=WITHOUT_A_RULE)
def test_operations_without_a_rule_are_named_with_their_layer(
    model: nn.Module, training: bool, costs: dict[str, float], words: str, flops: float
) -> None:
    known = {"softplus": 9}
    with pytest.raises(ValueError, match=re.escape(f"cost of {words}")):
        count(model, (4,), costs=known, training=training)
    assert count(model, (4,), costs=known | costs, training=training).flops == flops


@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_is(training: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train(not training)
    before = copy.deepcopy(model.state_dict())
    found = count(model, (3, 8, 8), batch=2, training=training)
    assert ("2" in found.layers) == training  # without, the copy is in eval mode: no dropout
    assert all(layer.training != training for layer in model)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_numbers_are_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that fills the memory can still be counted; a function builds one without memory."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    for kind, method in ((Tensor, "clone"), (Tensor, "__deepcopy__"), (nn.Parameter, "__deepcopy__")):
        monkeypatch.setattr(kind, method, lambda *args: pytest.fail("copied"))
    assert count(model, (4,)).macs == 16
    assert count(lambda: nn.Linear(1 << 20, 1 << 20), (1 << 20,)).macs == 1 << 40  # 4 TB


def test_building_without_memory_leaves_out_nothing_else() -> None:
    """Numbers on the CPU, shapes and types are as the constructor makes them."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = torch.zeros(2, device="cpu").add_(3).tolist()
            self.weight = nn.Parameter(torch.empty(4, 5).normal_().mul_(0.02))
            self.vit = timm.create_model("test_vit", num_classes=5)
            self.register_buffer("grid", torch.ones(2).unsqueeze_(0))

    built = build_on_meta(Net)
    assert built.rates == [3, 3]
    assert all(value.is_meta for value in built.state_dict().values())
    kinds = [{k: (v.shape, v.dtype, v.stride()) for k, v in m.state_dict().items()} for m in (Net(), built)]
    assert kinds[0] == kinds[1]


def test_operations_are_worked_out_once() -> None:
    """Blocks of the same shape cost no more time; another shape or another type of number is another operation."""
    calls = []

    @torch.library.custom_op("flopping_test::seen", mutates_args=())
    def seen(x: Tensor, scale: float) -> Tensor:
        return x.clone()

    @seen.register_fake
    def _(x: Tensor, scale: float) -> Tensor:
        calls.append((x.shape, x.stride(), x.dtype, scale))
        return torch.empty_like(x)

    def run(x: Tensor) -> None:
        for y, scale in [(x, 1.0)] * 5 + [(x.mT, 1.0), (x.half(), 1.0), (x[..., :3], 1.0), (x, 2.0)]:
            seen(y, scale)

    assert count(lambda: Call(run), (6, 6), costs={"flopping_test::seen": 1}).flops == 8 * 36 + 18
    assert len(calls) == len(set(calls)) == 5


def test_work_is_that_of_one_sample_and_work_on_weights_is_shared_by_the_batch() -> None:
    model = timm.create_model("test_vit", num_classes=5)
    assert count(model, (3, 160, 160), batch=1) == count(model, (3, 160, 160), batch=64)
    shared = Call(lambda x: x + torch.ones(3, 8).exp().sum(-1))  # 4 * 24 + 24 for all samples together
    assert [count(shared, (3,), batch=b).flops for b in (1, 4)] == [3 + 120, 3 + 30]


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


@pytest.mark.parametrize("size", [(3, "4"), ((3, 4), 5), ((3,), (4.0,)), (3, -1)])
def test_impossible_arguments_are_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="input_size"):
        count(nn.Identity(), size)
    with pytest.raises(ValueError, match="batch is at least 1, got 0"):
        count(nn.Identity(), (3,), batch=0)
