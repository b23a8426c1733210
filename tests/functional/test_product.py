"""Products by oneDNN: the values and gradients of torch's own, in all ways in which a network runs."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
from support.marks import needs_compiler, needs_onednn, needs_static_sizes
from support.memory import kept_bytes
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

import flopping
from flopping import Layout, functional, machine
from flopping import nn as fnn
from flopping.errors import UsageError
from flopping.functional import product
from flopping.testing import relative_error

OP = torch.ops.flopping.onednn_linear.default


pytestmark = needs_onednn


@pytest.fixture(autouse=True)
def by_onednn() -> None:
    flopping.use_onednn()


def inputs(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return tuple(torch.randn(*size, requires_grad=True) for size in (shape, (6, shape[-1]), (6,)))  # type: ignore


def operators(graph: torch.fx.GraphModule) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # by opcheck
@pytest.mark.parametrize("wide_avx512", [False, True], ids=["MKL", "oneDNN"])
@pytest.mark.parametrize("shape", [(7, 4), (5, 3, 8), (2, 3, 5, 4), (0, 4)], ids=str)
def test_values_and_gradients_are_those_of_torch(shape, wide_avx512, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: `F.linear`. The gradient of the matrix is by MKL or by oneDNN, as suits the CPU."""
    monkeypatch.setattr(product, "has_wide_avx512", lambda: wide_avx512)
    x, weight, bias = inputs(*shape)
    for b in (bias, None):
        found, expected = functional.onednn_linear(x, weight, b), F.linear(x, weight, b)
        torch.testing.assert_close(found, expected)
        wanted = [t for t in (x, weight, b) if t is not None]
        first = [torch.autograd.grad(y.sin().sum(), wanted, create_graph=True) for y in (found, expected)]
        torch.testing.assert_close(first[0], first[1])
        second = [torch.autograd.grad(g[0].square().sum() + g[1].square().sum(), [x, weight]) for g in first]
        torch.testing.assert_close(second[0], second[1], rtol=1e-4, atol=1e-4)
        torch.library.opcheck(OP, (x, weight, b))
    strided = x.detach()[..., ::2], weight.detach()[:, ::2], bias
    torch.testing.assert_close(OP(*strided), F.linear(*strided))
    torch.library.opcheck(OP, strided)


@pytest.mark.parametrize(("wide_avx512", "products"), [(False, 1), (True, 2)], ids=["MKL", "oneDNN"])
def test_which_gradients_onednn_computes(wide_avx512: bool, products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the input always, that of the matrix on wide CPUs."""
    found: list[int] = []

    def multiply(*operands: Tensor) -> Tensor:
        found.append(len(operands))
        return functional.onednn_linear(*operands)

    monkeypatch.setattr(product, "has_wide_avx512", lambda: wide_avx512)
    monkeypatch.setattr(product, "onednn_linear", multiply)
    x, weight, _ = inputs(7, 4)
    functional.onednn_linear(x, weight).sum().backward()
    assert len(found) == products


def test_networks_run_it_eagerly_and_compiled() -> None:
    model, x = timm.create_model("deit3_flop_test_patch16_64").eval(), torch.randn(5, 3, 64, 64)
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=keep, fullgraph=True, dynamic=True)
    with torch.no_grad():
        found, again, other = model(x), compiled(x), compiled(torch.cat([x, x]))
        assert [OP.overloadpacket in operators(graph) for graph in graphs] == [True]
        flopping.use_onednn(False)
        expected = model(x)
        assert relative_error(compiled(x), expected) < 1e-6
        assert [OP.overloadpacket in operators(graph) for graph in graphs] == [True, False]
    assert not torch.equal(found, expected)  # so oneDNN ran
    for each in (found, again, other[:5]):
        assert relative_error(each, expected) < 1e-5


def test_what_is_left_of_a_convolution() -> None:
    """For flipflop a 3 x 3 convolution leaves a matrix, which oneDNN multiplies."""
    layout = Layout.regular("flipflop", 16)
    layer, x = fnn.Conv2d(layout, layout, 3, padding=1), layout.random(2, 5, 7)
    parameters = [*layer.parameters()]
    found = []
    for enabled in (True, False):
        flopping.use_onednn(enabled)
        y = layer.out_layout.merge(layer(x))
        found.append([y, *torch.autograd.grad(y.sin().sum(), parameters)])
    for a, b in zip(*found, strict=True):
        assert relative_error(a, b) < 1e-5
    assert not torch.equal(found[0][0], found[1][0])  # so oneDNN ran


@needs_static_sizes
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "size"),
    [(3, 1, 1, 1, (7, 7)), (3, 1, 0, 1, (5, 7)), (5, 1, 4, 2, (6, 8)), (4, 2, 1, 1, (6, 8)), (3, 1, 1, 1, (7, 8))],
)
def test_small_maps_are_convolved_as_one_product(kernel, stride, padding, dilation, size) -> None:
    """In compiled code, up to 49 places. Oracle: the dense layer."""
    torch.compiler.reset()
    layout, graphs = Layout.regular("flop", 8), []
    layer, x = fnn.Conv2d(layout, layout, kernel, stride, padding, dilation), layout.random(2, *size)

    def keep(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph

    y = layout.merge(torch.compile(layer, backend=keep, fullgraph=True, dynamic=False)(x))
    assert [operators(graph).count(OP.overloadpacket) for graph in graphs] == [0 if size == (7, 8) else 2]
    expected = layer.to_dense()(layout.merge(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert relative_error(y, expected) < 1e-5
    gradient = torch.randn_like(y)
    eager = torch.autograd.grad(layout.merge(layer(x)), [*layer.parameters()], gradient)
    found = torch.autograd.grad(y, [*layer.parameters()], gradient)
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(found, eager, strict=True))


@needs_compiler
def test_training_by_inductor() -> None:
    layout = Layout.regular("flop", 16)
    block, x = fnn.TransformerBlock(layout, num_heads=2), layout.random(2, 5)
    gradients = []
    for run, enabled in ((block, False), (torch.compile(block, fullgraph=True), True)):
        flopping.use_onednn(enabled)
        block.zero_grad()
        layout.merge(run(x)).sin().sum().backward()
        gradients.append([p.grad for p in block.parameters()])
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(*gradients, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))  # so oneDNN ran


def test_what_torch_multiplies() -> None:
    x, matrix = torch.randn(3, 4), nn.Linear(4, 6)
    assert functional.is_for_onednn(x, matrix)
    others = {
        "float64": (x.double(), nn.Linear(4, 6).double()),
        "another type of weight": (x, nn.Linear(4, 6).double()),
        "meta": (x.to("meta"), nn.Linear(4, 6, device="meta")),
        "weights that are not there yet": (x, nn.Linear(4, 6, device="meta")),
        "one row without an axis": (x[0], matrix),
        "a pruned matrix": (x, prune.identity(nn.Linear(4, 6), "weight")),
        "a hook": (x, nn.Linear(4, 6)),
        "another forward": (x, nn.Linear(4, 6)),
    }
    others["a hook"][1].register_forward_hook(lambda *_: None)
    others["another forward"][1].forward = matrix.forward
    assert [name for name, (value, layer) in others.items() if functional.is_for_onednn(value, layer)] == []
    with torch.autocast("cpu", torch.bfloat16):
        assert not functional.is_for_onednn(x, matrix)
    flopping.use_onednn(False)
    assert not functional.is_for_onednn(x, matrix)


def test_a_pruned_layer_trains() -> None:
    """Pruning multiplies the weight by its mask in a hook, before every call."""
    layer = fnn.Linear(Layout.regular("flop", 8), Layout.regular("flop", 8))
    x = layer.in_layout.random(2, 3)
    prune.l1_unstructured(layer.even, "weight", 0.5)
    for _ in range(2):
        layer(x)[0].sum().backward()
    with torch.no_grad():
        layer.even.weight_orig.mul_(2)
    torch.testing.assert_close(layer(x)[0], F.linear(x[0], layer.even.weight, layer.even.bias))
    assert layer.even.weight.eq(0).sum() == 8


@pytest.mark.filterwarnings("ignore:`torch.jit.script:FutureWarning")  # torch.func.jvp calls it
def test_transforms_of_functions() -> None:
    layer = fnn.Linear(Layout.regular("flop", 8), Layout.regular("flop", 8)).requires_grad_(False)
    x, tangent = (layer.in_layout.random(2, 3) for _ in range(2))
    found = []
    for enabled in (True, False):
        flopping.use_onednn(enabled)
        _, forward = torch.func.jvp(layer, (x,), (tangent,))
        backward = torch.func.grad(lambda even: layer((even, x[1]))[0].square().sum())(x[0])
        found.append([*forward, backward])
    torch.testing.assert_close(found[0], found[1])
    assert found[0][0].abs().max() > 0.01


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:FutureWarning")  # fvcore still calls it
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python boolean")
def test_exported_networks_do_not_contain_it() -> None:
    model, x = timm.create_model("resmlp_flop_test_64").eval(), torch.randn(2, 3, 64, 64)
    exported = torch.export.export(model, (x,))
    assert OP not in operators(exported.graph_module)
    jitted = torch.jit.trace(model, x, check_trace=False).inlined_graph
    assert not any("onednn" in node.kind() for node in jitted.nodes())
    traced = torch.fx.symbolic_trace(timm.create_model("deit3_flop_test_patch16_64").eval())
    assert not any("onednn" in str(target) for target in operators(traced))


def test_it_keeps_no_more_memory_than_torch() -> None:
    layout = Layout.regular("flop", 32)
    mlp, x = fnn.Mlp(layout, layout * 4), tuple(part.requires_grad_() for part in layout.random(4, 9))
    kept = kept_bytes(lambda: mlp(x))
    flopping.use_onednn(False)
    assert kept <= kept_bytes(lambda: mlp(x))


def test_torch_counts_its_flops() -> None:
    x, weight, bias = inputs(5, 3, 4)
    counts = []
    for enabled in (True, False):
        with FlopCounterMode(display=False) as counter:
            (functional.onednn_linear if enabled else F.linear)(x, weight, bias).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] == 3 * 2 * 15 * 4 * 6


@pytest.mark.parametrize("faster", [True, False])
def test_tune_cpu_uses_it_where_it_is_faster(faster, monkeypatch: pytest.MonkeyPatch) -> None:
    flopping.use_onednn(False)
    monkeypatch.setattr(product, "keep_freed_memory", lambda: True)  # would hold for the process of all tests
    monkeypatch.setattr(product, "onednn_is_faster", lambda: faster)
    flopping.tune_cpu()
    assert functional.is_for_onednn(torch.randn(2, 4), nn.Linear(4, 4)) is faster


@pytest.mark.parametrize(
    ("vendor", "instructions", "faster"),
    [("AuthenticAMD", "AVX512", True), ("AuthenticAMD", "AVX2", False), ("GenuineIntel", "AVX512", False)],
)
def test_on_which_cpus_it_is_faster(vendor, instructions, faster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_read_field", lambda file, name: vendor if name == "vendor_id" else "")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    assert machine.onednn_is_faster() is faster


@pytest.mark.parametrize(
    ("vendor", "family", "wide"),
    [("AuthenticAMD", "26", True), ("AuthenticAMD", "25", False), ("GenuineIntel", "26", False), ("", "", False)],
)
def test_which_cpus_compute_512_bits_at_once(vendor, family, wide, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"vendor_id": vendor, "cpu family": family}
    monkeypatch.setattr(machine, "_read_field", lambda file, name: fields[name])
    assert machine.has_wide_avx512.__wrapped__() is wide


def test_a_torch_without_onednn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "has_onednn", lambda: False)
    with pytest.raises(UsageError, match=torch.__version__.split("+")[0]):
        flopping.use_onednn()
    flopping.use_onednn(False)
