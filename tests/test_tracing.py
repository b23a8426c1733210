"""Compilers, exporters, tracers and copies see every layer as what it is."""

import copy
import io
import os
import pickle
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import nn

from flopping import Layout, flop, octic
from flopping import nn as fnn
from flopping.cases import LAYERS, Case, cases
from flopping.features import Feature
from flopping.testing import assert_equivariant, randomize_, relative_error

ALL = [case for case in cases() if case.shape.name == "odd"]


def is_typical(case: Case) -> bool:
    """All layers for signs (flop) and for matrices (octic); for others those that hold the group's own numbers."""
    return case.shape.group in (flop, octic) or case.layer in ("Linear", "Activation")


COMPILED = [pytest.param(case, id=str(case), marks=() if is_typical(case) else pytest.mark.long) for case in ALL]
"""What takes a compiler's time: layers of other groups are the same lines of code, and run in `make test-long`."""


def outputs(case: Case) -> tuple[nn.Module, object, object]:
    module, x = case.make()
    module.eval()
    return module, x, module(x)


@pytest.mark.parametrize("case", COMPILED)
def test_compile_fullgraph(case: Case) -> None:
    """No graph breaks; the real back end has a test of its own below."""
    module, x, y = outputs(case)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert relative_error(compiled(x), y) < 1e-5


@pytest.mark.parametrize("case", COMPILED)
def test_export_with_any_batch(case: Case) -> None:
    module, x, y = outputs(case)
    dynamic = torch.export.Dim.DYNAMIC
    shapes = {0: dynamic} if isinstance(x, torch.Tensor) else tuple({0: dynamic} for _ in x)
    program = torch.export.export(module, (x,), dynamic_shapes=(shapes,))
    assert relative_error(program.module()(x), y) < 1e-5
    twice = torch.cat([x, x]) if isinstance(x, torch.Tensor) else tuple(torch.cat([p, p]) for p in x)
    assert relative_error(program.module()(twice), module(twice)) < 1e-5


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", ALL, ids=str)
def test_symbolic_trace(case: Case, training: bool) -> None:
    module, x = case.make()
    module.train(training)
    traced = torch.fx.symbolic_trace(module)
    results = []
    for function in (module, traced):
        torch.manual_seed(0)
        results.append(function(x))
    assert relative_error(*results) < 1e-6


@pytest.mark.parametrize("case", ALL, ids=str)
def test_copies(case: Case) -> None:
    """deepcopy, pickle and state_dict give the same function; nothing constant is in the state."""
    module, x, y = outputs(case)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    fresh = LAYERS[case.layer][2](case.shape).eval()
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), fresh):
        assert relative_error(other(x), y) == 0
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}


@pytest.mark.parametrize("case", ALL, ids=str)
def test_state_is_the_same_in_train_and_eval(case: Case) -> None:
    module, x = case.make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for mode in (True, False, True):
        module.train(mode)(x)
        assert set(module.state_dict()) == set(before)
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("group", [flop, octic], ids=str)
def test_device_and_dtype_reach_everything(group) -> None:
    """As arguments of a layer, not only by `to`: parameters and constants alike."""
    width = Layout.regular(group, 16)
    where = {"device": "meta", "dtype": torch.float16}
    layers = [
        fnn.PatchEmbed(width, 8, 4, **where),
        fnn.PosEmbed(width, 3, **where),
        fnn.ClassToken(width, **where),
        fnn.TransformerBlock(width, 2, **where),
        fnn.Affine(width, **where),
        fnn.ToInvariant(width, **where),
        fnn.InvariantHead(width, 3, **where),
    ]
    if group.signs_only:
        layers += [
            fnn.DepthwiseConv2d(width, 3, **where),
            fnn.Downsample(width, width, **where),
            fnn.TokenMix(width, 3, **where),
        ]
    for layer in layers:
        tensors = [*layer.parameters(), *layer.buffers()]
        assert all(t.is_meta for t in tensors)
        assert all(t.dtype == torch.float16 for t in tensors if t.is_floating_point())


@pytest.mark.parametrize("case", ALL, ids=str)
def test_built_on_the_meta_device(case: Case) -> None:
    """Built without memory and filled later: constants come back as timm's models bring back theirs."""
    with torch.device("meta"):
        module = LAYERS[case.layer][2](case.shape)
    assert all(t.is_meta for t in (*module.parameters(), *module.buffers()))
    twin, x, y = outputs(case)
    module.to_empty(device="cpu").load_state_dict(twin.state_dict())
    for layer in module.modules():
        if hasattr(layer, "init_non_persistent_buffers"):
            layer.init_non_persistent_buffers()
    assert relative_error(module.eval()(x), y) == 0


needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="torch.compile needs a C++ compiler, none found"
)


def network(group) -> nn.Module:
    """All layers that one compiled graph can hold for a group."""
    width = Layout.regular(group, 4 * group.order)
    mixers = [fnn.TokenMix(width, 4)] if group.signs_only else []
    return fnn.Sequential(
        fnn.PatchEmbed(width, 16, 4),
        fnn.PosEmbed(width, 4),
        *mixers,
        fnn.Affine(width),
        fnn.ClassToken(width),
        fnn.TransformerBlock(width, num_heads=2),
        fnn.LayerNorm(width),
        fnn.InvariantHead(width, num_classes=3),
    )


@needs_compiler
@pytest.mark.parametrize("group", [flop, pytest.param(octic, marks=pytest.mark.long)], ids=str)
def test_inductor(group) -> None:
    """The real back end, training and inference: same values, same gradients, still equivariant.

    The network of octic takes it a minute of g++, so that here only a part of it is compiled, in the next test.
    """
    net = randomize_(network(group))
    image = torch.randn(2, 3, 16, 16)
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True)
    gradients = []
    for function in (net, compiled):
        net.zero_grad()
        function(image).square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    eager, fast = gradients
    assert eager.keys() == fast.keys()
    for name, gradient in eager.items():
        torch.testing.assert_close(fast[name], gradient, rtol=1e-4, atol=1e-4 * gradient.abs().max().item())
    assert_equivariant(compiled, image, group=group)


def maps() -> tuple[nn.Module, Feature]:
    layout = Layout.regular(flop, 12, extra=4)
    net = fnn.Sequential(fnn.DepthwiseConv2d(layout, 3), fnn.Downsample(layout, layout * 2))
    return net, layout.random(2, 6, 8)


def matrices() -> tuple[nn.Module, Feature]:
    layout = Layout.regular(octic, 16)
    return fnn.Sequential(fnn.LayerNorm(layout), fnn.Mlp(layout)), layout.random(2, 3)


@needs_compiler
@pytest.mark.parametrize("build", [maps, matrices])
def test_parts_through_inductor(build: Callable[[], tuple[nn.Module, Feature]]) -> None:
    """What the network of flop doesn't have: convolutions, and irreps that aren't signs."""
    net, x = build()
    randomize_(net)
    torch.compiler.reset()
    with torch.no_grad():
        assert relative_error(torch.compile(net, fullgraph=True)(x), net(x)) < 1e-5


@pytest.mark.parametrize("group", [flop, octic], ids=str)
def test_hybrid_hand_off_is_traced_and_copied(group) -> None:
    """It is in no table of cases, because it gives up the group."""
    layout = Layout.regular(group, 2 * group.order + 1, extra=1)
    layer, x = fnn.ToRegular(layout), layout.random(3)
    y = layer(x)
    torch.compiler.reset()
    for other in (
        torch.compile(layer, fullgraph=True, backend="aot_eager"),
        torch.export.export(layer, (x,)).module(),
        torch.fx.symbolic_trace(layer),
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
    ):
        assert relative_error(other(x), y) < 1e-6


def test_a_trace_made_without_gradients_can_be_trained() -> None:
    layout = Layout.regular(flop, 8)
    layer = randomize_(fnn.LayerNorm(layout).double())
    with torch.no_grad():
        traced = torch.fx.symbolic_trace(layer)
    gradients = []
    for function in (layer, traced):
        x = [
            part.requires_grad_()
            for part in layout.random(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        ]
        gradients.append(torch.autograd.grad(sum((p**3).sum() for p in function(tuple(x))), x))
    torch.testing.assert_close(*gradients)


def test_layout_is_usable_for_the_first_time_inside_a_compiled_graph() -> None:
    """Nothing about a layout is worked out lazily behind a lock, which a compiler could not follow."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = fnn.Activation(Layout.regular(octic, 16))

        def forward(self, x):
            return self.act(x)

    torch.compiler.reset()
    layout = Layout.regular(octic, 16)
    torch.compile(Late(), fullgraph=True, backend="eager")(layout.random(3))
