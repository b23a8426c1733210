"""Convolutions in compiled training: folded values are stored once, strides become channels."""

import pytest
import torch
from support.marks import needs_compiler, needs_onednn, needs_static_sizes
from torch._dynamo.testing import CompileCounter
from torch._inductor.utils import run_and_get_code
from torch.func import functional_call, grad, jvp, vmap

from flopping import Group, Layout, flip, flipflop, flop, trivial
from flopping import nn as fnn
from flopping.functional import conv
from flopping.functional.product import products_by_onednn
from flopping.functional.realize import realize
from flopping.testing import relative_error


@pytest.fixture(autouse=True)
def forget_graphs() -> None:
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck
def test_the_operator() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.flopping.realize, (x,))
    assert realize(x) is x


class Maps(torch.nn.Module):
    """Two convolutions of one activation, which is returned, too."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout, self.act = layout, fnn.Activation(layout)
        self.conv = fnn.Conv2d(layout, layout, 3, padding=1)
        self.strided = fnn.Conv2d(layout, layout, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        parts = self.layout.split(x)
        seen = self.act(parts)
        return [self.layout.merge(each) for each in (seen, self.conv(seen), self.strided(seen), self.conv(parts))]


@needs_compiler
@pytest.mark.parametrize("group", [flop, flipflop], ids=str)
def test_inductor_stores_values_without_a_copy(group: Group) -> None:
    """Oracle: the eager layers. Neither arguments nor results are overwritten in the backward pass."""
    maps = Maps(Layout.regular(group, 8))
    x = torch.randn(2, 8, 6, 8).requires_grad_()
    given = x.detach().clone()

    def differentiate(run: object) -> list[torch.Tensor]:
        results = run(x)
        before = [result.detach().clone() for result in results]
        gradients = torch.autograd.grad(sum(result.sin().sum() for result in results), [x, *maps.parameters()])
        assert all(torch.equal(result, kept) for result, kept in zip(results, before, strict=True))
        return [*before, *gradients]

    found, codes = run_and_get_code(differentiate, torch.compile(maps, fullgraph=True))
    assert torch.equal(x, given)
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(found, differentiate(maps), strict=True))
    assert len(codes) == 2
    assert not any("flopping.realize" in code for code in codes)


@needs_compiler
def test_a_folded_activation_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the regular basis a GELU is two calls of erf, forward; each shifted copy would call them again."""
    layout = Layout.regular(flop, 32)
    net, x = fnn.Sequential(fnn.Activation(layout), fnn.Conv2d(layout, layout, 3, padding=1)), layout.random(2, 6, 8)
    calls = []
    for stored in (True, False):
        torch._dynamo.reset()
        if not stored:
            monkeypatch.setattr(conv, "realize", lambda value: value)
        compiled = torch.compile(net, fullgraph=True)
        _, (forward, *_) = run_and_get_code(lambda run=compiled: layout.merge(run(x)).sum().backward())
        calls.append(forward.count(".erf()"))
    assert 0 < calls[0] < calls[1]


@needs_onednn
@needs_static_sizes
@pytest.mark.parametrize(("kernel", "padding"), [(2, 0), (4, 1), (4, 0)])
@pytest.mark.parametrize("group", [flop, flip, trivial], ids=str)
def test_strides_in_compiled_training(group: Group, kernel: int, padding: int) -> None:
    """Neighbouring rows become channels; oracle: the eager layer, whose convolution has a stride."""
    layout, strides = Layout.regular(group, 4), []
    layer = fnn.Conv2d(layout, layout * 2, kernel, 2, padding)
    x = layout.random(2, 8, 10)

    def note_strides(graph: torch.fx.GraphModule, _: object) -> object:
        strides.extend(node.args[3] for node in graph.graph.nodes if node.target is torch.conv2d)
        return graph

    found = []
    for run in (layer, torch.compile(layer, backend=note_strides, fullgraph=True)):
        y = layer.out_layout.merge(run(x))
        found.append([y, *torch.autograd.grad(y.sin().sum(), [*layer.parameters()])])
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(*found, strict=True))
    # other groups fold no columns, and keep the stride; a kernel of 2 leaves a matrix
    expected = {flop: {(1, 1)} if kernel == 4 else set(), flip: {(1, 2)}, trivial: {(2, 2)}}
    assert set(strides) == expected[group]


def test_compiled_gradients_of_torch_func() -> None:
    layout = Layout.regular(flop, 4)
    layer, x = fnn.Conv2d(layout, layout, 3, padding=1), layout.random(2, 5, 7)

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return layout.merge(functional_call(layer, parameters, (x,))).sin().sum()

    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    expected, found = grad(loss)(parameters), torch.compile(grad(loss), backend="aot_eager")(parameters)
    assert all(relative_error(found[name], expected[name]) < 1e-5 for name in expected)
    batched = tuple(torch.stack([part, 2 * part]) for part in x)
    together = torch.compile(vmap(layer), backend="aot_eager")(batched)
    assert all(relative_error(a[0], b) < 1e-5 for a, b in zip(together, layer(x), strict=True))


@pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")  # torch.func.jvp calls it
@pytest.mark.parametrize("by_onednn", [False, pytest.param(True, marks=needs_onednn)], ids=["torch", "oneDNN"])
@pytest.mark.parametrize("kind", [fnn.Conv2d, fnn.Linear], ids=lambda kind: kind.__name__)
def test_compiled_forward_mode(kind: type, by_onednn: bool) -> None:
    """Tangents of compiled layers; oracle: the eager ones."""
    layout = Layout.regular(flop, 4)
    layer = kind(layout, layout, **({"kernel_size": 3, "padding": 1} if kind is fnn.Conv2d else {})).requires_grad_(
        False
    )
    x, tangent = layout.random(2, 5, 7), layout.random(2, 5, 7)

    def differentiate(*parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return jvp(lambda *x: layout.merge(layer(x)), parts[:2], parts[2:])

    expected = differentiate(*x, *tangent)
    with products_by_onednn(by_onednn):
        found = torch.compile(differentiate, backend="aot_eager")(*x, *tangent)
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (4, 2, 1)])
def test_one_graph_for_all_sizes(kernel: int, stride: int, padding: int) -> None:
    """A size that changes becomes dynamic, and then no form of a convolution depends on it."""
    layout = Layout.regular(flop, 4)
    layer, graphs = fnn.Conv2d(layout, layout, kernel, stride, padding), CompileCounter()
    compiled = torch.compile(layer, backend=graphs, fullgraph=True)
    for size in (6, 8, 10, 12):
        x = layout.random(2, size, size)
        assert relative_error(layout.merge(compiled(x)), layout.merge(layer(x))) < 1e-5
    assert graphs.frame_count == 2
