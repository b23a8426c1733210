"""ResNets: half the multiply-adds of timm's, five maps that follow the group, sizes that are refused, and the start."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from support.oracles import multiply_adds
from torch import Tensor

from flopping.groups import flop, get_group, grid_groups, octic
from flopping.models import ResNet
from flopping.nn import Conv2d, MaxPool2d
from flopping.testing import assert_equivariant, randomize_, relative_error

TINY = {"depths": (1, 2), "widths": (8, 16), "stem_width": 16, "num_classes": 5}
VARIANTS: dict[str, dict[str, Any]] = {
    "bottleneck": {},
    "basic": {"bottleneck": False},
    "deep": {"stem_type": "deep", "avg_down": True},
    "more even channels": {"extra_share": 0.5},
    "invariant": {"handoffs": {1: "invariant"}},
    "abs": {"handoffs": {2: "abs"}},
}


def make(**args: Any) -> ResNet:
    return randomize_(ResNet(**TINY | args)).double().eval()


def random_images(*size: int) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# Absolute values are invariants of 1-dimensional irreps only. Each variant for signs and matrices, and each group.
PAIRS = [
    pytest.param(v, g.name, marks=() if v == "bottleneck" or g in (flop, octic) else pytest.mark.long)
    for v in VARIANTS
    for g in grid_groups().values()
    if g.order > 1 and (g.signs_only or v != "abs")
]


@pytest.mark.parametrize(("variant", "group"), PAIRS)
@torch.no_grad()
def test_maps_follow_the_group(variant: str, group: str) -> None:
    """An element moves the places and acts on channels as the layout says; the last map is that of all features."""
    symmetry, image = get_group(group), random_images(25, 41)
    model = make(group=group, widths=(16, 32), stem_width=32, **VARIANTS[variant])
    last, before = model.forward_intermediates(image)
    torch.testing.assert_close(model.forward_features(image), last, rtol=0, atol=0)
    assert [tuple(m.shape[2:]) for m in before] == [(13, 21), (7, 11), (4, 6)]
    for element in range(1, symmetry.order):
        moved = symmetry.act(element, image)
        for maps, got, layout in zip(before, model.forward_intermediates(moved)[1], model.layouts, strict=True):
            assert maps.shape[1] == layout.dim
            channels = torch.einsum("ij,bjhw->bihw", layout.matrix(element), maps)
            assert relative_error(got, symmetry.act(element, channels)) < 1e-10
        assert relative_error(model(moved), model(image)) < 1e-10


@torch.no_grad()
def test_small_images() -> None:
    """For 33 x 33 pixels: no stride and no pooling before the first block."""
    model = make(stem_type="small")
    assert [info["reduction"] for info in model.feature_info] == [1, 1, 2]
    assert_equivariant(model, random_images(33, 33))
    assert [tuple(m.shape[2:]) for m in model.forward_intermediates(random_images(33, 33))[1]] == [
        (33, 33),
        (33, 33),
        (17, 17),
    ]


EVEN = [
    pytest.param(group, *shape, marks=() if shape == (True, 4) or group in ("flop", "octic") else pytest.mark.long)
    for group in grid_groups()
    for shape in ((True, 4), (False, 4), (False, 2), (False, "max"))
    if group != "trivial"
]


@pytest.mark.parametrize(("group", "bottleneck", "kernel"), EVEN)
@torch.no_grad()
def test_even_sizes(group: str, bottleneck: bool, kernel: int | str) -> None:
    """Even kernels and means over 2 x 2 places where there is a stride; the ordinary network takes the same sizes.

    A maximum of 2 x 2 places takes the place of a stride.
    """
    args = {"stem_type": "half", "stride_kernel": kernel, "widths": (16, 32), "stem_width": 32}
    args["bottleneck"] = bottleneck
    model = make(**args, group=group)
    assert [info["reduction"] for info in model.feature_info] == [2, 2, 4]
    assert_equivariant(model, random_images(32, 24))
    shapes = [tuple(m.shape[2:]) for m in model.forward_intermediates(random_images(32, 24))[1]]
    assert shapes == [(16, 12), (16, 12), (8, 6)]
    ordinary = make(**args, group="trivial")
    assert [tuple(m.shape[2:]) for m in ordinary.forward_intermediates(random_images(32, 24))[1]] == shapes
    windows = [layer.plan.window for layer in model.modules() if isinstance(layer, Conv2d)]
    with_stride = [(4, 4)] if kernel == "max" else [(4, 4), (kernel, kernel)]
    assert [window.kernel for window in windows if max(window.stride) == 2] == with_stride
    pools = [layer.window.kernel for layer in model.modules() if isinstance(layer, MaxPool2d)]
    assert pools == ([(2, 2)] if kernel == "max" else [])


@pytest.mark.parametrize("kernel", [2, 4, "max"])
@torch.no_grad()
def test_axes_that_are_not_mirrored_have_any_size(kernel: int | str) -> None:
    model = make(bottleneck=False, stem_type="half", stride_kernel=kernel)
    assert model.grid_of((30, 32)) == (7, 8) == model.forward_features(random_images(30, 32)).shape[2:]


@torch.no_grad()
def test_strides_of_stages() -> None:
    model = make(bottleneck=False, stem_type="half", stride_kernel="max", strides=(2, 1))
    assert [info["reduction"] for info in model.feature_info] == [2, 4, 4]
    assert [tuple(m.shape[2:]) for m in model.forward_intermediates(random_images(32, 24))[1]] == [
        (16, 12),
        (8, 6),
        (8, 6),
    ]


@torch.no_grad()
def test_features_only_gives_five_maps() -> None:
    net = timm.create_model("resnet_flop_test", features_only=True)
    randomize_(net).double().eval()
    image = random_images(65, 97)
    assert net.feature_info.reduction() == [2, 4, 8, 16, 32]
    maps = net(image)
    assert [tuple(m.shape[1:]) for m in maps] == [
        (16, 33, 49), (32, 17, 25), (32, 9, 13), (64, 5, 7), (64, 3, 4),
    ]  # fmt: skip
    assert net.feature_info.channels() == [m.shape[1] for m in maps]
    first = timm.create_model("resnet_flop_test", features_only=True, out_indices=[0]).double().eval()
    first.load_state_dict({key: net.state_dict()[key] for key in first.state_dict()})
    torch.testing.assert_close(first(image)[0], maps[0], rtol=0, atol=0)
    assert not any("layer" in key for key in first.state_dict())


@pytest.mark.parametrize("name", ["resnet50", "resnet18", "resnet50d"])
def test_half_of_the_multiply_adds(name: str) -> None:
    """Exactly, by torch's counter, at 225 pixels; the mean over 3 x 3 instead of 2 x 2 places multiplies nothing."""
    with torch.device("meta"):
        theirs, ours = timm.create_model(name).eval(), timm.create_model(name.replace("resnet", "resnet_flop_")).eval()
        x = torch.randn(1, 3, 225, 225)
    assert multiply_adds(ours, x) * 2 == multiply_adds(theirs, x)
    small, ordinary = (timm.create_model(f"resnet_{kind}8_32", device="meta").eval() for kind in ("flop_", ""))
    image = torch.randn(1, 3, 32, 32, device="meta")
    assert multiply_adds(small, image) * 2 == multiply_adds(ordinary, image)
    weights = [sum(p.numel() for p in model.parameters() if p.dim() > 1) for model in (ours, theirs)]
    assert weights[0] * 2 == weights[1]


REFUSED = {
    "width": (lambda: make()(random_images(25, 40)), r"a width of 40 pixels: .*multiple of 8 plus 1, e\.g\. 33 or 41"),
    "height": (lambda: make(group="flip")(random_images(24, 41)), r"a height of 24 pixels: .*17 or 25"),
    "hybrid": (
        lambda: make(handoffs={1: "hybrid"})(random_images(25, 40)),
        r"a width of 40 pixels: .*multiple of 4 plus 1, e\.g\. 37 or 41",
    ),
    "ordinary, deep": (
        lambda: make(group="trivial", avg_down=True)(random_images(25, 40)),
        r"means over 2 x 2 places take multiples of 8 pixels, e.g. \(24, 40\), got \(25, 40\)",
    ),
    "less than a step": (lambda: make()(random_images(25, 6)), r"a width of 6 pixels: .*plus 1, e\.g\. 9 or 17;"),
    "less than an even step": (
        lambda: make(stem_type="half", stride_kernel=4)(random_images(32, 3)),
        r"images have at least 4 pixels along each axis, got \(32, 3\)",
    ),
    "remedy": (
        lambda: make()(random_images(25, 40)),
        r"other sizes need even kernels \(stem_type='half', stride_kernel=4\), or group='trivial'",
    ),
    "remedy with a small stem": (
        lambda: make(stem_type="half")(random_images(33, 40)),
        r"other sizes need even kernels \(stride_kernel=4\), or group='trivial'",
    ),
    "means twice": (
        lambda: make(stem_type="half", stride_kernel=4, avg_down=True),
        r"avg_down is for stride_kernel=3.*got avg_down=True, stride_kernel=4",
    ),
    "maximum in a bottleneck": (lambda: make(stem_type="half", stride_kernel="max"), "set bottleneck=False"),
    "stages": (lambda: make(depths=(1,)), r"depths=\(1,\), widths=\(8, 16\)"),
    "stem": (lambda: make(stem_type="patch"), "got 'patch'"),
    "odd width": (
        lambda: make(stem_type="half", stride_kernel=4)(random_images(32, 33)),
        r"a width of 33 pixels: .*multiple of 4, e\.g\. 32 or 36; other sizes need stride_kernel=3$",
    ),
    "large stem": (lambda: make(stride_kernel=4), "got stride_kernel=4, stem_type=''"),
    "kernel": (lambda: make(stem_type="half", stride_kernel=5), "got stride_kernel=5"),
    "large stem and maxima": (lambda: make(stride_kernel="max"), "got stride_kernel='max', stem_type=''"),
    "strides": (lambda: make(strides=(1, 2, 2)), r"stride of 1 or 2, got strides=\[1, 2, 2\], depths=\(1, 2\)"),
    "large stride": (lambda: make(strides=(1, 4)), r"stride of 1 or 2, got strides=\[1, 4\]"),
    "rotations": (lambda: make(group="octic")(random_images(24, 41)), r"a height of 24 pixels: .*17 or 25"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    action, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        action()


@torch.no_grad()
def test_a_hybrid_takes_what_its_equivariant_part_takes() -> None:
    model = make(handoffs={1: "hybrid"})
    assert model(random_images(26, 37)).shape == (2, 5)


@pytest.mark.parametrize("variant", ["bottleneck", "basic", "deep", "invariant", "hybrid"])
def test_features_start_like_those_of_the_ordinary_network(variant: str) -> None:
    """With the statistics of a batch, and branches that are not zero yet: maps and logits have the same spread."""
    args = {"handoffs": {1: "hybrid"}} if variant == "hybrid" else VARIANTS[variant]
    x = torch.randn(8, 3, 65, 65, generator=torch.Generator().manual_seed(1))
    spread = []
    for group in ("trivial", "flop"):
        torch.manual_seed(0)
        plain = {key: value for key, value in args.items() if key != "handoffs" or group == "flop"}
        size = {"depths": (1, 2), "widths": (32, 64), "num_classes": 64, "zero_init_last": False}
        model = ResNet(**size, group=group, **plain).train()
        image = x[..., :64, :64] if group == "trivial" else x
        with torch.no_grad():
            spread.append([m.std().item() for m in (*model.forward_intermediates(image)[1], model(image))])
    ratios = [e / o for o, e in zip(*spread, strict=True)]
    assert 0.75 < min(ratios) <= max(ratios) < 1.25, ratios


def test_branches_start_at_zero() -> None:
    """As in timm: every block starts as its shortcut; every parameter gets a gradient all the same."""
    model = ResNet(**TINY).train()
    for name, parameter in model.named_parameters():
        assert parameter.any() != name.endswith(("bn3.weight.even", "bn3.weight.odd", "bias")) or name == "fc.bias", (
            name
        )
    randomize_(model)(torch.randn(2, 3, 33, 33)).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
