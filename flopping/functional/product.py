"""Products of features and matrices by oneDNN, which is faster than torch's own on some CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula

from flopping.errors import UsageError
from flopping.features import is_exporting, is_symbolic
from flopping.functional.operation import is_transformed
from flopping.machine import has_onednn, has_wide_avx512, keep_freed_memory, onednn_is_faster

_NAME = "flopping::onednn_linear"
_enabled = False


def tune_cpu() -> None:
    """Make networks faster on this CPU: the process keeps freed memory, and oneDNN multiplies where it is faster.

    `flopping train`, `eval`, `predict`, `experiment` and `bench` of networks call it. See
    `flopping.machine.keep_freed_memory` and `use_onednn`.
    """
    keep_freed_memory()
    if onednn_is_faster():
        use_onednn()


def use_onednn(enable: bool = True) -> None:
    """Let oneDNN multiply by all matrices of `flopping.nn.Linear`, in float32 on a CPU.

    Also by those of `flopping.nn.Conv2d` where the filter left after folding is 1 x 1 and, in compiled training, where
    the map is small.

    By default torch multiplies, on x86 by MKL. The switch holds for the process. Exported networks contain torch's
    products, and so do matrices with hooks and what `torch.func` transforms. The compiler's freezing and autotuning do
    not reach products by oneDNN.
    """
    global _enabled
    if enable and not has_onednn():
        raise UsageError(f"use_onednn needs a torch with oneDNN, and torch {torch.__version__} was built without it")
    _enabled = enable


@contextmanager
def products_by_onednn(enable: bool) -> Iterator[None]:
    """A context in which the switch of `use_onednn` is on or off."""
    before = _enabled
    use_onednn(enable)
    try:
        yield
    finally:
        use_onednn(before)


def is_for_onednn(x: Tensor, matrix: nn.Linear) -> bool:
    """Whether oneDNN multiplies these: the switch is on, and both are plain float32 tensors on the CPU.

    >>> is_for_onednn(torch.ones(1, 2), nn.Linear(2, 2))
    False
    """
    # pruning, for one, computes the weight in a hook; other libraries replace `forward`
    hooks = matrix._forward_pre_hooks, matrix._forward_hooks, matrix._backward_pre_hooks, matrix._backward_hooks
    return _enabled and not any(hooks) and "forward" not in vars(matrix) and can_use_onednn(x, matrix.weight)


def can_use_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN multiplies these tensors, as in `is_for_onednn`. Hooks of a module are not looked at."""
    if not _enabled or is_symbolic(x) or is_exporting() or is_transformed():
        return False
    if x.dim() < 2 or type(weight) not in (Tensor, nn.Parameter) or torch.is_autocast_enabled("cpu"):
        return False
    return x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, by oneDNN if the switch is on and it can."""
    return onednn_linear(x, weight, bias) if can_use_onednn(x, weight) else nn.functional.linear(x, weight, bias)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` by oneDNN.

    >>> onednn_linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]])).tolist()
    [[3.0]]
    """
    product: Tensor = torch.ops.flopping.onednn_linear(x, weight, bias)
    return product


torch.library.define(_NAME, "(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


@torch.library.impl(_NAME, "cpu")
def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not x.shape[-1]:  # oneDNN refuses a sum of nothing
        return nn.functional.linear(x, weight, bias)
    rows = torch.ops.mkldnn._linear_pointwise.default(x.flatten(0, -2), weight, bias, "none", [], "")
    # A plain view has a base. Compiled code is specialised for that, and is compiled again for tensors without one.
    product: Tensor = torch.ops.aten._unsafe_view.default(rows, (*x.shape[:-1], weight.shape[0]))
    return product


@torch.library.register_fake(_NAME)  # type: ignore[untyped-decorator]
def _make_fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    of_input, of_weight, of_bias = ctx.needs_input_grad
    rows = gradient.flatten(0, -2)
    return (
        onednn_linear(gradient, weight.t()) if of_input else None,
        _multiply_transposed(rows, x.flatten(0, -2)) if of_weight else None,
        rows.sum(0) if of_bias else None,
    )


def _multiply_transposed(a: Tensor, b: Tensor) -> Tensor:
    """`a.T @ b`, by whichever is faster.

    With 1568 rows and two threads of an AMD EPYC with Zen 5, oneDNN has 290 to 320 GFLOP/s if the product has at least
    as many columns as rows, else 170 to 240, and MKL has 190. With Zen 4, oneDNN has 125 to 185 and MKL 160 to 180.
    """
    if not has_wide_avx512():
        return a.t() @ b
    return onednn_linear(a.t(), b.t()) if a.shape[1] <= b.shape[1] else onednn_linear(b.t(), a.t()).t()


@register_flop_formula(torch.ops.flopping.onednn_linear)
def _count_flops(x: tuple[int, ...], weight: tuple[int, ...], *rest: object, **_: object) -> int:
    return 2 * prod(x) * weight[0]


torch.library.register_autograd(_NAME, _differentiate, setup_context=_keep_inputs)
