"""What the tests of the counter share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from flopping.cost.count import Count, count


class Call(nn.Module):
    """A function as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class OnWeight(nn.Module):
    """A function of a parameter: the gradient of its argument is part of a training step."""

    def __init__(self, function: Callable[[Tensor], Any], size: tuple[int, ...]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Any:
        return self.function(self.weight)


def forward(function: Callable[[Tensor], Any], size: tuple[int, ...]) -> Count:
    """The work of a function of one sample."""
    return count(Call(function), size)


def backward(function: Callable[[Tensor], Any], size: tuple[int, ...]) -> tuple[float, float]:
    """Multiply-adds and FLOPs of the gradient of a function, for one sample of the batch: a step less the way there.

    >>> backward(lambda x: x * x, (5,))  # two products with the gradient, and their sum
    (0.0, 15.0)
    """
    model = OnWeight(function, (1, *size))
    there = count(model.requires_grad_(False), size, training=True)
    step = count(model.requires_grad_(True), size, training=True)
    return step.macs - there.macs, step.flops - there.flops
