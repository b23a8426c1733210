"""The tester is tested: it finds the symmetry missing where it is missing, and leaves the module as it was."""

import re

import pytest
import torch
from support.doc_pages import ROOT, blocks
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Attention
from torch import nn

import flopping
from flopping import Layout, flipflop, flop, octic
from flopping import nn as fnn
from flopping.testing import assert_equivariant, equivariance_errors, randomize_, relative_error
from flopping.testing.verify import first_break, verify


class _OnMaps(nn.Conv2d):
    """An ordinary convolution on packed maps (B, H, W, C)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class _Positions(nn.Module):
    def __init__(self, places: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(places, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


ORDINARY = {
    "Linear": (lambda: nn.Linear(16, 16), (5, 16)),
    "LayerNorm": (lambda: nn.LayerNorm(16), (5, 16)),
    "Attention": (lambda: Attention(16, num_heads=2), (2, 6, 16)),
    "positions": (lambda: _Positions(6, 16), (2, 6, 16)),
    "depthwise": (lambda: _OnMaps(16, 16, 3, padding=1, groups=16), (2, 4, 6, 16)),
    "downsample": (lambda: _OnMaps(16, 16, 2, 2), (2, 4, 6, 16)),
    "patches": (lambda: PatchEmbed(8, 4, 3, 16), (2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_layers_fail(name: str) -> None:
    build, shape = ORDINARY[name]
    layout = Layout.regular(flop, 16)
    if name == "patches":
        args = {"group": flop, "out_layout": layout, "out_grid": (2, 2)}
    else:
        args = {"in_layout": layout, "out_layout": layout, "grid": (2, 3) if len(shape) == 3 else None}
    with pytest.raises(AssertionError, match="not equivariant under flop"):
        assert_equivariant(randomize_(build()), torch.randn(shape), tol=1e-2, **args)


def test_checker_leaves_the_module_alone() -> None:
    """It runs in eval mode, where dropped tokens don't matter, and puts the mode of every layer back."""
    layout = Layout.regular(flop, 8)
    block = randomize_(fnn.TransformerBlock(layout, 2, proj_drop=0.5, attn_drop=0.5, drop_path=0.5))
    block.mlp.eval()
    assert_equivariant(block, layout.random(2, 6), grid=(2, 3))
    assert block.training
    assert block.attn.training
    assert not block.mlp.training


@pytest.mark.parametrize("asked", [flop, flipflop, octic], ids=str)
def test_another_group_than_the_layouts(asked) -> None:
    """A subgroup may be checked on its own; an element that can't act on the feature is named."""
    layout = Layout.regular(octic, 16)
    layer = randomize_(fnn.Linear(layout, layout))
    assert set(equivariance_errors(layer, layout.random(3), group=asked)) == set(asked.elements[1:])
    assert_equivariant(layer, layout.random(3), group=asked)
    small = Layout.regular(flop, 16)
    with pytest.raises(ValueError, match=r"rot90 of octic has no action on Layout\(flop"):
        assert_equivariant(fnn.LayerNorm(small), small.random(3), group=octic)


# --- what is refused, or infinitely wrong -----------------------------------------------------------

EQUAL = Layout.regular(flop, 8)


def test_checker_says_what_it_misses() -> None:
    with pytest.raises(ValueError, match="Linear declares no layout: say which group"):
        equivariance_errors(torch.nn.Linear(3, 3), torch.zeros(1, 3))
    with pytest.raises(TypeError, match="needs a layout that says how flop acts"):
        equivariance_errors(torch.nn.Identity(), (torch.zeros(1),), group="flop")
    with pytest.raises(ValueError, match="nothing to check: ToRegular"):
        assert_equivariant(fnn.ToRegular(EQUAL), EQUAL.random(2))


@pytest.mark.parametrize("group", ["flop", "octic", "trivial"])
def test_network_of_the_readme(group: str) -> None:
    """As it stands, with any group in place of flop."""
    *_, network = [b.text for b in blocks(ROOT / "README.md") if b.language == "python" and "fnn" in b.text]
    names: dict[str, object] = {"flopping": flopping, "image": torch.randn(1, 3, 224, 224)}
    exec(re.sub(r"\bflop\b", group, network), names)
    assert names["width"] == Layout.regular(group, 384)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_fail_the_check(where: int, value: float) -> None:
    class Broken(fnn.Module):
        def forward(self, x):
            return tuple(part * value if i == where else part for i, part in enumerate(x))

    with pytest.raises(AssertionError, match="relative error inf"):
        assert_equivariant(Broken(EQUAL, EQUAL), EQUAL.random(2))
    assert first_break(verify(Broken(EQUAL, EQUAL), EQUAL.random(2))) is not None


IMAGE = torch.zeros(1, 3, 8, 8)
NO_VALUES = {
    "whole numbers": (IMAGE.byte(), r"a tensor of shape \(1, 3, 8, 8\) in uint8"),
    "array": (IMAGE.numpy(), r"numpy\.ndarray"),
    "dictionary": ({"image": IMAGE}, r"dict with the keys 'image'"),
    "hole": ((IMAGE, None), r"a tuple of a tensor of shape \(1, 3, 8, 8\) in float32, NoneType"),
    "empty": ((), r"a tuple of nothing"),
}


@pytest.mark.parametrize("name", NO_VALUES)
def test_what_is_no_image_and_no_feature_is_not_checked(name: str) -> None:
    value, got = NO_VALUES[name]
    net = fnn.Sequential(fnn.PatchEmbed(EQUAL, 8, 4), fnn.InvariantHead(EQUAL, 3))
    takes = r"takes an image \(B, C, H, W\) or a feature, .* in float64, float32, bfloat16 or float16; got "
    for check in (assert_equivariant, equivariance_errors, verify):
        with pytest.raises(TypeError, match=f"{takes}{got}$"):
            check(net, value)


def test_an_undeclared_feature_is_not_taken_for_an_invariant() -> None:
    net = torch.nn.Sequential(fnn.PatchEmbed(EQUAL, 8, 4), fnn.LayerNorm(EQUAL))
    with pytest.raises(TypeError, match="gives a tuple and declares no layout: say out_layout="):
        assert_equivariant(net, torch.randn(1, 3, 8, 8))
    assert_equivariant(net, torch.randn(1, 3, 8, 8), out_layout=EQUAL)


def test_other_shapes_count_as_infinitely_wrong() -> None:
    assert relative_error(torch.zeros(2), torch.zeros(3)) == float("inf")
    assert relative_error((torch.zeros(2),), (torch.zeros(2), torch.zeros(2))) == float("inf")
