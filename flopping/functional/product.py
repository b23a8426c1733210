"""Products of features and matrices: torch's own, or oneDNN's, which is faster on some CPUs."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from flopping.errors import UsageError
from flopping.features import is_exporting, is_symbolic
from flopping.machine import keep_freed_memory, onednn_is_faster

NAME = "flopping::onednn_linear"
_by_onednn = False


def tune_cpu() -> None:
    """Make networks faster on this CPU: the process keeps freed memory, and oneDNN multiplies where it is faster.

    All commands that run or train networks call it. See `flopping.machine.keep_freed_memory` and `use_onednn`.
    """
    keep_freed_memory()
    if onednn_is_faster():
        use_onednn()


def use_onednn(enable: bool = True) -> None:
    """Let oneDNN multiply by the matrices of all `flopping.nn.Linear` layers, in float32 on a CPU.

    By default torch multiplies, on x86 by MKL. The switch holds for the process; exported networks do not contain it.
    Hooks on the matrices themselves (`layer.even`) are not called then.
    """
    global _by_onednn
    if enable and not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        raise UsageError(f"use_onednn needs a torch with oneDNN, and torch {torch.__version__} was built without it")
    _by_onednn = enable


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, by oneDNN if `use_onednn` is on and all are float32 on a CPU.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]])).tolist()
    [[3.0]]
    """
    if multiplies_by_onednn(x, weight):
        product: Tensor = torch.ops.flopping.onednn_linear(x, weight, bias)
        return product
    return F.linear(x, weight, bias)


def multiplies_by_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` runs oneDNN on these tensors."""
    if not _by_onednn or is_symbolic(x) or is_exporting():
        return False
    if x.device.type != "cpu" or x.dim() < 2 or torch.is_autocast_enabled("cpu"):
        return False
    return x.dtype == weight.dtype == torch.float32


torch.library.define(NAME, "(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


@torch.library.impl(NAME, "CPU")
def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = torch.ops.mkldnn._linear_pointwise.default(x.flatten(0, -2), weight, bias, "none", [], "")
    # a plain view would have a base, and compiled code would be compiled again for tensors that have none
    product: Tensor = torch.ops.aten._unsafe_view.default(rows, (*x.shape[:-1], len(weight)))
    return product


@torch.library.register_fake(NAME)  # type: ignore[untyped-decorator]
def _make_fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    of_input, of_weight, of_bias = ctx.needs_input_grad
    rows = gradient.flatten(0, -2)
    return (
        torch.ops.flopping.onednn_linear(gradient, weight.t(), None) if of_input else None,
        rows.t() @ x.flatten(0, -2) if of_weight else None,  # here MKL is the faster one
        rows.sum(0) if of_bias else None,
    )


@register_flop_formula(torch.ops.flopping.onednn_linear)
def _count_flops(x: tuple[int, ...], weight: tuple[int, ...], *rest: object, **_: object) -> int:
    return 2 * prod(x) * weight[0]


torch.library.register_autograd(NAME, _differentiate, setup_context=_keep_inputs)
