"""Multiply-adds and FLOPs of a network, from shapes alone: it runs on the meta device, without numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from flopping.cost.meta import ShapeCache, build_on_meta, copy_to_meta
from flopping.cost.operations import PRICES, Cost, numbers_in, operation_name, per_output, price_table
from flopping.models.backbone import whole_forward

Size = tuple[int, ...]


@dataclass(frozen=True)
class Count:
    """The work for one image, or for one sample of whatever the network takes.

    `macs` are the multiply-adds of matrix products, convolutions and attention. `flops` follow the paper: one per
    multiply-add, and the elementwise work. `layers` has the same for each submodule that did something, by its
    path and with all that is inside it.
    """

    macs: float
    flops: float
    layers: Mapping[str, Count] = field(default_factory=dict, repr=False, hash=False)


def count(
    model: nn.Module | Callable[[], nn.Module],
    input_size: Size | tuple[Size, ...] = (3, 224, 224),
    batch: int = 1,
    costs: Mapping[str, int] | None = None,
    training: bool = False,
) -> Count:
    """Count the work of a forward pass without gradients in eval mode, or of a training step, per sample of the batch.

    The model is not changed, and none of its values are copied; a function that builds it never takes memory.
    `input_size` is the shape of one sample, or one shape per part of a feature. Work on weights is done once per batch:
    the paper's is 64. An operation without a price is an error that names it and its layer; `costs` gives it one, per
    number that comes out.

    `training` counts the forward pass in train mode and the backward pass to all parameters that take gradients, not
    to the input. The work of the loss and of the optimiser isn't counted.

    >>> count(nn.Linear(384, 1536), input_size=(197, 384)).macs == 197 * 384 * 1536
    True
    >>> count(lambda: nn.Sequential(nn.Conv2d(3, 768, 16, 16), nn.GELU())).layers["1"]
    Count(macs=0.0, flops=1204224.0)

    Even and odd channels never meet in a matrix, so half of the work is left:

    >>> from flopping import Layout, flop, nn as fnn
    >>> layer = fnn.Linear(Layout.regular(flop, 384), Layout.regular(flop, 1536))
    >>> count(layer, input_size=((197, 192), (197, 192))).macs == 197 * 384 * 1536 / 2
    True
    """
    if batch < 1:
        raise ValueError(f"batch is at least 1, got {batch}")
    with torch.inference_mode(False):
        shadow = (copy_to_meta(model) if isinstance(model, nn.Module) else build_on_meta(model)).train(training)
    dtype = next((p.dtype for p in shadow.parameters() if p.is_floating_point()), torch.float32)
    counter = _Counter(shadow, costs or {})
    # In inference mode linear layers and attention arrive whole, and not as what their strides make of them.
    with torch.inference_mode(not training), ShapeCache(), counter, torch.device("meta"):  # type: ignore[no-untyped-call]
        x = _inputs(input_size, batch, dtype)
        with _Unfused() if training else nullcontext():
            out = whole_forward(shadow)(x)  # the paper counts all of the last block
        if training:
            counter.mod_tracker.backward([t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad])
    if counter.unknown:
        names = ", ".join(sorted(counter.unknown))
        raise ValueError(f"no rule for the cost of {names}: pass costs={{name: FLOPs per number that comes out}}")
    layers = {path: Count(c.macs / batch, (c.macs + c.work) / batch) for path, c in counter.totals().items()}
    total = layers.pop("", Count(0.0, 0.0))
    return Count(total.macs, total.flops, layers)


class _Counter(FlopCounterMode):
    """Torch's counter with our prices. Torch counts 0 for an operation without a price; here it is recorded."""

    def __init__(self, model: nn.Module, costs: Mapping[str, int]) -> None:
        super().__init__(display=False)
        self.flop_registry = PRICES | price_table({name: per_output(price) for name, price in costs.items()})
        self.mod_tracker: Any = _LayerTracker(model)
        self.unknown: set[str] = set()
        self.classes = {path: type(module).__name__ for path, module in model.named_modules()}

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        is_view = getattr(func_packet, func_packet.overloads()[0]).is_view
        if func_packet not in self.flop_registry and not is_view and numbers_in(args if out is None else out):
            path = self.mod_tracker.path()
            where = f"layer {path!r}" if path else "the network itself"
            self.unknown.add(f"{operation_name(func_packet)} in {where} ({self.classes[path]})")
        return super()._count_flops(func_packet, out, args, kwargs)  # type: ignore[no-untyped-call]

    def totals(self) -> dict[str, Cost]:
        """The work of every module that did something, with all that is inside it."""
        totals: dict[str, Cost] = {}
        for own, found in self.flop_counts.items():
            cost: Any = sum(found.values(), Cost(0, 0))
            for path in _upwards(own) if cost != Cost(0, 0) else ():
                totals[path] = totals.get(path, Cost(0, 0)) + cost
        return totals


class _LayerTracker:
    """Stands for torch's `ModuleTracker`, which loses layers whose input takes no gradient, and sums of gradients.

    In the backward pass the module that works is the one which made the node of autograd's graph that is running. Nodes
    are numbered as they are made, so it is enough to note the number at each change from one module to another.
    """

    def __init__(self, model: nn.Module) -> None:
        self.running: list[str] = [""]
        self.changes: list[tuple[int, str]] = [(0, "")]
        self.adding: dict[int, str] = {}
        self.done: int | None = None
        for path, module in model.named_modules():
            module.register_forward_pre_hook(lambda module, args, path=path: self.enter(path))
            module.register_forward_hook(lambda module, args, out: self.leave(), always_call=True)

    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...

    @property
    def parents(self) -> tuple[str, ...]:
        """Where torch adds the work: the module that works. `totals` adds it to those that hold it."""
        return (self.path(),)

    def enter(self, path: str) -> None:
        self.running.append(path)
        self.changes.append((_next_number(), path))

    def leave(self) -> None:
        self.running.pop()
        self.changes.append((_next_number(), self.running[-1]))

    def path(self) -> str:
        node = torch._C._current_autograd_node()
        if node is None or len(self.running) > 1:  # the forward pass, or a part of it that checkpointing repeats
            return self.running[-1]
        number = node._sequence_nr()
        return self.adding[number] if number == self.done else self.owner(number)

    def owner(self, number: int) -> str:
        """The module that made a node of autograd's graph; the gradient of a parameter belongs to no module."""
        if number > self.changes[-1][0]:
            return ""
        return self.changes[bisect_right(self.changes, number, key=lambda change: change[0]) - 1][1]

    def backward(self, outputs: Sequence[Tensor]) -> None:
        """Run the backward pass from the outputs, with the gradient of some loss.

        Where a value is used twice, two gradients are added, and not by a node: autograd does it between nodes. That
        work belongs to the module that holds all the uses.
        """
        users: defaultdict[Any, list[int]] = defaultdict(list)
        nodes = list({t.grad_fn: None for t in outputs if t.grad_fn is not None})
        seen = set(nodes)
        for node in nodes:
            for edge in node.next_functions:
                if edge[0] is not None:
                    users[edge].append(node._sequence_nr())
                    if edge[0] not in seen:
                        seen.add(edge[0])
                        nodes.append(edge[0])
        for numbers in users.values():
            if len(numbers) > 1:
                path = _common([self.owner(number) for number in numbers])
                for number in numbers:
                    self.adding[number] = _common([path, self.adding.get(number, path)])
        for node in nodes:
            number = node._sequence_nr()
            if number in self.adding:
                node.register_hook(lambda *grads, number=number: setattr(self, "done", number))
        torch.autograd.backward(outputs, [torch.empty_like(t) for t in outputs])


class _Unfused(TorchFunctionMode):
    """Writes attention out, so that the cost of its gradients doesn't depend on the kernel that torch would choose."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = _attention if func is F.scaled_dot_product_attention else func
        return written(*args, **(kwargs or {}))


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The shapes of attention, and its work: the values of mask and scale make no difference."""
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    scores = (q * 1.0) @ k.mT
    if attn_mask is not None and attn_mask.is_floating_point():
        scores = scores + attn_mask  # which may learn
    elif attn_mask is not None or is_causal:
        scores = scores + q.new_empty(q.shape[-2], k.shape[-2])
    return F.dropout(scores.softmax(-1), dropout_p) @ v


def _next_number() -> int:
    """What autograd will number its next node with."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _common(paths: Sequence[str]) -> str:
    """The module that holds all of some modules.

    >>> _common(["blocks.0.norm1", "blocks.0", "blocks.0.attn"]), _common(["stem", "head"])
    ('blocks.0', '')
    """
    return next(path for path in _upwards(paths[0]) if all(path in _upwards(other) for other in paths))


@cache
def _upwards(path: str) -> tuple[str, ...]:
    """A module's path and those of all that hold it.

    >>> _upwards("blocks.0.attn")
    ('blocks.0.attn', 'blocks.0', 'blocks', '')
    """
    return (path, *_upwards(path.rpartition(".")[0])) if path else ("",)


def _inputs(input_size: Size | tuple[Size, ...], batch: int, dtype: torch.dtype) -> Tensor | tuple[Tensor, ...]:
    sizes = input_size if input_size and all(isinstance(size, tuple) for size in input_size) else (input_size,)
    if not all(isinstance(n, int) and n >= 0 for size in sizes for n in size):  # type: ignore[union-attr]
        raise ValueError(f"input_size is the shape of one sample, or a tuple of shapes, got {input_size!r}")
    tensors = tuple(torch.empty((batch, *size), dtype=dtype, device="meta") for size in sizes)  # type: ignore[misc]
    return tensors[0] if sizes[0] is input_size else tensors
