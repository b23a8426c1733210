"""How pure operations run: eagerly, compiled one by one, or in training with recomputation from their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec

import torch
import torch._dynamo
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from flopping.errors import UsageError
from flopping.features import Feature, is_symbolic
from flopping.machine import find_compiler

P = ParamSpec("P")
Compiler = Callable[[Callable[..., Feature]], Callable[..., Feature]]
_compiler: Compiler | None = None


def compile_operations(enable: bool = True) -> None:
    """Run every norm, activation, residual sum and joining of heads of an uncompiled network as one compiled kernel.

    Each is compiled when it is called first. The switch is off until it is set, and holds for all networks of the
    process; a network that is compiled itself doesn't need it.
    """

    global _compiler
    if enable:
        compiler, is_there = find_compiler()
        if not is_there and not torch.cuda.is_available():
            raise UsageError(
                f"compile_operations needs a C++ compiler, and {compiler!r} (CXX) is not found: install one"
            )
        allow_graphs(64)  # layouts and shapes need graphs of their own
    _compiler = _compile if enable else None


def allow_graphs(number: int) -> None:
    """Raise torch's limit of compiled graphs per function, which is 8; beyond it, functions run uncompiled."""
    limits = torch._dynamo.config  # by their older names, which all versions know
    limits.cache_size_limit = max(limits.cache_size_limit, number)
    limits.accumulated_cache_size_limit = max(limits.accumulated_cache_size_limit, 2 * number)


@contextmanager
def operations_by(compiler: Compiler | None) -> Iterator[None]:
    """A context in which operations are transformed by a compiler, or with None run eagerly."""
    global _compiler
    before, _compiler = _compiler, compiler
    try:
        yield
    finally:
        _compiler = before


def operation(recompute: bool = False) -> Callable[[Callable[P, Feature]], Callable[P, Feature]]:
    """Mark a pure function of features as one operation, which `compile_operations` compiles.

    With `recompute`, in training it keeps its inputs alone and runs again in the backward pass.
    """

    def mark(function: Callable[P, Feature]) -> Callable[P, Feature]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> Feature:
            if torch.compiler.is_compiling() or is_symbolic(args[0]):
                return function(*args, **kwargs)
            if _compiler is not None:
                return _compiler(function)(*args, **kwargs)
            if recompute and torch.is_grad_enabled() and not is_transformed():
                return _recompute(function, *args, **kwargs)
            return function(*args, **kwargs)

        return run

    return mark


def _recompute(function: Callable[P, Feature], *args: P.args, **kwargs: P.kwargs) -> Feature:
    leaves, spec = tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[i] for i in places]
    if not any(tensor.requires_grad for tensor in tensors):
        return function(*args, **kwargs)
    settings = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]  # autograd keeps the tensors

    def call(*values: Tensor) -> Feature:
        given: list[Any] = list(settings)
        for i, value in zip(places, values, strict=True):
            given[i] = value
        positional, named = tree_unflatten(given, spec)
        return function(*positional, **named)

    out: Feature = Recomputed.apply(call, *tensors)
    return out


@cache
def _compile(function: Callable[..., Feature]) -> Callable[..., Feature]:
    return torch.compile(function)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # compiled code is made for these transforms
def is_transformed() -> bool:
    """Whether a transform of `torch.func` or forward-mode differentiation is active: these need the plain operators."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return torch.autograd.forward_ad._current_level >= 0


class Recomputed(torch.autograd.Function):
    """A function of tensors that keeps its inputs and nothing else; gradients run it again. Differentiable twice."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Feature], *inputs: Tensor) -> Feature:
        ctx.function, ctx.again = function, None
        ctx.set_materialize_grads(False)  # what nothing reads has no gradient
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def run(ctx: Any) -> tuple[list[Tensor], Feature]:
        """Run the function again, with a separate graph from inputs to outputs."""
        twice = torch.is_grad_enabled()
        if ctx.again is None or ctx.again[0] != twice:
            saved: tuple[Tensor, ...] = ctx.saved_tensors
            with torch.enable_grad():
                inputs = [t.view_as(t) if twice else t.detach().requires_grad_(t.requires_grad) for t in saved]
                ctx.again = twice, inputs, ctx.function(*inputs)
        return ctx.again[1], ctx.again[2]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, outputs = Recomputed.run(ctx)
        ctx.again = None
        pairs = [(out, g) for out, g in zip(outputs, gradients, strict=True) if g is not None and out.requires_grad]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        found = torch.autograd.grad(
            [out for out, _ in pairs],
            [inputs[i] for i in wanted],
            [g for _, g in pairs],
            allow_unused=True,
            create_graph=torch.is_grad_enabled(),
        )
        by_input = dict(zip(wanted, found, strict=True))
        return None, *[by_input.get(i) for i in range(len(inputs))]


@contextmanager
def recompute_in_backward(x: Feature) -> Iterator[None]:
    """A context in which autograd doesn't store outputs of an `operation`, but recomputes them in the backward pass.

    So a linear layer after an activation keeps nothing: its input is recomputed from what the activation keeps.
    """
    made = {part.data_ptr(): part for part in x if isinstance(part.grad_fn, Recomputed._backward_cls)}

    def pack(saved: Tensor) -> Tensor | tuple[Any, int, torch.Size]:
        part = made.get(saved.data_ptr())
        if part is None or saved.numel() != part.numel() or saved.dtype != part.dtype or not saved.is_contiguous():
            return saved
        return part.grad_fn, part.output_nr, saved.shape

    def unpack(packed: Tensor | tuple[Any, int, torch.Size]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        node, number, shape = packed
        return Recomputed.run(node)[1][number].detach().reshape(shape)

    if not made:
        yield
        return
    with saved_tensors_hooks(pack, unpack):
        yield
