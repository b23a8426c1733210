"""Gradients are reproducible on GPUs, which can't run here: no operation of a backward pass adds atomically on CUDA."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flopping import Layout, flop, octic
from flopping import nn as fnn
from flopping.testing import randomize_
from flopping.testing.cases import Case, cases

# They add values to places in whatever order threads arrive.
ATOMIC = (
    "index_add",
    "index_put",
    "scatter_add",
    "scatter_reduce",
    "embedding_dense_backward",
    "upsample_",
    "grid_sampler",
)


class Recorder(TorchDispatchMode):
    """The names of all operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__.strip("_"))
        return func(*args, **(kwargs or {}))


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def gradients(module: Callable[..., Any], x: Any, parameters: list[Tensor]) -> tuple[list[Tensor], set[str]]:
    """Gradients of all inputs and parameters, and the operations that made them."""
    leaves = [part.clone().requires_grad_() for part in (x if isinstance(x, tuple) else (x,))]
    torch.manual_seed(0)
    with deterministic():
        y = module(tuple(leaves) if isinstance(x, tuple) else leaves[0])
        loss = sum((part**2).sum() for part in (y if isinstance(y, tuple) else (y,)))
        with Recorder() as recorder:
            found = torch.autograd.grad(loss, [*leaves, *parameters], allow_unused=True, materialize_grads=True)
    return list(found), recorder.names


def assert_reproducible(module: nn.Module, x: Any, call: Callable[..., Any] | None = None) -> None:
    first, names = gradients(call or module, x, list(module.parameters()))
    assert [name for name in names if name.startswith(ATOMIC)] == []
    again, _ = gradients(call or module, x, list(module.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("case", [case for case in cases() if case.shape.name == "odd"], ids=str)
def test_layers(case: Case) -> None:
    assert_reproducible(*case.make())


@pytest.mark.parametrize("group", [flop, octic], ids=str)
def test_positions_of_another_grid(group: Any) -> None:
    layout = Layout.regular(group, 2 * group.order)
    embed = randomize_(fnn.PosEmbed(layout, 4))
    assert_reproducible(embed, layout.random(2, 25), lambda x: embed.at(x, (5, 5)))


@pytest.mark.parametrize(
    "name", ["deit3_flop_invariant_test_patch16_64", "resmlp_flop_test_64", "convnext_flop_test", "resnet_flop_test"]
)
def test_networks(name: str) -> None:
    model = randomize_(timm.create_model(name, drop_path_rate=0.1))
    assert_reproducible(model, torch.randn(2, *model.pretrained_cfg["input_size"]))


@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x.index_select(0, torch.tensor([1, 1, 0])),
        lambda x: x[torch.tensor([1, 1, 0])],
        lambda x: x.gather(0, torch.ones(3, 4, dtype=torch.long)),
        lambda x: nn.functional.interpolate(x[None, None], (5, 5), mode="bicubic", antialias=True),
    ],
)
def test_the_test_sees_atomic_additions(pick: Callable[[Tensor], Tensor]) -> None:
    _, names = gradients(pick, torch.randn(4, 4), [])
    assert [name for name in names if name.startswith(ATOMIC)] != []
