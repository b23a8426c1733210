"""Dense features: the map of a flopped image is the flopped map with odd channels negated, in every family.

Parameters are random, grids are even and odd, images are square, landscape and portrait; errors in float64.
"""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from flopping import Layout, flop, get_group
from flopping.models import Backbone, ConvNeXt, ResMlp, VisionTransformer
from flopping.testing import randomize_, relative_error

Size = tuple[int, int]

# Every network reduces an image by 8 in all and has three or more blocks.
FAMILIES: dict[str, Callable[..., Backbone]] = {
    "vit": lambda size, **args: VisionTransformer(
        size, patch_size=8, embed_dim=16, depth=3, num_heads=2, num_classes=5, **args
    ),
    "resmlp": lambda size, **args: ResMlp(size, patch_size=8, embed_dim=16, depth=3, num_classes=5, **args),
    "convnext": lambda size, **args: ConvNeXt(
        depths=(1, 2), dims=(16, 32), patch_size=4, kernel_size=5, num_classes=5, **args
    ),
    "convnext_iso": lambda size, **args: ConvNeXt(
        depths=(3,), dims=(16,), patch_size=8, kernel_size=5, num_classes=5, **args
    ),
}
TOKENS = ["vit", "resmlp"]
SIZES = [(32, 32), (24, 40), (40, 24), (24, 32)]
TOL = 1e-10

families = pytest.mark.parametrize("family", FAMILIES)
sizes = pytest.mark.parametrize("size", SIZES, ids=str)


def make(family: str, size: Size = (24, 40), **args: Any) -> Backbone:
    model = FAMILIES[family](size, **args)
    randomize_(model)
    return model.double().eval()


def image_of(size: Size) -> Tensor:
    return torch.randn(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def maps_of(model: Backbone, image: Tensor, **args: Any) -> list[Tensor]:
    found: list[Tensor] = model.forward_intermediates(image, intermediates_only=True, **args)
    return found


def signs(layout: Layout) -> Tensor:
    """+1 for even channels, which come first, and -1 for odd ones; by hand, not by the library."""
    assert layout.group == flop
    even, odd = layout.multiplicities
    return torch.cat([torch.ones(even), -torch.ones(odd)]).double()


def flopped(maps: Tensor, layout: Layout) -> Tensor:
    return maps.flip(-1) * signs(layout)[:, None, None]


def assert_law(got: Tensor, maps: Tensor, layout: Layout) -> None:
    assert maps.shape[1] == layout.dim
    assert maps.abs().amax((0, 2, 3)).min() > 1e-3, "a channel is zero: nothing is tested"
    assert relative_error(got, flopped(maps, layout)) < TOL
    if layout.multiplicities[1]:
        assert relative_error(got, maps.flip(-1)) > 0.1, "odd channels don't change their sign"


VARIANTS: dict[str, dict[str, Any]] = {
    "equal shares": {},
    "more even channels": {"extra_share": 0.5},
    "invariant": {"handoffs": {1: "invariant"}},
    "abs": {"handoffs": {1: "abs"}},
}


@families
@pytest.mark.parametrize(
    ("size", "variant"), [(size, "equal shares") for size in SIZES] + [((24, 40), name) for name in [*VARIANTS][1:]]
)
def test_law_of_maps(family: str, size: Size, variant: str) -> None:
    model, image = make(family, size, **VARIANTS[variant]), image_of(size)
    before, after = maps_of(model, image), maps_of(model, image.flip(-1))
    assert len(before) == len(after) == len(model.layouts) == len(model.feature_info)
    for maps, got, layout, info in zip(before, after, model.layouts, model.feature_info, strict=True):
        assert maps.shape == (2, info["num_chs"], *(side // info["reduction"] for side in size))
        assert_law(got, maps, layout)
    even, odd = model.layouts[-1].multiplicities
    assert odd == {"equal shares": even, "more even channels": even / 3}.get(variant, 0)


def test_images_of_another_size_than_the_network_was_built_for() -> None:
    model, image = make("vit", (32, 32), dynamic_img_size=True), image_of((24, 40))
    for maps, got, layout in zip(maps_of(model, image), maps_of(model, image.flip(-1)), model.layouts, strict=True):
        assert maps.shape[2:] == (3, 5)
        assert_law(got, maps, layout)


@families
def test_tokens_are_the_places_of_the_map_row_by_row(family: str) -> None:
    model, image = make(family), image_of((24, 40))
    for tokens, maps in zip(maps_of(model, image, output_fmt="NLC"), maps_of(model, image), strict=True):
        torch.testing.assert_close(tokens, maps.flatten(2).transpose(1, 2), rtol=0, atol=0)


def test_prefix_tokens_have_no_place() -> None:
    """Their odd channels change the sign, and that is all. In both formats they come as tokens."""
    model, image = make("vit"), image_of((24, 40))
    for output_fmt in ("NCHW", "NLC"):
        args: dict[str, Any] = {"return_prefix_tokens": True, "output_fmt": output_fmt}
        pairs = zip(maps_of(model, image, **args), maps_of(model, image.flip(-1), **args), model.layouts, strict=True)
        for i, ((maps, prefix), (_, got), layout) in enumerate(pairs):
            torch.testing.assert_close(maps, maps_of(model, image, output_fmt=output_fmt)[i], rtol=0, atol=0)
            assert prefix.shape == (2, 1, 16)
            assert relative_error(got, prefix * signs(layout)) < TOL
            assert relative_error(got, prefix) > 0.01


@families
@pytest.mark.parametrize("indices", [2, [1, 0], [-1]], ids=str)
def test_indices_are_those_of_layouts(family: str, indices: int | list[int]) -> None:
    model, image = make(family), image_of((24, 40))
    count = len(model.layouts)
    wanted = range(count - indices, count) if isinstance(indices, int) else sorted(i % count for i in indices)
    every, taken = maps_of(model, image), maps_of(model, image, indices=indices, stop_early=True)
    assert len(taken) == len(wanted)
    got = maps_of(model, image.flip(-1), indices=indices, stop_early=True)
    for i, maps, mirrored in zip(wanted, taken, got, strict=True):
        torch.testing.assert_close(maps, every[i], rtol=0, atol=0)
        assert_law(mirrored, maps, model.layouts[i])


@families
@sizes
@torch.no_grad()
def test_last_features(family: str, size: Size) -> None:
    """Invariant channels in ViT and ResMLP, both parities in ConvNeXt."""
    model, image = make(family, size), image_of(size)
    x, y = model.forward_features(image), model.forward_features(image.flip(-1))
    torch.testing.assert_close(model.forward_intermediates(image)[0], x, rtol=0, atol=0)
    if family not in TOKENS:
        assert_law(y, x, model.layouts[-1])
        return
    prefix, grid = model.num_prefix_tokens, (size[0] // 8, size[1] // 8)
    assert x.shape == (2, prefix + grid[0] * grid[1], model.num_features)
    assert model.num_features == model.layouts[-1].multiplicities[0]
    torch.testing.assert_close(y[:, :prefix], x[:, :prefix], rtol=TOL, atol=TOL)
    places, mirrored = (t[:, prefix:].unflatten(1, grid) for t in (x, y))
    assert relative_error(mirrored, places.flip(2)) < TOL
    assert relative_error(mirrored, places) > 0.1


@pytest.mark.parametrize("family", TOKENS)
def test_the_final_norm_leaves_invariant_channels(family: str) -> None:
    model, image = make(family), image_of((24, 40))
    for maps, got in zip(maps_of(model, image, norm=True), maps_of(model, image.flip(-1), norm=True), strict=True):
        assert maps.shape == (2, 8, 3, 5)
        assert_law(got, maps, Layout.invariant(flop, 8))


@pytest.mark.parametrize(
    "name", ["deit3_flop_test_patch16_64", "resmlp_flop_test_64", "convnext_flop_test", "convnext_flop_iso_test"]
)
@torch.no_grad()
def test_features_only(name: str) -> None:
    net = timm.create_model(name, features_only=True, out_indices=(0, 2))
    randomize_(net).double().eval()
    image = image_of((64, 64))
    layouts = [net.model.layouts[i] for i in net.out_indices]
    assert tuple(net.feature_info.channels()) == tuple(layout.dim for layout in layouts)
    before, after = net(image), net(image.flip(-1))
    for maps, got, layout, reduction in zip(before, after, layouts, net.feature_info.reduction(), strict=True):
        assert maps.shape[2:] == (64 // reduction, 64 // reduction)
        assert_law(got, maps, layout)


@families
def test_behind_a_hybrid_handoff_nothing_is_claimed(family: str) -> None:
    """The layout says so: its group moves nothing. And indeed neither law holds."""
    model, image = make(family, handoffs={1: "hybrid"}), image_of((24, 40))
    assert [layout.group.order for layout in model.layouts] == [2, *[1] * (len(model.layouts) - 1)]
    before, after = maps_of(model, image), maps_of(model, image.flip(-1))
    assert_law(after[0], before[0], model.layouts[0])
    for maps, got, layout in zip(before[1:], after[1:], model.layouts[1:], strict=True):
        for claim in (Layout.regular(flop, layout.dim), Layout.invariant(flop, layout.dim)):
            assert relative_error(got, flopped(maps, claim)) > 0.1


@pytest.mark.parametrize(
    ("family", "group"), [(family, "flipflop") for family in FAMILIES] + [("vit", "octic"), ("vit", "rot90")]
)
def test_law_of_other_groups(family: str, group: str) -> None:
    """An element moves the places and acts on channels as the layout says; rectangles where the group keeps them."""
    symmetry, size = get_group(group), (24, 24) if group in ("octic", "rot90") else (24, 40)
    model, image = make(family, size, group=group), image_of(size)
    for element in range(1, symmetry.order):
        moved = symmetry.act(element, image)
        for maps, got, layout in zip(maps_of(model, image), maps_of(model, moved), model.layouts, strict=True):
            channels = torch.einsum("ij,bjhw->bihw", layout.matrix(element), maps)
            assert relative_error(got, symmetry.act(element, channels)) < TOL
