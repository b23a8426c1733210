"""The networks: what they promise under the group, gradients, schedules, and what they refuse."""

from __future__ import annotations

import re

import pytest
import timm
import torch
from torch import nn

from flopping import flop
from flopping.groups import get_group
from flopping.models import ZOO, Backbone, ConvNeXt, ResMlp, ResNet, VisionTransformer
from flopping.testing import TOLERANCES, assert_equivariant, randomize_, relative_error

LARGE = ("large", "huge", "l24", "101")
SIZES = {"odd": (112, 112), "rectangle": (64, 96), "odd rectangle": (96, 144)}
# Odd grids and rectangles; those above size B on an odd grid.
MOVED = [
    pytest.param(name, size, marks=() if "test" in name else pytest.mark.long)
    for name, entry in ZOO.items()
    for size in SIZES
    if entry.group != "trivial" and (size == "odd" or not any(large in name for large in LARGE))
]


def build(name: str, size: tuple[int, int], **kwargs: object) -> Backbone:
    """A registered network for images of another size; ConvNeXt and ResNet take those that fit without being asked."""
    fixed = {} if ZOO[name].model in (ConvNeXt, ResNet) else {"img_size": size}
    model = timm.create_model(name, num_classes=10, **fixed, **kwargs)
    assert isinstance(model, Backbone)
    return model.eval()


def scaled_randomize_(model: nn.Module) -> nn.Module:
    """Random values everywhere; ResMLP has no norm that would keep its features from growing block by block."""
    randomize_(model)
    if isinstance(model, ResMlp):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "gamma" in name or "alpha" in name:
                    parameter.mul_(0.3)
    return model


@pytest.mark.parametrize(("name", "size"), MOVED)
def test_logits_of_a_moved_image(name: str, size: str) -> None:
    """By all elements of the group; the small networks for all sizes.

    Where every token has a place, a turned rectangle would not fit; networks of filters take it. The larger networks
    take most of the time: `make test-long`.
    """
    group = get_group(ZOO[name].group)
    shape = SIZES[size]
    if ZOO[name].model is ConvNeXt and "iso" not in name:
        shape = (shape[0] // 32 * 32, shape[1] // 32 * 32)
    if ZOO[name].model is ResNet:  # a flop leaves heights alone; the means of even kernels need even ones
        even = ZOO[name].args.get("stride_kernel", 3) != 3
        height, width = (n // 32 * 32 + (not even) for n in shape)
        shape = (height if even or group.order > 2 else shape[0], width)
    if group.swaps_axes and shape[0] != shape[1] and ZOO[name].model not in (ConvNeXt, ResNet):
        with pytest.raises(ValueError, match=f"{group} turns rows into columns and needs a square grid"):
            build(name, shape)
        return
    model = scaled_randomize_(build(name, shape))
    x = torch.randn(1, 3, *shape)
    with torch.no_grad():
        logits = model(x)
        errors = [relative_error(model(group.act(g, x)), logits) for g in range(1, group.order)]
    if "hybrid" in name or "stepdown" in name:
        assert min(errors) > 1e-3
    else:
        assert max(errors) <= TOLERANCES[torch.float32]


TINY = {
    "vit": lambda **kwargs: VisionTransformer(
        **{"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 4, "num_heads": 2, "num_classes": 5} | kwargs
    ),
    "resmlp": lambda **kwargs: ResMlp(
        **{"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 4, "num_classes": 5} | kwargs
    ),
    "isotropic": lambda **kwargs: ConvNeXt(
        **{"depths": (4,), "dims": (16,), "patch_size": 8, "num_classes": 5, "kernel_size": 3} | kwargs
    ),
    "hierarchical": lambda **kwargs: ConvNeXt(
        **{"depths": (1, 2, 1), "dims": (16, 32, 64), "num_classes": 5, "kernel_size": 3} | kwargs
    ),
}


WIDTHS = {"vit": {"embed_dim": 32}, "resmlp": {"embed_dim": 32}, "isotropic": {"dims": (32,)}, "hierarchical": {}}


GROUPS = ["flop", "flip", "rot180", "flipflop", "rot90", "octic"]
# Every family with every group, and each of them with both shares; other pairs in `make test-long`.
SHARES = [
    pytest.param(family, group, share, marks=() if (f + g) % 2 == half else pytest.mark.long)
    for f, family in enumerate(TINY)
    for g, group in enumerate(GROUPS)
    for half, share in enumerate((0.0, 0.5))
]


@pytest.mark.parametrize(("family", "group", "share"), SHARES)
def test_groups_and_shares(family: str, group: str, share: float) -> None:
    model = scaled_randomize_(TINY[family](group=group, extra_share=share, **WIDTHS[family]))
    x = torch.randn(2, 3, 32, 32)
    assert_equivariant(model, x, group=group)
    assert_equivariant(model.double(), x.double(), group=group, tol=1e-10)


@pytest.mark.parametrize("group", ["rot90", "octic"])
@pytest.mark.parametrize("family", TINY)
def test_rotations_step_down(family: str, group: str) -> None:
    model = scaled_randomize_(TINY[family](group=group, handoffs={2: "rot180", 3: "invariant"}, **WIDTHS[family]))
    assert_equivariant(model, torch.randn(2, 3, 32, 32), group="rot180")


INVARIANTS = ["invariant", "power_spectrum", "max_filtering", "polynomial"]
HANDOFFS = [None, {1: "flop", 3: "invariant"}, *({2: kind} for kind in ("abs", *INVARIANTS))]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", INVARIANTS)
def test_invariants_of_every_group(group: str, kind: str) -> None:
    model = randomize_(TINY["vit"](group=group, embed_dim=32, handoffs={2: kind}, norm_by_irrep=True))
    assert_equivariant(model, torch.randn(2, 3, 32, 32), group=group)


@pytest.mark.parametrize("handoffs", HANDOFFS)
@pytest.mark.parametrize("family", TINY)
def test_handoffs_keep_logits_and_feed_every_parameter(family: str, handoffs: dict[int, str] | None) -> None:
    group = "flipflop" if handoffs and "flop" in handoffs.values() else "flop"
    model = randomize_(TINY[family](group=group, handoffs=handoffs))
    x = torch.randn(2, 3, 32, 32)
    assert_equivariant(model, x, group="flop")
    for mode in (True, False):
        model.zero_grad()
        model.train(mode)(x).square().mean().backward()
        assert all(parameter.grad is not None for parameter in model.parameters()), "what DistributedDataParallel needs"
    idle = {name for name, parameter in model.named_parameters() if not parameter.grad.any()}
    # the classifier of an equivariant ConvNeXt, here as in the paper, reads none of the last odd channels
    assert all("blocks" in name and name.endswith(("mlp.fc2.odd.weight", "gamma.odd")) for name in idle)
    assert len(idle) == (2 if isinstance(model, ConvNeXt) and handoffs is None else 0)


def test_types_of_handoffs_and_activations() -> None:
    """A block may be a string, as in JSON, and a group a value."""
    model = randomize_(TINY["vit"](group="flipflop", handoffs={"2": flop}))
    assert_equivariant(model, torch.randn(2, 3, 32, 32), group="flop")
    with pytest.raises(TypeError, match="got 'hybrid'"):
        TINY["vit"](handoffs="hybrid")
    with pytest.raises(TypeError, match="an elementwise function"):
        TINY["vit"](act_layer=torch.nn.ReLU)


def test_readout_of_absolute_values() -> None:
    model = randomize_(TINY["vit"](readout="abs"))
    assert model.num_features == 16
    assert model.head.in_features == 16
    assert_equivariant(model, torch.randn(2, 3, 32, 32))


REFUSED = {
    "block too late": (lambda: TINY["vit"](handoffs={4: "hybrid"}), "block from 0 to 3, got 4"),
    "unknown kind": (lambda: TINY["vit"](handoffs={2: "hybird"}), "got 'hybird'"),
    "one block twice": (lambda: TINY["vit"](handoffs={2: "hybrid", "2": "abs"}), "two hand-offs stand before block 2"),
    "nothing to hand off": (lambda: TINY["vit"](handoffs={0: "invariant"}), "before block 0"),
    "too few channels": (
        lambda: TINY["vit"](group="octic", embed_dim=32, handoffs={2: "abs"}),
        "got octic with E",
    ),
    "eps of segments": (
        lambda: TINY["vit"](handoffs={2: "abs"}, norm_eps=[1e-6]),
        r"each of 2 segments, got",
    ),
    "share": (lambda: TINY["vit"](extra_share=1.5), "between 0 and 1, got 1.5"),
    "uneven share": (
        lambda: TINY["vit"](extra_share=0.3),
        "extra_share=0.3 have 5 extra ones; the other 11 are not a multiple of 2, the order of flop",
    ),
    "rotation of tokens": (
        lambda: TINY["resmlp"](group="octic", img_size=(32, 16)),
        "octic turns rows into columns and needs a square grid, got (4, 2)",
    ),
    "pool": (lambda: TINY["vit"](global_pool="mean"), "got 'mean'"),
    "no class token": (lambda: TINY["vit"](class_token=False), "needs a class token"),
    "start": (lambda: TINY["resmlp"](weight_init="jax"), "got 'jax'"),
    "readout": (lambda: TINY["vit"](readout="odd"), "got 'odd'"),
    "classes": (lambda: TINY["vit"](num_classes=-1), "got -1"),
    "drop rate": (lambda: TINY["vit"](drop_rate=1.5), "got 1.5"),
    "stages": (lambda: TINY["isotropic"](depths=(1, 2)), "depths=(1, 2), dims=(16,)"),
    "depth": (lambda: TINY["resmlp"](depth=0), "at least one block, got 0"),
    "activation": (lambda: TINY["vit"](act_layer="gelo"), "no activation is called 'gelo'"),
    "image": (lambda: TINY["vit"]()(torch.randn(1, 3, 48, 48)), "(32, 32), got (48, 48)"),
    "patch size": (lambda: TINY["vit"]().set_input_size(patch_size=16), "(8, 8) and can't become 16"),
    "format": (lambda: TINY["vit"]().forward_intermediates(torch.randn(1, 3, 32, 32), output_fmt="NHWC"), "'NHWC'"),
    "norm before a hand-off": (
        lambda: TINY["vit"](handoffs={2: "hybrid"}).forward_intermediates(torch.randn(1, 3, 32, 32), norm=True),
        "after block 0 there is Layout(flop, even=8, odd=8), but the final norm takes Layout(trivial, even=16)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_show_the_value(case: str) -> None:
    action, words = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(words)):
        action()
