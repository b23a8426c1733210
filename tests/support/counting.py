"""What the tests of the counter share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flopping.cost.count import Count, count


class Call(nn.Module):
    """A function as a network: of layers and parameters by name, and of what it is called with.

    >>> Call(lambda layer, x: layer(layer(x)), layer=nn.Identity())(2)
    2
    """

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.function, self.names = function, list(parts)
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)

    def forward(self, *args: Any) -> Any:
        return self.function(*(getattr(self, name) for name in self.names), *args)


def forward(function: Callable[[Tensor], Any], size: tuple[int, ...]) -> Count:
    """The work of a function of one sample."""
    return count(Call(function), size)


def backward(function: Callable[[Tensor], Any], size: tuple[int, ...]) -> tuple[float, float]:
    """Multiply-adds and FLOPs of the gradient of a function, for one sample of the batch: a step less the way there.

    >>> backward(lambda x: x * x, (5,))  # two products with the gradient, and their sum
    (0.0, 15.0)
    """
    model = Call(lambda weight, _: function(weight), weight=torch.ones(1, *size))
    there = count(model.requires_grad_(False), size, training=True)
    step = count(model.requires_grad_(True), size, training=True)
    return step.macs - there.macs, step.flops - there.flops
