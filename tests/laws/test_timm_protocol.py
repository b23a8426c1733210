"""What users of timm expect of a model, beyond what timm's own suite asks."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay, param_groups_weight_decay

from flopping.models import ZOO, Backbone
from flopping.testing import assert_equivariant, randomize_

NAMES = [
    "deit3_flop_invariant_test_patch16_64",
    "deit3_octic_invariant_test_patch16_64",
    "resmlp_flop_test_64",
    "convnext_flop_iso_test",
    "convnext_flop_test",
    "resnet_flop_test",
]

# Few blocks are compiled like many; most networks run in `make test-long`.
COMPILED = [pytest.param(name, marks=() if name == NAMES[0] else pytest.mark.long) for name in ZOO if "test" in name]


def create(name: str, **kwargs: object) -> Backbone:
    model = timm.create_model(name, **kwargs)
    assert isinstance(model, Backbone)
    randomize_(model)
    return model.eval()


def create_shallow(name: str) -> Backbone:
    """With two blocks, or one for each segment between hand-offs; networks of stages are small enough."""
    kinds = ZOO[name].args.get("handoffs", {}).values()
    depth = max(2, len(kinds) + 1)
    handoffs = {"handoffs": dict(enumerate(kinds, 1))} if kinds else {}
    if len(ZOO[name].args.get("depths", (1,))) > 1:
        return create(name)
    return create(name, **({"depths": (depth,)} if "iso" in name else {"depth": depth}), **handoffs)


def random_image(name: str, batch: int = 2, channels: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    size = ZOO[name].img_size
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.fixture
def image(request: pytest.FixtureRequest) -> torch.Tensor:
    """Of the size that the network of the test takes."""
    of_test = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return random_image(of_test.get("name", NAMES[0]))


@pytest.mark.parametrize("name", NAMES)
def test_classifier_can_be_replaced(name: str, image: torch.Tensor) -> None:
    """And the features in front of it ignore mirroring."""
    model = create(name, num_classes=7)
    features = model.forward_head(model.forward_features(image), pre_logits=True)
    torch.testing.assert_close(model.get_classifier()(features), model(image))
    model.reset_classifier(0)
    torch.testing.assert_close(model(image), features)
    torch.testing.assert_close(model(image.flip(-1)), features, rtol=1e-4, atol=1e-4)
    model.reset_classifier(3)
    assert model(image).shape == (2, 3)
    assert model.get_classifier().in_features == model.head_hidden_size


@pytest.mark.parametrize("pool", ["token", "avg", "max", "avgmax"])
def test_pools_of_a_transformer(pool: str, image: torch.Tensor) -> None:
    model = create("deit3_flop_test_patch16_64", global_pool=pool)
    assert_equivariant(model, image)
    other = "token" if pool == "avg" else "avg"
    before = model(image)
    model.reset_classifier(1000, other)
    model.head.load_state_dict(create("deit3_flop_test_patch16_64").head.state_dict())
    assert not torch.allclose(model(image), before)


@pytest.mark.parametrize("name", NAMES)
def test_grey_images(name: str) -> None:
    assert_equivariant(create(name, in_chans=1), random_image(name, channels=1))


@pytest.mark.parametrize("name", NAMES)
def test_gradient_checkpointing_runs_blocks_again_and_changes_nothing(name: str, image: torch.Tensor) -> None:
    model = create(name).train()
    gradients, calls = [], []
    first = {"convnext": "stages.0.blocks.0", "resnet": "layer1.blocks.0"}.get(name.partition("_")[0], "blocks.0")
    model.get_submodule(first).register_forward_pre_hook(lambda *_: calls.append(1))
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(image).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)
    assert len(calls) == 1 + 2


@pytest.mark.parametrize("name", NAMES)
def test_layer_decay_follows_depth(name: str) -> None:
    model = create(name)
    groups = param_groups_layer_decay(model, layer_decay=0.5, no_weight_decay_list=model.no_weight_decay())
    scales = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    by_name = {n: scales[id(p)] for n, p in model.named_parameters()}
    stem = next(v for n, v in by_name.items() if n.startswith(("patch_embed", "stem", "conv1")))
    head = by_name[next(n for n in ("head.fc.weight", "fc.weight", "head.weight") if n in by_name)]
    blocks = [n for n in by_name if "blocks" in n]
    assert stem < by_name[blocks[0]] < by_name[blocks[-1]] <= head == 1.0
    handoffs = [v for n, v in by_name.items() if n.startswith("handoffs.2")]
    assert all(v == by_name[next(n for n in blocks if n.startswith("blocks.2."))] for v in handoffs)
    assert bool(handoffs) == ("invariant" in name)


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_is_for_weights(name: str) -> None:
    model = create(name)
    groups = param_groups_weight_decay(model, 0.1, no_weight_decay_list=model.no_weight_decay())
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    names = {n for n, p in model.named_parameters() if id(p) in decayed}
    assert names
    assert all(
        n.endswith("weight") or re.search(r"(linear_tokens|conv_dw|conv\d|downsample\.\d)\.weight", n) for n in names
    )
    assert model.no_weight_decay() <= {n for n, _ in model.named_parameters()}
    assert not any(n.startswith(("pos_embed", "cls_token")) for n in names)


def test_drop_rates_reach_the_layers() -> None:
    rates = {
        "drop_rate": 0.1,
        "pos_drop_rate": 0.2,
        "proj_drop_rate": 0.3,
        "attn_drop_rate": 0.4,
        "drop_path_rate": 0.5,
    }
    model = timm.create_model("deit3_flop_test_patch16_64", **rates)
    assert model.head_drop.p == 0.1
    assert model.pos_drop.p == 0.2
    assert model.blocks[3].mlp.drop1.p == 0.3
    assert model.blocks[3].attn.attn_drop == 0.4
    assert {block.drop_path1.drop_prob for block in model.blocks} == {0.5}
    convnext = timm.create_model("convnext_flop_test", drop_path_rate=0.4)
    found = [block.drop_path.drop_prob for stage in convnext.stages for block in stage.blocks]
    assert found == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    resmlp = timm.create_model("resmlp_flop_test_64", drop_path_rate=0.2, proj_drop_rate=0.1)
    assert {block.drop_path2.drop_prob for block in resmlp.blocks} == {0.2}
    assert resmlp.blocks[0].mlp_channels.drop2.p == 0.1


def test_input_size_can_be_changed() -> None:
    model, x = create("deit3_flop_test_patch16_64"), torch.randn(2, 3, 80, 112)
    before = {n: p.clone() for n, p in model.named_parameters() if not n.startswith("pos_embed")}
    model.set_input_size((80, 112))
    assert model.pos_embed.grid_size == (5, 7)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters() if n in before)
    assert_equivariant(model, x)
    dynamic = create("deit3_flop_test_patch16_64", dynamic_img_size=True)
    torch.testing.assert_close(dynamic(x), model(x))


@pytest.mark.parametrize("name", NAMES)
def test_dtype_and_device_arguments(name: str) -> None:
    model = timm.create_model(name, dtype=torch.float64, device="cpu")
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert_equivariant(randomize_(model), random_image(name, dtype=torch.float64))


def test_other_feature_extractors_are_refused() -> None:
    """They see single layers, whose features are tuples, and would take one part for the whole."""
    with pytest.raises(ValueError, match="got 'hook'"):
        timm.create_model("convnext_flop_test", features_only=True, feature_cls="hook")


def test_pruned_networks_say_what_is_gone(image: torch.Tensor) -> None:
    model = create("deit3_flop_hybrid_test_patch16_64")
    with pytest.raises(ValueError, match="after index 1 there is nothing"):
        model.prune_intermediate_layers([1], prune_head=False)
    assert model.prune_intermediate_layers([1], prune_norm=True) == [1]
    assert not model.handoffs
    assert len(model.feature_info) == len(model.layouts) == 2
    assert len(model.forward_intermediates(image, intermediates_only=True)) == 2
    with pytest.raises(ValueError, match="the final norm was pruned away"):
        model.forward_intermediates(image, norm=True, intermediates_only=True)
    with pytest.raises(ValueError, match="there can't be 5 classes"):
        model.reset_classifier(5)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_with_dynamic_batch(name: str, image: torch.Tensor) -> None:
    """The whole graph, without breaks, and no new graph for another batch."""
    model = create_shallow(name)
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        for batch in (2, 3, 5):
            x = random_image(name, batch)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(graphs) == 1


@pytest.mark.parametrize("name", COMPILED)
def test_exported_with_dynamic_batch(name: str, image: torch.Tensor) -> None:
    model = create_shallow(name)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (image,), dynamic_shapes=({0: batch},)).module()
    with torch.no_grad():
        for n in (1, 7):
            x = random_image(name, n)
            torch.testing.assert_close(exported(x), model(x))
