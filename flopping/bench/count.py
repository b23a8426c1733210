"""Multiply-adds and FLOPs of a network, from shapes alone: it runs on the meta device, without numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flopping.bench.costs import KNOWN, Cost, cost, numbers_in
from flopping.bench.meta import Kernels, Operation, build, on_meta, operation

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

    The model stays as it is, and none of its numbers are copied. A function that builds it may stand for it, and
    then it never takes memory. `input_size` is the shape of one sample, or one shape per part of a feature. The
    batch matters to work on weights, which is done once per batch: the paper's is 64. An operation that may do
    arithmetic and has no rule is an error that names it and its layer; `costs` gives it one, per number that comes out.

    `training` counts the forward pass in train mode and the backward pass to all parameters that take gradients, not
    to the input. The loss is any scalar of what the network returns; its own work isn't counted, nor the optimiser's.

    >>> count(nn.Linear(384, 1536), input_size=(197, 384)).macs == 197 * 384 * 1536
    True
    >>> count(lambda: nn.Sequential(nn.Conv2d(3, 768, 16, 16), nn.GELU())).layers["1"]
    Count(macs=0.0, flops=1204224.0)

    The first layer of two takes its product twice in a training step, forward and for its weight. The second takes
    it three times, as the gradient goes on to the first:

    >>> step = count(nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 5, bias=False)), (6,), training=True)
    >>> step.layers["0"].macs == 2 * 6 * 8, step.layers["1"].macs == 3 * 8 * 5
    (True, True)

    Even and odd channels never meet in a matrix, so half of the work is left:

    >>> from flopping import Layout, flop, nn as fnn
    >>> layer = fnn.Linear(Layout.regular(flop, 384), Layout.regular(flop, 1536))
    >>> count(layer, input_size=((197, 192), (197, 192))).macs == 197 * 384 * 1536 / 2
    True
    """
    if batch < 1:
        raise ValueError(f"batch is at least 1, got {batch}")
    with torch.inference_mode(False):
        shadow = (on_meta(model) if isinstance(model, nn.Module) else build(model)).train(training)
    dtype = next((p.dtype for p in shadow.parameters() if p.is_floating_point()), torch.float32)
    mode = _CountMode(shadow, costs or {})
    # Without autograd's keys linear layers and attention arrive whole, and not as what their strides make of them.
    with torch.inference_mode(not training):  # which also says whether gradients are asked for
        x = _inputs(input_size, batch, dtype)
        with mode, torch.device("meta"):
            if training:
                with _Unfused():
                    out = shadow(x)
                mode.backward([t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad])
            else:
                shadow(x)
    if mode.unknown:
        names = ", ".join(sorted(mode.unknown))
        raise ValueError(f"no rule for the cost of {names}: pass costs={{name: FLOPs per number that comes out}}")
    layers = {path: Count(macs / batch, flops / batch) for path, (macs, flops) in mode.totals().items()}
    total = layers.pop("", Count(0.0, 0.0))
    return Count(total.macs, total.flops, layers)


class _CountMode(TorchDispatchMode):
    """Adds up the work of all operations inside it, by the path of the module that is running.

    In the backward pass that is the module which made the node of autograd's graph that is running. Nodes are
    numbered as they are made, so it is enough to note the number at each change from one module to another.
    """

    def __init__(self, model: nn.Module, costs: Mapping[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.costs = costs
        self.kernels = Kernels(self.cost)
        self.macs: Counter[str] = Counter()
        self.work: Counter[str] = Counter()
        self.unknown: set[str] = set()
        self.running: list[str] = [""]
        self.changes: list[tuple[int, str]] = [(0, "")]
        self.adding: dict[int, str] = {}
        self.done: int | None = None
        self.classes = {path: type(module).__name__ for path, module in model.named_modules()}
        for path, module in model.named_modules():
            module.register_forward_pre_hook(lambda module, args, path=path: self.enter(path))
            module.register_forward_hook(lambda module, args, out: self.leave(), always_call=True)

    def enter(self, path: str) -> None:
        self.running.append(path)
        self.changes.append((_next_number(), path))

    def leave(self) -> None:
        self.running.pop()
        self.changes.append((_next_number(), self.running[-1]))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            op = operation(func)
            if op.name not in KNOWN and op.name not in self.costs and not op.is_view:
                with self:  # an operation that torch writes as others is the sum of these
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            out, found = self.kernels(func, args, kwargs)
            if found is None:
                path = self.path()
                where = f"layer {path!r}" if path else "the network itself"
                self.unknown.add(f"{op.name} in {where} ({self.classes[path]})")
            elif found != (0, 0):
                path = self.path()
                self.macs[path] += found[0]
                self.work[path] += found[1]
        return out

    def cost(self, op: Operation, arguments: Mapping[str, Any], out: Any) -> Cost | None:
        """What an operation costs, or None if nobody knows."""
        numbers = numbers_in(list(arguments.values()) if out is None else out)
        if op.name in self.costs:
            return 0, self.costs[op.name] * numbers
        if op.name in KNOWN:
            return cost(op.name, arguments, out)
        return (0, 0) if op.is_view or not numbers else None

    def path(self) -> str:
        """The module whose work is being done."""
        node = torch._C._current_autograd_node()
        if node is None or len(self.running) > 1:  # the forward pass, or a part of it that checkpointing repeats
            return self.running[-1]
        number = node._sequence_nr()
        return self.adding[number] if number == self.done else self.owner(number)

    def owner(self, number: int) -> str:
        """The module that made a node of autograd's graph; gradients of parameters are kept by nobody."""
        if number > self.changes[-1][0]:
            return ""
        return self.changes[bisect_right(self.changes, number, key=lambda change: change[0]) - 1][1]

    def backward(self, outputs: Sequence[Tensor]) -> None:
        """Go back from the outputs, with the gradient of some loss.

        Where a value is used twice, two gradients are added, and not by a node: autograd does it between nodes. That
        work belongs to the module that holds all the uses.
        """
        users: defaultdict[Any, list[Any]] = defaultdict(list)
        nodes = {t.grad_fn: None for t in outputs if t.grad_fn is not None}
        todo = list(nodes)
        while todo:
            node = todo.pop()
            for place in node.next_functions:
                if place[0] is None:
                    continue
                users[place].append(node)
                if place[0] not in nodes:
                    nodes[place[0]] = None
                    todo.append(place[0])
        for found in users.values():
            if len(found) > 1:
                path = _common([self.owner(node._sequence_nr()) for node in found])
                for node in found:
                    number = node._sequence_nr()
                    self.adding[number] = _common([path, self.adding.get(number, path)])
        for node in nodes:
            number = node._sequence_nr()
            if number in self.adding:
                node.register_hook(lambda *grads, number=number: self.finish(number))
        torch.autograd.backward(outputs, [torch.empty_like(t) for t in outputs])

    def finish(self, number: int) -> None:
        self.done = number

    def totals(self) -> dict[str, tuple[int, int]]:
        """Multiply-adds and FLOPs of every module that did something, with all that is inside it."""
        macs: Counter[str] = Counter()
        flops: Counter[str] = Counter()
        for own in self.macs:
            for path in _upwards(own):
                macs[path] += self.macs[own]
                flops[path] += self.macs[own] + self.work[own]
        return {path: (macs[path], flops[path]) for path in macs}


class _Unfused(TorchFunctionMode):
    """Writes attention out, so that its cost doesn't depend on the kernel that torch would choose."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = _attention if func is F.scaled_dot_product_attention else func
        return written(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The shapes of attention, and its work: what the mask or the scale is makes no difference."""
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = (query * 1.0) @ key.mT
    if is_causal:
        attn_mask = query.new_empty(query.shape[-2], key.shape[-2])
    if attn_mask is not None:
        scores = scores + (
            attn_mask if attn_mask.is_floating_point() else torch.empty_like(attn_mask, dtype=query.dtype)
        )
    return F.dropout(scores.softmax(-1), dropout_p) @ value


def _next_number() -> int:
    """What autograd will number its next node with."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _common(paths: Sequence[str]) -> str:
    """The module that holds all of some modules.

    >>> _common(["blocks.0.norm1", "blocks.0", "blocks.0.attn"]), _common(["stem", "head"])
    ('blocks.0', '')
    """
    return next(path for path in _upwards(paths[0]) if all(path in _upwards(other) for other in paths))


def _upwards(path: str) -> Iterator[str]:
    """A module's path and those of all that hold it.

    >>> list(_upwards("blocks.0.attn"))
    ['blocks.0.attn', 'blocks.0', 'blocks', '']
    """
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _inputs(input_size: Size | tuple[Size, ...], batch: int, dtype: torch.dtype) -> Tensor | tuple[Tensor, ...]:
    sizes = input_size if input_size and all(isinstance(size, tuple) for size in input_size) else (input_size,)
    if not all(isinstance(n, int) and n >= 0 for size in sizes for n in size):  # type: ignore[union-attr]
        raise ValueError(f"input_size is the shape of one sample, or a tuple of shapes, got {input_size!r}")
    tensors = tuple(torch.empty((batch, *size), dtype=dtype, device="meta") for size in sizes)  # type: ignore[misc]
    return tensors[0] if sizes[0] is input_size else tensors
