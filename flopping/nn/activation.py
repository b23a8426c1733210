"""Pointwise functions."""

from __future__ import annotations

import torch.nn.functional as F
from timm.layers import get_act_fn

from flopping import functional
from flopping.features import Feature, Layout
from flopping.functional import Pointwise
from flopping.nn.module import Module


class Activation(Module):
    """Any elementwise function, applied in the regular basis; needs a layout of regular copies plus extras.

    >>> import torch
    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 6, extra=2)
    >>> [tuple(part.shape) for part in Activation(layout, torch.relu)(layout.random(5))]
    [(5, 4), (5, 2)]
    """

    in_layout: Layout

    def __init__(self, layout: Layout, function: Pointwise = F.gelu) -> None:
        super().__init__(layout, layout)
        layout.require_regular("Activation")
        self.function = function
        self.scaled = True
        """Whether the changes of basis have their factors; where not, the layers around have taken them over."""

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Activation")
        return functional.pointwise(x, self.in_layout, self.function, self.scaled)


class GatedActivation(Activation):
    """An elementwise function of one half of the copies of each irrep, times the other half; in the regular basis.

    With `silu` it is the gate of SwiGLU. It takes twice the copies of `layout` and gives that layout.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 6, extra=2)
    >>> [tuple(part.shape) for part in GatedActivation(layout)((layout * 2).random(5))]
    [(5, 4), (5, 2)]
    """

    out_layout: Layout

    def __init__(self, layout: Layout, function: Pointwise = F.silu) -> None:
        super().__init__(layout, function)
        self.in_layout = layout * 2

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "GatedActivation")
        return functional.gated(x, self.out_layout, self.function, self.scaled)


def pointwise_function(activation: str | Pointwise) -> Pointwise:
    """An elementwise function given by timm's name for it, or itself.

    >>> import torch
    >>> pointwise_function("relu")(torch.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    if isinstance(activation, str):
        try:
            found: Pointwise = get_act_fn(activation)
        except KeyError:
            raise ValueError(f"no activation is called {activation!r}; known are e.g. 'gelu', 'silu'") from None
        return found
    if isinstance(activation, type) or not callable(activation):
        raise TypeError(f"an activation is a name or an elementwise function, e.g. torch.relu, got {activation!r}")
    return activation
