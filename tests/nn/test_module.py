"""What all layers share: every parameter gets a gradient and can be started again; refusals show the values."""

import pytest
import torch

from flopping import Layout, flip, flop, rot90
from flopping import nn as fnn
from flopping.testing.cases import Case, cases

PLAIN = {"Activation", "Dropout", "DropPath", "AbsToInvariant", "Restrict", "Orient"}  # layers without parameters
PLAIN |= {"GatedActivation", "Polynomials", "MaxPool2d", "AvgPool2d", "GlobalPool", "Upsample"}
CASES = [case for case in cases() if case.shape.name == "odd" and case.layer not in PLAIN]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    module, x = case.make()
    y = module.eval()(x)
    parts = y if isinstance(y, tuple) else (y,)
    sum(part.square().sum() for part in parts).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameters_can_be_started_again(case: Case) -> None:
    """`reset_parameters` fills what `to_empty` left open, in every layer that owns parameters."""
    module, _ = case.make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(float("nan"))
    for layer in module.modules():
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    assert all(p.isfinite().all() for p in module.parameters())


EQUAL = Layout.regular(flop, 8)
UNEQUAL = Layout(flop, (3, 5))


REFUSED = {
    r"flop.*flip": lambda: fnn.Linear(EQUAL, Layout.regular(flip, 8)),
    r"Linear: .*got \(2, 3\), \(2, 5\)": lambda: fnn.Linear(EQUAL, EQUAL)(UNEQUAL.random(2)),
    r"bias needs even.*even=0, odd=2": lambda: fnn.Linear(Layout(flop, (0, 2)), EQUAL),
    r"equal shares.*even=3, odd=5": lambda: fnn.Activation(UNEQUAL),
    r"3 heads do not divide.*even=4, odd=4": lambda: fnn.Attention(EQUAL, num_heads=3),
    r"times 1.3 is not a whole number": lambda: fnn.TransformerBlock(EQUAL, 2, mlp_ratio=1.3),
    r"TransformerBlock: .*\(B, N, 4\)": lambda: fnn.TransformerBlock(EQUAL, 2)(EQUAL.random(1, 2, 3)),
    r"square grid, got \(4, 2\)": lambda: fnn.PatchEmbed(Layout.regular(rot90, 8), 8, (4, 2)),
    r"\(30, 30\) is not a multiple.*\(16, 16\)": lambda: fnn.PatchEmbed(EQUAL, 30, 16),
    r"got shape \(3, 32, 32\)": lambda: fnn.PatchEmbed(EQUAL, 32)(torch.zeros(3, 32, 32)),
    r"\(32, 32\), got \(32, 48\)": lambda: fnn.PatchEmbed(EQUAL, 32)(torch.zeros(1, 3, 32, 48)),
    r"\(32, 30\) is not a multiple": lambda: fnn.PatchEmbed(EQUAL)(torch.zeros(1, 3, 32, 30)),
    r"grid \(2, 3\) has 6 places, got 7 tokens": lambda: fnn.PosEmbed(EQUAL, (2, 3))(EQUAL.random(2, 7)),
    r"odd kernel_size, got 4": lambda: fnn.DepthwiseConv2d(EQUAL, 4),
    r"kernel_size=1 is too small": lambda: fnn.DepthwiseConv2d(EQUAL, 1),
    r"DepthwiseConv2d: .*\(B, H, W, 4\).* got \(2, 6, 4\)": lambda: fnn.DepthwiseConv2d(EQUAL, 3)(EQUAL.random(2, 6)),
    r"at least 1, got 0": lambda: fnn.Downsample(EQUAL, EQUAL, 0),
    r"4 x 5 places is not a multiple of 2": lambda: fnn.Downsample(EQUAL, EQUAL)(EQUAL.random(1, 4, 5)),
    r"below 1, got 1.5": lambda: fnn.Dropout(EQUAL, 1.5),
    r"got 'max'": lambda: fnn.InvariantHead(EQUAL, 5, pool="max"),
    r"num_prefix_tokens.*got 1": lambda: fnn.InvariantHead(EQUAL, 5, "token", num_prefix_tokens=1),
    r"pool='avg' takes tokens .*got \(5, 4\)": lambda: fnn.InvariantHead(EQUAL, 2)(EQUAL.random(5)),
    r"4 prefix tokens, got 4": lambda: fnn.InvariantHead(EQUAL, 2, num_prefix_tokens=4)(EQUAL.random(2, 4)),
    r"layer 1 .*even=3, odd=5": lambda: fnn.Sequential(fnn.LayerNorm(EQUAL), fnn.LayerNorm(UNEQUAL)),
    r"got torch\.uint8": lambda: fnn.PatchEmbed(EQUAL)(torch.zeros(1, 3, 32, 32).byte()),
    "got 64": lambda: fnn.Linear(64, 64),
}


@pytest.mark.parametrize("got", REFUSED)
def test_refused(got: str) -> None:
    with pytest.raises((TypeError, ValueError), match=got):
        REFUSED[got]()
