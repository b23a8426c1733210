"""Fold constants of an ONNX graph into the weights beside them.

For a linear layer y = x W + b, with constants c and d per channel and a number s:

- (x W + b) c = x (W c) + b c: a layer scale
- (x c) W + b = x (c W) + b: the scale of a norm, the factor of a change of basis after an activation
- (x + d) W + b = x W + (d W + b): the shift of a norm
- (y + z) s and (y - z) s, where nothing else reads y and z: the factor of a change of basis before an activation
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]


class _Linear(NamedTuple):
    """A product with constant weights `(in, out)`, and the addition of a constant bias right after it, if any."""

    product: ir.Node
    weights: Array
    addition: ir.Node | None = None

    def scale_output(self, factor: Array) -> None:
        _replace(self.product, 1, self.weights.astype(float) * factor.reshape(-1))
        if self.addition is not None:
            place, bias = self._bias(self.addition)
            _replace(self.addition, place, bias * factor.reshape(-1))

    def scale_input(self, factor: Array) -> None:
        _replace(self.product, 1, factor.reshape(-1, 1) * self.weights.astype(float))

    def shift_input(self, shift: Array) -> None:
        assert self.addition is not None
        place, bias = self._bias(self.addition)
        weights = self.weights.astype(float)
        _replace(self.addition, place, bias + numpy.broadcast_to(shift, len(weights)) @ weights)

    def _bias(self, addition: ir.Node) -> tuple[int, Array]:
        place = 1 if _constant(addition.inputs[1]) is not None else 0
        bias = _constant(addition.inputs[place])
        assert bias is not None
        return place, bias.astype(float)


def fold(graph: ir.Graph) -> int:
    """Change a graph in place; the number of operators that it no longer has."""
    before = len(graph)
    for node in reversed(list(graph)):  # from the end: the shift of a norm first, then the scale in front of it
        if node.graph is None or node.op_type not in ("Mul", "Add") or node.outputs[0].is_graph_output():
            continue
        operands = _operands(node)
        if operands is None:
            continue
        if node.op_type == "Mul" and (_into_layer_before(node, *operands) or _into_both_layers(*operands)):
            continue
        _into_layers_after(node, *operands)
    for name in [name for name, value in graph.initializers.items() if not (value.uses() or value.is_graph_output())]:
        del graph.initializers[name]
    return before - len(graph)


def _into_layer_before(node: ir.Node, value: ir.Value, factor: Array) -> bool:
    layer = _layer_of(value)
    if layer is None or _only_user(value) is not node or not _per_channel(factor, layer.weights.shape[1]):
        return False
    layer.scale_output(factor)
    _drop(node, value)
    return True


def _into_both_layers(value: ir.Value, factor: Array) -> bool:
    """Where it is a sum or difference of two layers, and all that reads the two is multiplied alike."""
    mixed = value.producer()
    if mixed is None or mixed.op_type not in ("Add", "Sub"):
        return False
    terms = [term for term in mixed.inputs if term is not None and not term.is_graph_output()]
    layers = [layer for term in terms if (layer := _layer_of(term)) is not None]
    if len(layers) != 2 or terms[0] is terms[1]:
        return False
    if not all(_per_channel(factor, layer.weights.shape[1]) for layer in layers):
        return False
    scalings = {}
    for use in (use for term in terms for use in term.uses()):
        scaling = _only_user(use.node.outputs[0])
        if use.node.op_type not in ("Add", "Sub") or not {*use.node.inputs} <= {*terms}:
            return False
        if scaling is None or scaling.op_type != "Mul" or scaling.outputs[0].is_graph_output():
            return False
        operands = _operands(scaling)
        if operands is None or not numpy.array_equal(operands[1], factor):
            return False
        scalings[scaling] = operands[0]
    for layer in layers:
        layer.scale_output(factor)
    for scaling, unscaled in scalings.items():
        _drop(scaling, unscaled)
    return True


def _into_layers_after(node: ir.Node, value: ir.Value, constant: Array) -> None:
    """Where linear layers are all that reads it; a shift only where they have a bias already.

    The constant may not be what gives the value its channels, so these have to be known.
    """
    channels = value.shape[-1] if value.shape else None
    layers = []
    for use in node.outputs[0].uses():
        addition = _only_user(use.node.outputs[0])
        layer = (addition and _layer_of(addition.outputs[0])) or _layer_of(use.node.outputs[0])
        if layer is None or layer.product is not use.node or (node.op_type == "Add" and layer.addition is None):
            return
        if channels != len(layer.weights) or not _per_channel(constant, len(layer.weights)):
            return
        layers.append(layer)
    for layer in layers:
        (layer.scale_input if node.op_type == "Mul" else layer.shift_input)(constant)
    _drop(node, value)


def _layer_of(value: ir.Value) -> _Linear | None:
    """The linear layer whose result this is."""
    node = value.producer()
    if node is not None and node.op_type == "MatMul":
        weights = _constant(node.inputs[1])
        return None if weights is None or weights.ndim != 2 else _Linear(node, weights)
    operands = _operands(node) if node is not None and node.op_type == "Add" else None
    if operands is None or operands[1].ndim != 1 or _only_user(operands[0]) is not node:
        return None
    layer = _layer_of(operands[0])
    return None if layer is None or layer.addition is not None else layer._replace(addition=node)


def _operands(node: ir.Node) -> tuple[ir.Value, Array] | None:
    """The computed and the constant (float32) input of a node with two inputs."""
    for value, other in (node.inputs, reversed(node.inputs)):
        constant = _constant(other)
        if value is not None and _constant(value) is None and constant is not None and constant.dtype == numpy.float32:
            return value, constant
    return None


def _constant(value: ir.Value | None) -> Array | None:
    return None if value is None or value.const_value is None else value.const_value.numpy()


def _only_user(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _per_channel(constant: Array, channels: int) -> bool:
    return (constant.size == 1 and constant.ndim <= 1) or constant.shape == (channels,)


def _replace(node: ir.Node, place: int, array: Array) -> None:
    """Give a node a constant of its own; other nodes may read the one it had."""
    assert node.graph is not None
    name = f"{node.outputs[0].name}.folded"
    tensor = ir.tensor(array.astype(numpy.float32), name=name)
    new = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
    node.replace_input_with(place, new)
    node.graph.initializers.pop(name, None)  # what was folded into the same layer before
    node.graph.register_initializer(new)


def _drop(node: ir.Node, value: ir.Value) -> None:
    """Take a node out of its graph: what read it reads the value."""
    assert node.graph is not None
    node.outputs[0].replace_all_uses_with(value)
    node.graph.remove(node, safe=True)
