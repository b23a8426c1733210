"""A training step: what it costs, and whose work the backward pass is."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from support.counting import Call
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.cost.count import Count, count


def linear(inward: int, outward: int, rows: int, first: bool) -> Count:
    """Forward, the gradient of the weight, and that of the input unless it is the network's; the bias is a sum."""
    macs = (2 if first else 3) * rows * inward * outward
    return Count(macs, macs + rows * outward)


def test_a_perceptron_by_hand() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))
    step = count(model, (7, 6), training=True)
    assert step.layers["0"] == linear(6, 8, 7, first=True)
    assert step.layers["1"] == Count(0, (8 + 17) * 7 * 8)
    assert step.layers["2"] == linear(8, 5, 7, first=False)
    assert step.macs == sum(layer.macs for layer in step.layers.values())
    assert step.flops == sum(layer.flops for layer in step.layers.values())


def test_frozen_layers_cost_less() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 4))
    model[0].requires_grad_(False)
    step = count(model, (6,), training=True)
    assert step.layers["0"].macs == 6 * 8  # nothing to learn, and nobody below who learns
    assert step.layers["1"] == linear(8, 5, 1, first=True)
    model[2].requires_grad_(False)
    assert count(model, (6,), training=True).layers["2"].macs == 2 * 5 * 4
    model.requires_grad_(False)
    assert count(model, (6,), training=True) == count(model, (6,))


def test_layers_inside_are_as_layers_alone() -> None:
    """The work in a network is that of the layer on its own, with a learned input; sums of branches go to the block."""

    def alone(layer: nn.Module, size: tuple[int, ...]) -> Count:
        return count(Call(lambda layer, x, _: layer(x), layer=layer, x=torch.ones(size)), (1,), training=True)

    block = Block(64, 2, qkv_bias=True, init_values=0.1, proj_drop=0.1, drop_path=0.1)
    step = alone(block, (1, 10, 64))
    for name in ("norm1", "attn.qkv", "ls1", "mlp", "mlp.act"):
        found = alone(block.get_submodule(name), (1, 10, 256) if name == "mlp.act" else (1, 10, 64))
        assert step.layers[f"layer.{name}"] == found.layers["layer"], name
    children = sum(step.layers[f"layer.{name}"].flops for name, _ in block.named_children())
    # two residual sums, and two sums of gradients where a value goes into a branch and past it
    assert step.layers["layer"].flops == children + 4 * 10 * 64
    assert step.flops == step.layers["layer"].flops


@pytest.mark.parametrize("name", ["resmlp_flop_test_64", "convnext_flop_test"])
def test_matrices_are_all_inside_layers(name: str) -> None:
    """A step has thrice the multiply-adds of a forward pass, less the gradient of the image.

    Without gradients the last block of a ConvNeXt computes its even channels alone, so there it is a little more.
    """
    model = timm.create_model(name, drop_path_rate=0.1)
    step = count(model, (3, 64, 64), batch=2, training=True)
    for prefix in ("", "blocks." if name.startswith("resmlp") else "stages."):
        inner = [layer for path, layer in step.layers.items() if path.rpartition(".")[0] == prefix.rstrip(".")]
        assert step.layers.get(prefix.rstrip("."), step).macs == sum(layer.macs for layer in inner)
    forward = count(model, (3, 64, 64), batch=2)
    assert 2 < step.macs / forward.macs < (3.1 if name.startswith("convnext") else 3)
    assert set(forward.layers) <= set(step.layers)


@pytest.mark.parametrize("layer", ["dropout", "drop path"])
def test_dropping_is_counted_in_training_only(layer: str) -> None:
    layout = Layout.regular(flop, 8)
    drop = fnn.Dropout(layout, 0.5) if layer == "dropout" else fnn.DropPath(layout, 0.5)
    model = nn.Sequential(fnn.Linear(layout, layout, bias=False), drop)
    assert "1" not in count(model, ((3, 4), (3, 4))).layers
    step = count(model, ((3, 4), (3, 4)), training=True)
    # numbers times mask there and back; the mask over 1 - p is as large as the numbers, or one per sample
    assert step.layers["1"].flops == 2 * 24 + (24 if layer == "dropout" else 1)


def test_weights_used_twice_add_their_gradients() -> None:
    step = count(Call(lambda layer, x: layer(layer(x)), layer=nn.Linear(6, 6, bias=False)), (6,), training=True)
    assert step.macs == 5 * 36
    assert step.layers["layer"] == Count(5 * 36, 5 * 36 + 36)  # both uses are in the layer, so the sum is too


@pytest.mark.parametrize("swapped", [False, True])
def test_sums_of_gradients_belong_to_what_holds_all_uses(swapped: bool) -> None:
    def outer(a: nn.Module, b: nn.Module, inner: nn.Module, x: Tensor) -> Any:
        x, y = a(x), b(x)
        return inner(x, y), y * 3

    layers = {name: nn.Linear(4, 4, bias=False) for name in "ab"}
    inner = Call(lambda x, y: ((y * x if swapped else x * y), x * 2))
    step = count(Call(outer, **layers, inner=inner), (4,), training=True)
    assert step.layers["a"] == step.layers["b"] == Count(32, 32)
    assert step.layers["inner"].flops == 4 * (2 + 3)
    # y * 3 there and back; two sums of gradients, as one node feeds both: what is inside and what isn't
    assert step.flops - 64 - 20 == 4 * (2 + 2)


def test_recomputed_work_is_counted_where_it_is_done() -> None:
    """Checkpointing runs the block again, until it has what the gradients need."""

    class Saving(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            return self[2](checkpoint(self[1], self[0](x), use_reentrant=False))

    parts = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)), nn.Linear(6, 6)
    plain, saving = (count(kind(*parts), (6,), training=True) for kind in (nn.Sequential, Saving))
    assert saving.layers["1.0"].macs == plain.layers["1.0"].macs + 48
    assert saving.layers["1.1"].flops == plain.layers["1.1"].flops + 8 * 8
    assert {p: saving.layers[p] for p in ("0", "1.2", "2")} == {p: plain.layers[p] for p in ("0", "1.2", "2")}


def test_outputs_of_any_structure_and_without_gradients() -> None:
    def outputs(layer: nn.Module, x: Tensor) -> dict[str, Any]:
        y = layer(x)
        return {"a": [y, x], "b": (y * 2, torch.arange(3))}

    step = count(Call(outputs, layer=nn.Linear(4, 4, bias=False)), (4,), training=True)
    assert (step.macs, step.flops) == (32, 32 + 4 + 4 + 4)  # y * 2 there and back, and the sum of two gradients
    assert count(nn.Identity(), (4,), training=True) == Count(0, 0)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_step_is_counted_inside_code_without_gradients(context: Any) -> None:
    model = nn.Linear(4, 4)
    with context():
        assert count(model, (4,), training=True).macs == 32
        assert count(lambda: nn.Linear(4, 4), (4,), training=True).macs == 32
    assert model.weight.grad is None


# Fused attention counts as if it were written out, and so do its gradients ------------------------------------------


def attention(fused: bool, **kwargs: Any) -> Call:
    def run(qkv: nn.Module, x: Tensor) -> Tensor:
        q, k, v = qkv(x).chunk(3, -1)
        if fused:
            return F.scaled_dot_product_attention(q, k, v, **kwargs)
        scores = (q * 0.5) @ k.mT
        if "attn_mask" in kwargs or "is_causal" in kwargs:
            scores = scores + torch.ones(5, 5)
        return F.dropout(scores.softmax(-1), kwargs.get("dropout_p", 0.0)) @ v

    return Call(run, qkv=nn.Linear(8, 24))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"dropout_p": 0.2},
        {"is_causal": True},
        {"attn_mask": torch.ones(5, 5, device="meta")},
        {"attn_mask": torch.ones(5, 5, device="meta", dtype=torch.bool)},
        {"scale": 2.0},
    ],
    ids=str,
)
def test_attention_counts_as_if_unfused(kwargs: dict[str, Any], training: bool) -> None:
    fused, plain = (count(attention(f, **kwargs), (5, 8), training=training) for f in (True, False))
    assert fused == plain
    assert fused.layers == plain.layers
    linear, products = (2, 3) if training else (1, 1)  # nobody asks for the gradient of the input
    assert fused.macs == linear * 5 * 8 * 24 + products * 2 * 5 * 5 * 8


def test_attention_of_grouped_queries() -> None:
    grouped = Call(
        lambda q, kv, _: F.scaled_dot_product_attention(q, kv, kv, enable_gqa=True),
        q=torch.ones(1, 4, 5, 8),
        kv=torch.ones(1, 2, 5, 8),
    )
    assert count(grouped, (1,), training=True).macs == 3 * 2 * 4 * 5 * 5 * 8
