"""Constants that become part of the weights of an ONNX graph: which do, which must not, and that nothing changes."""

from __future__ import annotations

import numpy
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from flopping.deploy.fold import fold

CONSTANTS = {
    **{"W": (4, 6), "V": (4, 6), "U": (6, 5), "left": (3, 3)},
    **{"a": (6,), "b": (6,), "c6": (6,), "c4": (4,), "d4": (4,), "tokens": (3, 1)},
    **{"s": (), "s1": (1,), "r": ()},
}
FOLDED = {
    "a scale after a layer": ("h = MatMul(x, W)  l = Add(h, b)  y = Mul(l, c6)  z = Relu(y)", 1),
    "a number after a layer without shift": ("h = MatMul(x, W)  y = Mul(s, h)  z = Relu(y)", 1),
    "a scale before a layer": ("t = Mul(x, c4)  h = MatMul(t, W)  z = Add(h, b)", 1),
    "a number before two layers": ("t = Mul(x, s1)  h = MatMul(t, W)  g = MatMul(t, V)  z = Sub(h, g)", 1),
    "scale and shift of a norm": ("t = Mul(x, c4)  u = Add(d4, t)  h = MatMul(u, W)  z = Add(h, b)", 2),
    "both sides of a layer": (
        "t = Mul(x, c4)  h = MatMul(t, W)  l = Add(h, b)  y = Mul(l, c6)  k = MatMul(y, U)  z = Relu(k)",
        2,
    ),
    "a change of basis": (
        "h = MatMul(x, W)  l = Add(h, b)  g = MatMul(x, V)"
        "  p = Add(l, g)  ps = Mul(p, s)  q = Sub(l, g)  qs = Mul(q, s)  f = Relu(ps)  e = Tanh(qs)  z = Add(f, e)",
        2,
    ),
    "a change of basis, a factor per channel": (
        "h = MatMul(x, W)  g = MatMul(x, V)  p = Add(h, g)  ps = Mul(p, c6)  z = Relu(ps)",
        1,
    ),
    "weights that two layers share": ("h = MatMul(x, W)  y = Mul(h, c6)  g = MatMul(x, W)  z = Sub(y, g)", 1),
}

LEFT = {
    "a scale that something else reads": "t = Mul(x, c4)  h = MatMul(t, W)  m = ReduceSum(t)  z = Add(h, m)",
    "a layer that something else reads": "h = MatMul(x, W)  y = Mul(h, c6)  z = Sub(y, h)",
    "a factor per token": "t = Mul(x, tokens)  h = MatMul(t, W)  z = Add(h, b)",
    "a shift before a layer without one": "u = Add(x, d4)  h = MatMul(u, W)  z = Relu(h)",
    "a shift before two layers, one without": (
        "u = Add(x, d4)  h = MatMul(u, W)  l = Add(h, b)  g = MatMul(u, V)  z = Sub(l, g)"
    ),
    "two numbers of one change of basis": (
        "h = MatMul(x, W)  g = MatMul(x, V)  p = Add(h, g)  ps = Mul(p, s)  q = Sub(h, g)"
        "  qs = Mul(q, r)  z = Add(ps, qs)"
    ),
    "half of a change of basis": (
        "h = MatMul(x, W)  g = MatMul(x, V)  p = Add(h, g)  ps = Mul(p, s)  q = Sub(h, g)  z = Div(ps, q)"
    ),
    "a change of basis of the result": (
        "z = MatMul(x, W)  g = MatMul(x, V)  p = Add(z, g)  ps = Mul(p, s)  q = Sub(z, g)  qs = Mul(q, s)"
        "  f = Relu(ps)  e = Relu(qs)"
    ),
    "a sum with itself": "h = MatMul(x, W)  p = Add(h, h)  ps = Mul(p, s)  z = Relu(ps)",
    "a change of basis, a factor per token": (
        "h = MatMul(x, W)  g = MatMul(x, V)  p = Add(h, g)  ps = Mul(p, tokens)  z = Relu(ps)"
    ),
    "a product that something else reads": "h = MatMul(x, W)  l = Add(h, b)  y = Mul(l, c6)  z = Sub(y, h)",
    "a product with a vector": "h = MatMul(x, c4)  y = Mul(h, s)  k = ReduceSum(y)  z = Add(x, k)",
    "the result itself": "h = MatMul(x, W)  z = Mul(h, c6)",
    "a factor that makes channels of one": "k = ReduceMax(x, last)  t = Mul(k, c4)  h = MatMul(t, W)  z = Add(h, b)",
    "computed weights": "w = Relu(W)  t = Mul(x, c4)  h = MatMul(t, w)  z = Relu(h)",
    "weights on the left": "t = Mul(x, s)  h = MatMul(left, t)  z = Relu(h)",
}


def model(body: str) -> onnx.ModelProto:
    made = parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> made (float[n, 3, 4] x) => (float[n, 3, m] z) {{ {body} }}'
    )
    numbers = numpy.random.default_rng(0)
    for name, shape in CONSTANTS.items():
        if any(name in node.input for node in made.graph.node):
            array = numpy.asarray(numbers.uniform(0.5, 2, shape) * numbers.choice([-1, 1], shape), numpy.float32)
            made.graph.initializer.append(numpy_helper.from_array(array, name))
    if any("last" in node.input for node in made.graph.node):
        made.graph.initializer.append(numpy_helper.from_array(numpy.array([-1]), "last"))
    return made


def run(made: onnx.ModelProto) -> numpy.ndarray:
    onnx.checker.check_model(made, full_check=True)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    images = numpy.random.default_rng(1).normal(size=(2, 3, 4)).astype(numpy.float32)
    (result,) = session.run(None, {"x": images})
    return result


CASES = {**FOLDED, **{name: (body, 0) for name, body in LEFT.items()}}


@pytest.mark.parametrize(("body", "saved"), CASES.values(), ids=CASES)
def test_what_is_folded_changes_nothing_else(body: str, saved: int) -> None:
    made = model(body)
    folded = ir.from_proto(onnx.shape_inference.infer_shapes(made))
    assert fold(folded.graph) == saved
    assert len(folded.graph) == len(made.graph.node) - saved
    after = ir.to_proto(folded)
    numpy.testing.assert_allclose(run(after), run(made), rtol=1e-5, atol=1e-5)
    read = {name for node in after.graph.node for name in node.input}
    assert {tensor.name for tensor in after.graph.initializer} <= read, "constants that nothing reads"


def test_a_constant_that_is_a_result_stays() -> None:
    made = model("h = MatMul(x, W)  y = Mul(h, c6)  z = Relu(y)")
    made.graph.output.append(onnx.helper.make_tensor_value_info("c6", onnx.TensorProto.FLOAT, [6]))
    folded = ir.from_proto(made)
    assert fold(folded.graph) == 1
    onnx.checker.check_model(ir.to_proto(folded), full_check=True)


def test_what_has_no_known_shape_stays() -> None:
    """Its channels might be those of the constant."""
    folded = ir.from_proto(model("k = Relu(x)  t = Mul(k, c4)  h = MatMul(t, W)  z = Add(h, b)"))
    assert fold(folded.graph) == 0
