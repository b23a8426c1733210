"""What is refused, and that the message shows the values."""

import pytest
import torch

from flopping import Layout, flip, flop, octic, rot90, trivial
from flopping import nn as fnn
from flopping.testing import assert_equivariant, equivariance_errors, relative_error
from flopping.verify import first_break, verify

EQUAL = Layout.regular(flop, 8)
UNEQUAL = Layout(flop, (3, 5))

REFUSED_AT_CONSTRUCTION = {
    "group changes": (lambda: fnn.Linear(EQUAL, Layout.regular(flip, 8)), r"Linear keeps the group.*flop.*flip"),
    "bias without even": (lambda: fnn.Linear(Layout(flop, (0, 2)), EQUAL), r"bias needs even.*even=0, odd=2"),
    "unequal activation": (lambda: fnn.Activation(UNEQUAL), r"equal shares.*even=3, odd=5"),
    "unequal hybrid": (lambda: fnn.ToRegular(UNEQUAL), r"equal shares.*even=3, odd=5"),
    "unequal depthwise": (lambda: fnn.DepthwiseConv2d(UNEQUAL), r"equal shares.*even=3, odd=5"),
    "half a plane": (lambda: fnn.Activation(Layout(octic, (2, 2, 2, 2, 3))), r"equal shares.*E=2x3"),
    "heads": (lambda: fnn.Attention(EQUAL, num_heads=3), r"3 heads do not divide.*even=4, odd=4"),
    "no heads": (lambda: fnn.Attention(EQUAL, num_heads=0), r"0 heads"),
    "ratio": (lambda: fnn.TransformerBlock(EQUAL, 2, mlp_ratio=1.3), r"times 1.3 is not a whole number"),
    "patch not square": (lambda: fnn.PatchEmbed(Layout.regular(rot90, 8), 8, (4, 2)), r"square grid, got \(4, 2\)"),
    "image size": (lambda: fnn.PatchEmbed(EQUAL, 30, 16), r"\(30, 30\) is not a multiple.*\(16, 16\)"),
    "positions not square": (lambda: fnn.PosEmbed(Layout.regular(octic, 8), (2, 3)), r"square grid, got \(2, 3\)"),
    "even kernel": (lambda: fnn.DepthwiseConv2d(EQUAL, 4), r"odd kernel_size, got 4"),
    "kernel of one": (lambda: fnn.DepthwiseConv2d(EQUAL, 1), r"kernel_size=1 is too small for filters even_to_odd"),
    "factor": (lambda: fnn.Downsample(EQUAL, EQUAL, 0), r"at least 1, got 0"),
    "dropout": (lambda: fnn.Dropout(EQUAL, 1.5), r"below 1, got 1.5"),
    "drop path": (lambda: fnn.DropPath(EQUAL, -0.1), r"at least 0.*got -0.1"),
    "pool": (lambda: fnn.InvariantHead(EQUAL, 5, pool="max"), r"'avg', 'token' or None, got 'max'"),
    "head without even": (lambda: fnn.InvariantHead(Layout(flop, (0, 4)), 5), r"needs even channels.*even=0"),
    "prefix of token pooling": (
        lambda: fnn.InvariantHead(EQUAL, 5, "token", num_prefix_tokens=1),
        r"num_prefix_tokens.*got 1",
    ),
    "not a subgroup": (lambda: fnn.Restrict(EQUAL, flip), r"flip is not a subgroup of flop: flop has no flip"),
    "sequence": (
        lambda: fnn.Sequential(fnn.LayerNorm(EQUAL), fnn.LayerNorm(UNEQUAL)),
        r"layer 1 \(LayerNorm\) takes .*even=3, odd=5.* gets .*even=4, odd=4.* from layer 0",
    ),
    "image after features": (
        lambda: fnn.Sequential(fnn.LayerNorm(EQUAL), fnn.PatchEmbed(EQUAL)),
        r"layer 1 \(PatchEmbed\) takes images",
    ),
}


@pytest.mark.parametrize("name", REFUSED_AT_CONSTRUCTION)
def test_refused_at_construction(name: str) -> None:
    build, message = REFUSED_AT_CONSTRUCTION[name]
    with pytest.raises(ValueError, match=message):
        build()


def tokens(n: int) -> tuple[torch.Tensor, ...]:
    return EQUAL.random(2, n)


REFUSED_IN_FORWARD = {
    "width": (
        lambda: fnn.Linear(EQUAL, EQUAL)(UNEQUAL.random(2)),
        r"Linear: .*\(\.\.\., 4\), \(\.\.\., 4\), got \(2, 3\), \(2, 5\)",
    ),
    "number of parts": (lambda: fnn.LayerNorm(EQUAL)((torch.zeros(2, 4),)), r"LayerNorm: .* got \(2, 4\)"),
    "leading axes": (lambda: fnn.LayerNorm(EQUAL)((torch.zeros(2, 4), torch.zeros(3, 4))), r"got \(2, 4\), \(3, 4\)"),
    "image rank": (
        lambda: fnn.PatchEmbed(EQUAL, 32)(torch.zeros(3, 32, 32)),
        r"\(B, 3, H, W\), got shape \(3, 32, 32\)",
    ),
    "image channels": (
        lambda: fnn.PatchEmbed(EQUAL, 32)(torch.zeros(1, 4, 32, 32)),
        r"\(B, 3, H, W\), got shape \(1, 4",
    ),
    "other image size": (lambda: fnn.PatchEmbed(EQUAL, 32)(torch.zeros(1, 3, 32, 48)), r"\(32, 32\), got \(32, 48\)"),
    "no multiple": (lambda: fnn.PatchEmbed(EQUAL)(torch.zeros(1, 3, 32, 30)), r"\(32, 30\) is not a multiple"),
    "positions": (lambda: fnn.PosEmbed(EQUAL, (2, 3))(tokens(7)), r"grid \(2, 3\) has 6 places, got 7 tokens"),
    "mix": (
        lambda: fnn.TokenMix(EQUAL, (2, 3))(tokens(7)),
        r"grid \(2, 3\) has 6 places, got 7 tokens",
    ),
    "map rank": (
        lambda: fnn.DepthwiseConv2d(EQUAL, 3)(tokens(6)),
        r"DepthwiseConv2d: .* needs parts \(B, H, W, 4\).* got \(2, 6, 4\)",
    ),
    "attention on rows": (lambda: fnn.Attention(EQUAL, 2)(EQUAL.random(3)), r"Attention: .*\(B, N, 4\).* got \(3, 4\)"),
    "block on maps": (
        lambda: fnn.TransformerBlock(EQUAL, 2)(EQUAL.random(1, 2, 3)),
        r"TransformerBlock: .*\(B, N, 4\)",
    ),
    "token on rows": (lambda: fnn.ClassToken(EQUAL)(EQUAL.random(5)), r"ClassToken: .*\(B, N, 4\).* got \(5, 4\)"),
    "positions on maps": (lambda: fnn.PosEmbed(EQUAL, 2)(EQUAL.random(1, 4, 4)), r"PosEmbed: .*\(B, N, 4\)"),
    "head on rows": (
        lambda: fnn.InvariantHead(EQUAL, 2)(EQUAL.random(5)),
        r"pool='avg' takes tokens .*or maps.*got \(5, 4\)",
    ),
    "token of a map": (
        lambda: fnn.InvariantHead(EQUAL, 2, "token")(EQUAL.random(1, 2, 2)),
        r"takes tokens \(B, N\), got",
    ),
    "only prefix": (
        lambda: fnn.InvariantHead(EQUAL, 2, num_prefix_tokens=4)(tokens(4)),
        r"behind 4 prefix tokens, got 4",
    ),
    "map size": (lambda: fnn.Downsample(EQUAL, EQUAL)(EQUAL.random(1, 4, 5)), r"4 x 5 places is not a multiple of 2"),
}


@pytest.mark.parametrize("name", REFUSED_IN_FORWARD)
def test_refused_in_forward(name: str) -> None:
    call, message = REFUSED_IN_FORWARD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_a_packed_tensor_is_not_a_feature() -> None:
    with pytest.raises(TypeError, match=r"Linear: a feature of .* tuple of 2 tensors, got a tensor of shape \(2, 8\)"):
        fnn.Linear(EQUAL, EQUAL)(torch.zeros(2, 8))


def test_checker_says_what_it_misses() -> None:
    with pytest.raises(ValueError, match="Linear declares no layout: say which group"):
        equivariance_errors(torch.nn.Linear(3, 3), torch.zeros(1, 3))
    with pytest.raises(TypeError, match="needs a layout that says how flop acts"):
        equivariance_errors(torch.nn.Identity(), (torch.zeros(1),), group="flop")
    layout = Layout.regular(trivial, 4)
    with pytest.raises(ValueError, match="nothing to check"):
        assert_equivariant(fnn.LayerNorm(layout), layout.random(2))
    with pytest.raises(ValueError, match=r"unknown group 'flap'.*flop, flip, rot180, flipflop, rot90, octic"):
        Layout.regular("flap", 4)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_fail_the_check(where: int, value: float) -> None:
    class Broken(fnn.Module):
        def forward(self, x):
            return tuple(part * value if i == where else part for i, part in enumerate(x))

    with pytest.raises(AssertionError, match="relative error inf"):
        assert_equivariant(Broken(EQUAL, EQUAL), EQUAL.random(2))
    assert first_break(verify(Broken(EQUAL, EQUAL), EQUAL.random(2))) is not None


def test_images_of_whole_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"floating-point numbers, got torch\.uint8"):
        fnn.PatchEmbed(EQUAL)(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


WRONG_WIDTHS = {
    "text": (lambda: Layout.regular(flop, "384"), TypeError, r"whole numbers, got dim='384', extra=0$"),
    "fraction": (lambda: Layout.regular(flop, 384 / 2), TypeError, r"whole numbers, got dim=192\.0, extra=0$"),
    "extra text": (lambda: Layout.regular(flop, 8, extra="2"), TypeError, r"whole numbers, got dim=8, extra='2'$"),
    "invariant text": (lambda: Layout.invariant(flop, "3"), TypeError, r"whole numbers, got dim='3'"),
    "negative": (lambda: Layout.regular(flop, -2), ValueError, r"needs dim >= 1 .*, got dim=-2, extra=0$"),
    "zero": (lambda: Layout.regular(flop, 0), ValueError, r"needs dim >= 1 .*, got dim=0, extra=0$"),
    "extra beyond all": (lambda: Layout.regular(flop, 4, extra=6), ValueError, r"extra <= dim, got dim=4, extra=6$"),
}


@pytest.mark.parametrize("name", WRONG_WIDTHS)
def test_widths_that_are_none_are_refused(name: str) -> None:
    build, error, message = WRONG_WIDTHS[name]
    with pytest.raises(error, match=message):
        build()


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


def test_a_number_is_not_a_layout() -> None:
    with pytest.raises(TypeError, match=r"Linear takes a Layout, e\.g\. Layout\.regular\(flop, 64\), got 64"):
        fnn.Linear(64, 64)


def test_an_undeclared_feature_is_not_taken_for_an_invariant() -> None:
    net = torch.nn.Sequential(fnn.PatchEmbed(EQUAL, 8, 4), fnn.LayerNorm(EQUAL))
    with pytest.raises(TypeError, match="gives a tuple and declares no layout: say out_layout="):
        assert_equivariant(net, torch.randn(1, 3, 8, 8))
    assert_equivariant(net, torch.randn(1, 3, 8, 8), out_layout=EQUAL)


def test_other_shapes_count_as_infinitely_wrong() -> None:
    assert relative_error(torch.zeros(2), torch.zeros(3)) == float("inf")
    assert relative_error((torch.zeros(2),), (torch.zeros(2), torch.zeros(2))) == float("inf")
