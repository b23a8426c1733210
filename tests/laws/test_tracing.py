"""Compilers, exporters, tracers and copies see every layer as what it is."""

import copy
import io
import pickle

import pytest
import torch
from support.marks import needs_compiler
from torch import nn

from flopping import Layout, flop, octic
from flopping import nn as fnn
from flopping.testing import assert_equivariant, randomize_, relative_error
from flopping.testing.cases import LAYERS, Case, cases

ALL = [case for case in cases() if case.shape.name == "odd"]


def is_typical(case: Case) -> bool:
    """All layers for signs (flop), those that differ for matrices (octic), and what holds numbers of other groups."""
    layers = ("Activation", "Attention (rotary)", "LayerNorm", "PatchEmbed", "PosEmbed", "Restrict", "Polynomials")
    different = case.layer in layers
    return case.shape.group == flop or (case.shape.group == octic and different) or case.layer == "Linear"


COMPILED = [pytest.param(case, id=str(case), marks=() if is_typical(case) else pytest.mark.long) for case in ALL]
"""What takes a compiler's time: layers of other groups are the same lines of code, and run in `make test-long`."""


def outputs(case: Case) -> tuple[nn.Module, object, object]:
    module, x = case.make()
    module.eval()
    return module, x, module(x)


@pytest.mark.parametrize("case", COMPILED)
def test_compile_fullgraph(case: Case) -> None:
    """No graph breaks, not even in the first call; the real back end has a test of its own below."""
    module, x = case.make()
    torch.compiler.reset()
    compiled = torch.compile(module.eval(), fullgraph=True, backend="aot_eager")
    assert relative_error(compiled(x), module(x)) < 1e-5


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
    """deepcopy, pickle and state_dict give the same function; nothing constant is in the state.

    Running statistics are no constants.
    """
    module, x, y = outputs(case)
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    fresh = LAYERS[case.layer][1](case.shape).eval()
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), fresh):
        assert relative_error(other(x), y) == 0
    statistics = {name for name, _ in module.named_buffers() if "running_" in name or name == "num_batches_tracked"}
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()} | statistics
    assert bool(statistics) == (case.layer == "BatchNorm")


@pytest.mark.parametrize("case", ALL, ids=str)
def test_built_on_the_meta_device(case: Case) -> None:
    """Built without memory and filled later: constants come back with the weights."""
    with torch.device("meta"):
        module = LAYERS[case.layer][1](case.shape)
    assert all(t.is_meta for t in (*module.parameters(), *module.buffers()))
    twin, x, y = outputs(case)
    module.to_empty(device="cpu").load_state_dict(twin.state_dict())
    assert relative_error(module.eval()(x), y) == 0


@needs_compiler
@pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.long)])
def test_inductor(more: bool) -> None:
    """The real back end: same values, same gradients, still equivariant.

    A C++ compiler takes a second or more for each kernel: `make test-long` has more layers, and kernels.
    """
    width = Layout.regular(flop, 8)
    others = (
        fnn.PosEmbed(width, 4),
        fnn.TokenMix(width, 4),
        fnn.Affine(width),  # without it a shift of all even channels would have no gradient
        fnn.ClassToken(width),
    )
    net = randomize_(
        fnn.Sequential(
            fnn.PatchEmbed(width, 16, 4),
            *(others if more else ()),
            fnn.TransformerBlock(width, num_heads=2),
            fnn.LayerNorm(width),
            fnn.InvariantHead(width, num_classes=3),
        )
    )
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
    if more:
        assert_equivariant(compiled, image, group=flop)  # without gradients: another graph
    assert relative_error(compiled(image.flip(-1)), compiled(image)) < 1e-5


@needs_compiler
@pytest.mark.long
def test_convolutions_and_matrices_through_inductor() -> None:
    """What the network of flop doesn't have."""
    signs, matrices = Layout.regular(flop, 12, extra=4), Layout.regular(octic, 16)
    mlp = fnn.Sequential(fnn.LayerNorm(matrices), fnn.Mlp(matrices))
    nets = [(mlp, matrices.random(2, 3)), (fnn.TokenMix(matrices, 4), matrices.random(2, 16))]
    for width in (signs, matrices):
        convolutions = (fnn.DepthwiseConv2d(width, 3), fnn.Conv2d(width, width, 3), fnn.Downsample(width, width * 2))
        nets.append((fnn.Sequential(*convolutions), width.random(2, 6, 8)))
    for net, x in nets:
        randomize_(net)
        torch.compiler.reset()
        with torch.no_grad():
            assert relative_error(torch.compile(net, fullgraph=True)(x), net(x)) < 1e-5


@pytest.mark.parametrize("group", [flop, octic], ids=str)
def test_device_and_dtype_reach_everything(group) -> None:
    """As arguments of a layer, not only by `to`: parameters and constants alike."""
    width = Layout.regular(group, 16)
    layers = {
        fnn.PatchEmbed: (width, 8, 4), fnn.PosEmbed: (width, 3), fnn.ClassToken: (width,), fnn.Affine: (width,),
        fnn.TransformerBlock: (width, 2), fnn.ToInvariant: (width,), fnn.InvariantHead: (width, 3),
    }  # fmt: skip
    maps = {fnn.DepthwiseConv2d: (width, 3), fnn.Downsample: (width, width), fnn.TokenMix: (width, 3),
            fnn.Conv2d: (width, width, 3), fnn.OrientedBias: (width, 3)}  # fmt: skip
    for layer, args in (layers | maps).items():
        made = layer(*args, device="meta", dtype=torch.float16)
        tensors = [*made.parameters(), *made.buffers()]
        assert all(t.is_meta for t in tensors)
        assert all(t.dtype == torch.float16 for t in tensors if t.is_floating_point())


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
