"""Networks on the meta device, where tensors have shapes and no values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

M = TypeVar("M", bound=nn.Module)


def build_on_meta(make: Callable[[], M]) -> M:
    """Call a function that makes a network, without memory for its weights.

    >>> build_on_meta(lambda: nn.Linear(1 << 20, 1 << 20)).weight.device.type
    'meta'
    """
    with torch.device("meta"):
        return make()


def copy_to_meta(model: nn.Module) -> nn.Module:
    """A copy without values; `deepcopy` takes the parameters and buffers that it finds in its memo."""
    memo: dict[int, Any] = {id(b): b.to("meta") for b in model.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo)


class ShapeCache(TorchDispatchMode):
    """Runs operations on the meta device, once for the same shapes.

    Torch computes shapes in Python, at 0.1 to 0.5 ms for an operation, and networks repeat few operations often:
    counting would take three times as long.
    """

    results: ClassVar[dict[Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _makes_new(func):
            return func(*args, **kwargs)
        try:
            key = func, _key(args), _key(tuple(kwargs.items()))
        except _NotMetaError:
            return func(*args, **kwargs)
        if key in self.results:
            return _like(self.results[key])
        out = func(*args, **kwargs)
        if all(value is None or _is_plain(value) for value in (out if isinstance(out, tuple) else (out,))):
            self.results[key] = _like(out)
        return out


@cache
def _makes_new(func: torch._ops.OpOverload) -> bool:
    """Every result is a new tensor, and no argument is written to."""
    values = (*func._schema.arguments, *func._schema.returns)
    return bool(func._schema.returns) and all(value.alias_info is None for value in values)


class _NotMetaError(Exception):
    """A tensor whose result depends on more than its shape and type."""


def _key(value: Any) -> Any:
    """What the result's shape depends on. Types are part of it: 1, 1.0 and True are equal but promote differently."""
    if isinstance(value, Tensor):
        if not _is_plain(value):
            raise _NotMetaError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(_key(item) for item in value)
    return type(value), value


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_meta and not value.is_complex() and value.layout == torch.strided


def _like(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_like, value))
    return value if value is None else value.new_empty_strided(value.shape, value.stride())
