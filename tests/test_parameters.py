"""Parameters: all get a gradient, start with the right spread and can be started again."""

import pytest
import torch

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.cases import Case, cases
from flopping.groups import grid_groups
from flopping.testing import randomize_

GROUPS = [group for group in grid_groups().values() if group.order > 1]
PLAIN = {"Activation", "Dropout", "DropPath", "AbsToInvariant", "Restrict", "Orient"}  # layers without parameters
CASES = [case for case in cases() if case.shape.name == "odd" and case.layer not in PLAIN]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_parameter_gets_a_gradient(case: Case) -> None:
    module, x = case.make()
    y = module.eval()(x)
    parts = y if isinstance(y, tuple) else (y,)
    sum(part.square().sum() for part in parts).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


def test_every_parameter_of_a_network_gets_a_gradient() -> None:
    """Also of the last norm, whose odd channels nobody would read: it gives even ones only."""
    width = Layout.regular(flop, 16)
    norm = fnn.LayerNorm(width, invariant_only=True)
    net = fnn.Sequential(
        fnn.PatchEmbed(width, 8, 4),
        fnn.PosEmbed(width, 2),
        fnn.ClassToken(width),
        fnn.TransformerBlock(width, 2, qkv_bias=True, init_values=0.1),
        norm,
        fnn.InvariantHead(norm.out_layout, 3),
    )
    net(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []
    both = randomize_(fnn.LayerNorm(width))
    norm.load_state_dict({name: value for name, value in both.state_dict().items() if "odd" not in name})
    x = width.random(2, 5)
    torch.testing.assert_close(norm(x)[0], both(x)[0])
    assert norm(x)[1].shape == (2, 5, 0)


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_linear_starts_with_the_same_spread_in_every_part(group) -> None:
    """As an ordinary layer does for the width of the block: 1/sqrt(3) of the input's."""
    layout = Layout.regular(group, 64 * group.order)
    torch.manual_seed(0)
    out = fnn.Linear(layout, layout, bias=False)(layout.random(200))
    assert [part.std().item() for part in out] == pytest.approx([3**-0.5] * len(out), rel=0.1)


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
