"""Networks without numbers: on the meta device tensors have shapes only, and each operation is worked out once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)
META = torch.device("meta")


@dataclass(frozen=True)
class Operation:
    """What the schema of an operation says, read once."""

    name: str
    """Without overload and without the mark of in-place operations; with a namespace unless it is torch's own."""
    arguments: tuple[str, ...]
    is_view: bool
    makes_new: bool
    """Every result is a new tensor, and no argument is written to."""
    in_place: bool
    """The result is the first argument, and no other is written to."""


@cache
def operation(func: torch._ops.OpOverload) -> Operation:
    """The facts of an operation.

    >>> add = operation(torch.ops.aten.add_.Tensor)
    >>> add.name, add.arguments, add.in_place
    ('add', ('self', 'other', 'alpha'), True)
    """
    schema = func._schema
    namespace, _, name = schema.name.partition("::")
    name = name if name.startswith("__") else name.removesuffix("_")
    written = [index for index, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    aliased = any(a.alias_info is not None for a in (*schema.arguments, *schema.returns))
    return Operation(
        name if namespace == "aten" else f"{namespace}::{name}",
        tuple(argument.name for argument in schema.arguments),
        func.is_view,
        not aliased and len(schema.returns) > 0,
        written == [0] and len(schema.returns) == 1 and schema.returns[0].alias_info is not None,
    )


class Kernels(Generic[T]):
    """Runs operations on tensors without numbers; the same operation on the same shapes is remembered.

    torch works out shapes in Python, at 0.1 to 0.5 ms for an operation; a network repeats few operations often.
    `note` is asked for something about each operation, once too.
    """

    def __init__(self, note: Callable[[Operation, Mapping[str, Any], Any], T]) -> None:
        self.note = note
        self.seen: dict[Any, tuple[Any, T]] = {}

    def __call__(self, func: torch._ops.OpOverload, args: Any, kwargs: Any) -> tuple[Any, T]:
        op = operation(func)
        key = None
        if op.makes_new or op.in_place:
            try:
                key = func, _key(args), _key(tuple(kwargs.items()))
                shape, noted = self.seen[key]
            except _NotMetaError:
                key = None
            except KeyError:
                pass
            else:
                return (args[0] if op.in_place else _make(shape)), noted
        before = _shape(args[0]) if op.in_place else None
        out = func(*args, **kwargs)
        noted = self.note(op, dict(zip(op.arguments, args, strict=False)) | kwargs, out)
        if key is not None:
            after = _shape(out)
            if after is not None and (not op.in_place or after == before):
                self.seen[key] = after, noted
        return out, noted


class _NotMetaError(Exception):
    """A tensor whose shape and type aren't all that matters."""


def _key(value: Any) -> Any:
    """What the result's shape depends on. Types are part of it: 1, 1.0 and True are equal but promote differently."""
    if isinstance(value, Tensor):
        if value.device != META or value.is_complex() or value.layout != torch.strided:
            raise _NotMetaError
        return value.shape, value.stride(), value.dtype
    if isinstance(value, tuple | list):
        return tuple(_key(item) for item in value)
    return type(value), value


def _shape(out: Any) -> Any:
    """How to make an equal result, or None if that isn't known."""
    if isinstance(out, Tensor):
        plain = out.device == META and not out.is_complex() and out.layout == torch.strided
        return (out.shape, out.stride(), out.dtype) if plain else None
    if isinstance(out, tuple | list):
        shapes = [item if item is None else _shape(item) for item in out]
        known = all(shape is not None or item is None for item, shape in zip(out, shapes, strict=True))
        return shapes if known else None
    return None


def _make(shape: Any) -> Any:
    if shape is None:
        return None
    if isinstance(shape, list):
        return tuple(_make(item) for item in shape)
    size, stride, dtype = shape
    return torch.empty_strided(size, stride, dtype=dtype, device=META)


# How weights start: in place, one number at a time.
FILLS = frozenset(("uniform", "normal", "fill", "zero", "copy", "erfinv", "mul", "div", "add", "sub", "clamp"))


class _Building(TorchDispatchMode):
    """Weights that hold no numbers need no start."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        op = operation(func)
        if op.in_place and op.name in FILLS and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def build(make: Callable[[], M]) -> M:
    """Call a function that makes a network, without memory for its weights and without work to start them.

    >>> build(lambda: nn.Linear(1 << 20, 1 << 20)).weight.device.type
    'meta'
    """
    with torch.device(META), _Building():  # type: ignore[no-untyped-call]
        return make()


def on_meta(model: nn.Module) -> nn.Module:
    """A copy without numbers; `deepcopy` takes the parameters and buffers that it finds in its memo."""
    memo: dict[int, Any] = {id(b): b.to(META) for b in model.buffers()}
    memo |= {id(p): nn.Parameter(p.detach().to(META), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo)
