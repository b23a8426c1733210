"""The same network in fewer passes over memory, for runtimes that run one step after another.

A compiler fuses the many small steps of an equivariant norm or activation. ONNX Runtime runs each of them by itself,
and each reads and writes whole features. So in what is written for it norms are made of the runtime's own, and the
factors of the change of basis move into the matrices before and behind it.
"""

from __future__ import annotations

import copy
from typing import TypeGuard

import torch
from torch import Tensor, nn

from flopping.features import Feature
from flopping.models.mlp_mixer import OrientedMlp
from flopping.nn import Activation, LayerNorm, Mlp, Module
from flopping.sums import Sums, combine


class NormOfNorms(Module):
    """`LayerNorm`, made of an ordinary norm of each part, whose deviation gives way to the joint one.

    The mean of the parts' variances, each with eps, is the joint variance with eps: the law is the same.

    >>> from flopping import Layout, flop, testing
    >>> layout = Layout(flop, (5, 3))
    >>> norm, x = testing.randomize_(LayerNorm(layout)), layout.random(7)
    >>> testing.relative_error(NormOfNorms(norm)(x), norm(x)) < 1e-6
    True
    """

    def __init__(self, norm: LayerNorm) -> None:
        super().__init__(norm.in_layout, norm.out_layout)
        self.norm = norm

    @staticmethod
    def serves(layer: nn.Module) -> TypeGuard[LayerNorm]:
        """Whether the layer is a norm of several parts, all of them of dimension 1.

        A norm that gives even channels alone has few steps as it is. And behind a sum that nobody else reads, as the
        last one stands, ONNX Runtime makes one operator of both, which takes eight times as long as a norm of its own.
        """
        return (
            isinstance(layer, LayerNorm)
            and not layer.invariant_only
            and min(layer.in_layout.multiplicities) > 0
            and len(layer.in_layout.multiplicities) > 1
            and layer.in_layout.group.signs_only
        )

    def forward(self, x: Feature) -> Feature:
        norm, layout = self.norm, self.norm.in_layout
        values: list[Tensor] = []
        inverses: list[Tensor] = []
        for part, name, m in zip(x, norm.names, layout.multiplicities, strict=True):
            value, _, inverse = torch.native_layer_norm(part, (m,), norm.weight[name], None, norm.eps)
            values.append(value)
            inverses.append(inverse)
        shares = [
            m / layout.dim * i.square().reciprocal() for m, i in zip(layout.multiplicities, inverses, strict=True)
        ]
        joint = sum(shares[1:], shares[0]).rsqrt()
        even, *others = [value * (joint / inverse) for value, inverse in zip(values, inverses, strict=True)]
        return even + norm.bias, *others


class BareActivation(Module):
    """An activation whose factors 1/sqrt |G| are left to the layers around it."""

    def __init__(self, activation: Activation) -> None:
        super().__init__(activation.in_layout, activation.out_layout)
        self.function = activation.function
        group = activation.in_layout.group
        self.into, self.back = _bare(group.from_irreps), _bare(group.to_irreps)

    def forward(self, x: Feature) -> Feature:
        return tuple(combine([self.function(value) for value in combine(x, self.into)], self.back))


def _bare(sums: Sums) -> Sums:
    """The same sums, of which only the sign is left as a factor."""
    return sums._replace(scaled=tuple((1.0 if size > 0 else -1.0, signs) for size, signs in sums.scaled))


def lowered(model: nn.Module) -> nn.Module:
    """A copy of a network whose norms and activations take fewer steps; what has no such layers is copied as it is.

    >>> import timm
    >>> from flopping import testing
    >>> model = testing.randomize_(timm.create_model("deit3_flop_test_patch16_64")).eval()
    >>> x = torch.randn(2, 3, 64, 64)
    >>> testing.relative_error(lowered(model)(x), model(x)) < 1e-5
    True
    """
    made = copy.deepcopy(model)
    for parent in list(made.modules()):
        if isinstance(parent, Mlp) and type(parent) in (Mlp, OrientedMlp):  # nobody else's
            _move_factors(parent)
        for name, layer in list(parent.named_children()):
            if NormOfNorms.serves(layer):
                setattr(parent, name, NormOfNorms(layer))
    return made


@torch.no_grad()
def _move_factors(mlp: Mlp) -> None:
    """Give the factors of the change of basis to the linear layers, where all of them are the same."""
    group = mlp.hidden.group
    if group.order == 1 or not group.signs_only or mlp.hidden.extra:
        return
    factor = group.order**-0.5
    for scaled in (mlp.fc1, mlp.shift1) if isinstance(mlp, OrientedMlp) else (mlp.fc1,):
        for parameter in scaled.parameters():
            parameter.mul_(factor)
    for block in mlp.fc2.children():
        assert isinstance(block, nn.Linear)
        block.weight.mul_(factor)
    mlp.add_module("act", BareActivation(mlp.act))
