"""The last block computes what the head reads, and nothing changes by that: logits, gradients, hooks, all features."""

from __future__ import annotations

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from flopping.models import Backbone
from flopping.models.blocks import find_blocks
from flopping.testing import randomize_, relative_error

NETWORKS = [
    *(f"deit3_flop_{kind}test_patch16_64" for kind in ("", "hybrid_", "invariant_")),
    "vit_flop_test_patch16_rope_reg4_64",
    *("resmlp_test_64", "resmlp_flop_test_64", "convnext_flop_iso_test", "convnext_flop_test"),
    # networks of another group
    *("deit3_flop_test_patch16_64 trivial", "deit3_flop_test_patch16_64 octic"),
    *("resmlp_flop_test_64 rot90", "resmlp_flop_test_64 octic"),
]


def create(name: str, **kwargs: object) -> Backbone:
    torch.manual_seed(0)
    name, *group = name.split()
    model = timm.create_model(name, **{"group": group[0]} if group else {}, **kwargs)
    assert isinstance(model, Backbone)
    return randomize_(model).double()


def multiply_adds(model: Backbone, forward: str, image: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        getattr(model, forward)(image)
    return counter.get_total_flops() // 2


@pytest.fixture
def image() -> torch.Tensor:
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)).double()


# Nothing is dropped at random here: one network of each kind is enough to see that training takes the same lines.
TRAINED = (
    "deit3_flop_test_patch16_64",
    "deit3_flop_invariant_test_patch16_64",
    "resmlp_flop_test_64",
    "convnext_flop_test",
)
MODES = [
    pytest.param(name, training, marks=pytest.mark.long if training and name not in TRAINED else ())
    for name in NETWORKS
    for training in (False, True)
]


@pytest.mark.parametrize(("name", "training"), MODES)
def test_same_logits_and_gradients_for_less_work(name: str, training: bool, image: torch.Tensor) -> None:
    model = create(name).train(training)
    found = []
    for forward in ("forward", "forward_all"):
        model.zero_grad()
        logits = getattr(model, forward)(image)
        logits.square().sum().backward()
        found.append((logits, *(p.grad for p in model.parameters())))
    for fast, full in zip(*found, strict=True):
        assert (not fast.any()) if full is None else relative_error(fast, full) < 1e-9
    full, less = multiply_adds(model, "forward_all", image), multiply_adds(model, "forward", image)
    share = {"conv": 0.05, "resm": 0.25}.get(name[:4], 0.5)
    assert full - less > share * full / len(find_blocks(model))


@pytest.mark.parametrize("name", ["deit3_flop_test_patch16_64", "resmlp_flop_test_64", "convnext_flop_test"])
def test_hooks_on_the_last_block_are_called(name: str, image: torch.Tensor) -> None:
    """Also in training with checkpointing; the layer in front of the attention sees all tokens."""
    model = create(name).train()
    model.set_grad_checkpointing()
    block = model.get_submodule("stages.3.blocks.0" if "convnext" in name else "blocks.3")
    seen: dict[str, object] = {}
    for path, layer in block.named_modules():
        layer.register_forward_hook(lambda _, args, out, path=path: seen.setdefault(path, out))
    model(image)
    assert seen.keys() >= {path for path, _ in block.named_children()} | {""}
    if "deit3" in name:
        assert [part.shape[1] for part in seen["norm1"]] == [17, 17]
        assert [part.shape[1] for part in seen["norm2"]] == [1, 1]


@pytest.mark.parametrize("kwargs", [{"global_pool": "avg"}, {"global_pool": ""}, {"global_pool": "max"}])
def test_heads_that_read_all_tokens(kwargs: dict[str, str], image: torch.Tensor) -> None:
    model = create("deit3_flop_test_patch16_64", **kwargs).eval()
    assert model.read is None
    assert torch.equal(model(image), model.forward_all(image))


def test_dropout_behind_the_last_map_comes_before_the_mean(image: torch.Tensor) -> None:
    model = create("resmlp_flop_test_64", proj_drop_rate=0.5)
    assert model.train().read is None
    assert model.eval().read is not None


def test_what_was_put_in_the_place_of_a_matrix_is_called(image: torch.Tensor) -> None:
    """As adapters are: then queries are computed for all tokens."""
    model = create("deit3_flop_test_patch16_64").eval()
    qkv = model.blocks[-1].attn.qkv
    qkv.even = torch.nn.Sequential(qkv.even, torch.nn.Tanh())
    assert relative_error(model(image), model.forward_all(image)) < 1e-9
