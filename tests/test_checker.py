"""The tester is tested: it finds the symmetry missing where it is missing, and leaves the module as it was."""

import pytest
import torch
from timm.layers.mlp import Mlp
from timm.layers.patch_embed import PatchEmbed
from timm.models.vision_transformer import Attention, Block
from torch import nn

from flopping import Layout, flipflop, flop, octic
from flopping import nn as fnn
from flopping.testing import assert_equivariant, equivariance_errors, randomize_


class _OnMaps(nn.Module):
    """An ordinary convolution on packed maps (B, H, W, C)."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class _Positions(nn.Module):
    def __init__(self, places: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(places, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


ORDINARY = {
    "Linear": (lambda: nn.Linear(16, 16), (5, 16)),
    "bias alone": (lambda: _Positions(1, 16), (5, 16)),
    "LayerNorm": (lambda: nn.LayerNorm(16), (5, 16)),
    "GELU": (lambda: nn.GELU(), (5, 16)),
    "Mlp": (lambda: Mlp(16), (5, 16)),
    "Attention": (lambda: Attention(16, num_heads=2), (2, 6, 16)),
    "Block": (lambda: Block(16, num_heads=2), (2, 6, 16)),
    "positions": (lambda: _Positions(6, 16), (2, 6, 16)),
    "depthwise": (lambda: _OnMaps(nn.Conv2d(16, 16, 3, padding=1, groups=16)), (2, 4, 6, 16)),
    "downsample": (lambda: _OnMaps(nn.Conv2d(16, 16, 2, 2)), (2, 4, 6, 16)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_layers_fail(name: str) -> None:
    """The tester is tested: it must find the symmetry missing where it is missing."""
    build, shape = ORDINARY[name]
    layout = Layout.regular(flop, 16)
    errors = equivariance_errors(
        randomize_(build()),
        torch.randn(shape),
        in_layout=layout,
        out_layout=layout,
        grid=(2, 3) if len(shape) == 3 else None,
    )
    assert errors["flop"] > 1e-2
    with pytest.raises(AssertionError, match="not equivariant under flop"):
        assert_equivariant(
            randomize_(build()),
            torch.randn(shape),
            in_layout=layout,
            out_layout=layout,
            grid=(2, 3) if len(shape) == 3 else None,
        )


def test_ordinary_patch_embedding_fails() -> None:
    layout = Layout.regular(flop, 16)
    with pytest.raises(AssertionError, match="not equivariant under flop"):
        assert_equivariant(
            randomize_(PatchEmbed(8, 4, 3, 16)), torch.randn(2, 3, 8, 8), group=flop, out_layout=layout, out_grid=(2, 2)
        )


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
