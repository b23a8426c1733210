"""Operations in training: what they keep, and that gradients of the first and second order are those of plain torch."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from support.memory import kept_bytes
from timm.models.convnext import ConvNeXtBlock
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flopping import Layout, flop, functional, octic
from flopping import nn as fnn
from flopping.errors import UsageError
from flopping.functional import operation
from flopping.testing import randomize_, relative_error


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations without recomputation, as autograd differentiates them."""
    monkeypatch.setattr(operation, "is_transformed", lambda: True)


@pytest.mark.parametrize("group", [flop, octic], ids=str)
def test_gradients_of_the_first_and_second_order(group) -> None:
    layout = Layout.regular(group, max(group.order, 4) + 1, extra=1)
    torch.manual_seed(0)
    for layer in (fnn.LayerNorm(layout, 1e-3), fnn.Activation(layout, F.gelu), fnn.Mlp(layout, layout * 2)):
        randomize_(layer).double()
        x = [part.double().requires_grad_() for part in layout.random(2)]

        def call(*values: Tensor, layer: nn.Module = layer, parts: int = len(x)) -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = layer(values[:parts])
            return found

        inputs = (*x, *layer.parameters())
        assert torch.autograd.gradcheck(call, inputs)
        assert torch.autograd.gradgradcheck(call, inputs)


def test_gradients_are_those_of_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a whole block, also with checkpointing, twice over one graph, and with a frozen layer."""
    torch.manual_seed(0)
    layout = Layout.regular(flop, 16)
    block = randomize_(fnn.TransformerBlock(layout, 2, init_values=1.0)).double()
    block.norm2.requires_grad_(False)
    x = tuple(part.double().requires_grad_() for part in layout.random(3, 5))
    inputs = (*x, *[p for p in block.parameters() if p.requires_grad])

    def gradients(checkpointing: bool = False) -> list[Tensor]:
        run = partial(checkpoint, block, use_reentrant=False) if checkpointing else block
        out = run(x)
        total = sum(part.pow(3).sum() for part in out)
        first = torch.autograd.grad(total, inputs, retain_graph=True)
        again = torch.autograd.grad(total, inputs)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        return list(again)

    found = [*gradients(), *gradients(checkpointing=True)]
    plain(monkeypatch)
    wanted = gradients()
    for gradient, expected in zip(found, [*wanted, *wanted], strict=True):
        assert relative_error(gradient, expected) < 1e-12


def test_an_activation_and_its_linear_layer_keep_the_input_alone() -> None:
    layout = Layout.regular(flop, 64)
    mlp, x = fnn.Mlp(layout), layout.random(5, 7)
    inputs = 5 * 7 * 64 * 4
    assert kept_bytes(lambda: mlp(x)) == inputs + 4 * inputs  # of each linear layer one: the second's is recomputed


ORDINARY = {
    "deit3_flop_small_patch16_224": partial(timm.create_model, "deit3_small_patch16_224"),
    "resmlp_flop_s24_224": partial(timm.create_model, "resmlp_24_224"),
    "convnext_flop_iso_small": lambda: nn.Sequential(
        nn.Conv2d(3, 384, 16, 16), *[ConvNeXtBlock(384, ls_init_value=None) for _ in range(18)]
    ),
}
"""Networks, and timm's own form of the ordinary ones."""


@pytest.mark.parametrize("name", ORDINARY)
def test_activations_kept_in_training(name: str) -> None:
    kept = []
    for model in (timm.create_model(name), ORDINARY[name]()):
        image = torch.randn(1, 3, 224, 224)
        kept.append(kept_bytes(partial(model.train(), image)))
    assert kept[0] < 0.75 * kept[1], kept[0] / kept[1]


def test_without_a_compiler_there_is_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    if torch.cuda.is_available():
        pytest.skip("a GPU has a compiler of its own")
    with pytest.raises(UsageError, match="no-such-compiler"):
        functional.compile_operations()
    functional.compile_operations(False)
