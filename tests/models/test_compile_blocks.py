"""Compiled blocks: one graph for each kind of block, one more for other batches, and the same logits."""

from __future__ import annotations

from functools import cache, partial

import pytest
import timm
import torch
from support.marks import needs_compiler
from torch._dynamo.utils import counters

import flopping
from flopping.functional import operation
from flopping.machine import has_onednn
from flopping.models.blocks import find_blocks
from flopping.testing import randomize_, relative_error

needs_onednn = pytest.mark.skipif(not has_onednn(), reason="this torch was built without oneDNN")


@pytest.mark.parametrize(
    "name",
    [
        "deit3_flop_hybrid_test_patch16_64",
        pytest.param("deit3_flipflop_test_patch16_64", marks=pytest.mark.long),
        "resmlp_flop_test_64",
        "convnext_flop_iso_test",
    ],
)
@pytest.mark.parametrize("onednn", [False, pytest.param(True, marks=needs_onednn)], ids=["torch", "onednn"])
def test_one_graph_for_each_kind(name: str, onednn: bool) -> None:
    """Kinds: blocks before and after a hand-off, and the last block, which computes less.

    A transformer's last block, which computes the class token alone, is not compiled. What a back end makes of graphs
    is not asked here.
    """
    model = randomize_(timm.create_model(name)).eval()
    kinds = 1 if "deit3_flipflop" in name else 2
    torch.compiler.reset()
    counters.clear()
    flopping.use_onednn(onednn)
    compiled = flopping.compile_blocks(flopping.fuse(model), backend="eager", fullgraph=True)
    found = []
    with torch.no_grad():
        for batch in (2, 3, 5):
            image = torch.randn(batch, 3, 64, 64)
            assert relative_error(compiled(image), model(image)) < 1e-5
            found.append(counters["stats"]["unique_graphs"])
    assert found == [kinds, 2 * kinds, 2 * kinds]
    assert not counters["graph_break"]


def test_which_blocks_of_a_transformer_are_compiled() -> None:
    """Not the last one, if it is there for the class token alone and isn't the only one."""
    cases = ((3, "token", False, 2), (3, "token", True, 3), (3, "avg", False, 3), (1, "token", False, 1))
    for depth, pool, every, wanted in cases:
        model = timm.create_model("deit3_flop_test_patch16_64", depth=depth, global_pool=pool)
        flopping.compile_blocks(model, every=every, backend="eager")
        assert [block._compiled_call_impl is not None for block in model.blocks] == [n < wanted for n in range(depth)]


def test_every_adds_to_the_default() -> None:
    model = timm.create_model("resnet_flop_test", depths=(1, 1), widths=(8, 16))
    flopping.compile_blocks(model, every=True, backend="eager")
    layers = {*model.layers_to_compile, *find_blocks(model)}
    assert {layer for layer in model.modules() if layer._compiled_call_impl is not None} == layers
    assert {model.conv1, model.bn1, model.maxpool} < layers


@pytest.mark.parametrize("form", ["fused", "as it is"])
@torch._dynamo.config.patch(cache_size_limit=8)  # torch's own, whatever ran before
def test_the_stem_of_a_residual_network_is_compiled(form: str) -> None:
    """Convolution and pooling of the stem, and its norm if it is still there, beside two blocks of two kinds."""
    model = randomize_(timm.create_model("resnet_flop_test", depths=(1, 1), widths=(8, 16))).eval()
    image = torch.randn(2, 3, 33, 33)
    torch.compiler.reset()
    counters.clear()
    with torch.no_grad():
        expected = model(image)
        network = flopping.fuse(model) if form == "fused" else model
        compiled = flopping.compile_blocks(network, backend="eager", fullgraph=True)
        assert relative_error(compiled(image), expected) < 1e-5
    graphs = 2 + (2 if form == "fused" else 3)
    assert counters["stats"]["unique_graphs"] == graphs
    assert torch._dynamo.config.cache_size_limit >= 8 * graphs
    assert not counters["graph_break"]


@needs_compiler
def test_operations_compiled_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch holds until it is turned off. Code is generated in the next test."""
    monkeypatch.setattr(operation, "_compile", cache(partial(torch.compile, backend="eager")))
    model = randomize_(timm.create_model("deit3_flop_test_patch16_64", depth=2)).eval()
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = model(image)
        flopping.compile_operations()
        counters.clear()
        try:
            assert relative_error(model(image), expected) < 1e-5
            assert counters["stats"]["unique_graphs"] > 0
            compiled = counters["stats"]["calls_captured"]
        finally:
            flopping.compile_operations(False)
        assert torch.equal(model(image), expected)
        assert counters["stats"]["calls_captured"] == compiled


@needs_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler looks at it
def test_training_with_compiled_operations() -> None:
    model = randomize_(timm.create_model("resmlp_flop_test_64", depth=1)).train()
    image = torch.randn(2, 3, 64, 64)
    gradients = []
    for switch in (False, True):
        flopping.compile_operations(switch)
        try:
            model.zero_grad()
            model(image).square().sum().backward()
        finally:
            flopping.compile_operations(False)
        gradients.append([p.grad.clone() for p in model.parameters()])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
