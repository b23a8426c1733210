"""What a forward pass asks of a device: launches of kernels and bytes moved, counted operation by operation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from flopping.cost.operations import PRICES, operation_name
from flopping.features import Feature
from flopping.functional.operation import operations_by
from flopping.models.backbone import whole_forward
from flopping.models.blocks import find_blocks, group_blocks, layers_to_compile

MATRIX = (
    *("linear", "addmm", "mm", "bmm", "baddbmm", "matmul", "convolution", "conv2d", "flopping::onednn_linear"),
    *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"),
)
"""Operations that a compiler leaves to a library: matrix products, convolutions and attention."""


@dataclass(frozen=True)
class Kernel:
    """One launch: its multiply-adds, and the bytes that it reads and writes."""

    name: str
    macs: int
    bytes: int
    block: int | None
    """The block of the network that it belongs to; the first one, where a kernel works for several."""


@dataclass
class _Step:
    """An operation as it was called: what it reads and writes, by storage, with the bytes of each."""

    name: str
    macs: int
    reads: dict[int, tuple[int, int]]
    """Bytes that are read of a storage, and all that it has."""
    writes: dict[int, int]
    sources: dict[int, int]
    """For each storage that it reads, the step that wrote it; -1 for weights and inputs."""
    block: int | None
    region: int | None
    """Steps of one region run as one kernel, whatever they do."""

    @property
    def is_matrix(self) -> bool:
        return self.name in MATRIX


class Trace(TorchDispatchMode):
    """Records the operations of a forward pass that do work; views are free.

    >>> model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Tanh()), torch.randn(2, 4)
    >>> with torch.inference_mode(), Trace() as trace:
    ...     _ = model(x)
    >>> [kernel.name for kernel in trace.kernels()], [kernel.name for kernel in trace.kernels(fused=True)]
    (['linear', 'gelu', 'tanh'], ['linear', 'gelu+tanh'])
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self.block: int | None = None
        self.region: int | None = None
        self._last: dict[int, int] = {}  # the step that wrote a storage last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, price = operation_name(func.overloadpacket), PRICES.get(func.overloadpacket)
        reads = _sizes((args, kwargs))
        out = func(*args, **kwargs)
        views = () if func._schema.is_mutable else reads
        writes = {storage: size for storage, (size, _) in _sizes(out).items() if size and storage not in views}
        if not writes or name.startswith(("empty", "new_empty")):
            return out
        macs = 0 if price is None else price(*args, **kwargs, out_val=out).macs
        sources = {storage: self._last.get(storage, -1) for storage in reads}
        self._last.update(dict.fromkeys(writes, len(self.steps)))
        self.steps.append(_Step(name, macs, reads, writes, sources, self.block, self.region))
        return out

    def compile(self, function: Callable[..., Feature]) -> Callable[..., Feature]:
        """The function as one kernel."""

        def run(*args: Any, **kwargs: Any) -> Feature:
            self.region = len(self.steps)
            try:
                return function(*args, **kwargs)
            finally:
                self.region = None

        return run

    def kernels(self, fused: bool = False) -> list[Kernel]:
        """What is launched: each operation by itself, or fused as a compiler can at best.

        Fused, operations between matrix products that depend on one another are one kernel, which reads its inputs once
        and writes what others read.
        """
        members: dict[int, list[int]] = {}
        for number, root in enumerate(self._regions(fused)):
            members.setdefault(root, []).append(number)
        readers: dict[tuple[int, int], set[int]] = {}  # who reads what a step wrote
        for number, step in enumerate(self.steps):
            for storage, source in step.sources.items():
                readers.setdefault((source, storage), set()).add(number)
        found = []
        for numbers in members.values():
            inside, steps = set(numbers), [self.steps[n] for n in numbers]
            reads: dict[tuple[int, int], int] = {}
            writes: dict[int, int] = {}
            for number, step in zip(numbers, steps, strict=True):
                for storage, source in step.sources.items():
                    if source not in inside:
                        size, whole = step.reads[storage]
                        reads[source, storage] = min(reads.get((source, storage), 0) + size, whole)
                for storage, size in step.writes.items():
                    users = readers.get((number, storage), set())
                    if not users or users - inside:  # the result of the network, or read elsewhere
                        writes[storage] = size
            name = "+".join(dict.fromkeys(step.name for step in steps))
            total = sum(reads.values()) + sum(writes.values())
            found.append(Kernel(name, sum(step.macs for step in steps), total, steps[0].block))
        return found

    def _regions(self, fused: bool) -> list[int]:
        """The kernel of each step, by its first step."""
        roots = list(range(len(self.steps)))
        stages: list[int] = []  # how many matrix products lie in front of a step, on the longest way to it

        def root(number: int) -> int:
            while roots[number] != number:
                number = roots[number]
            return number

        for number, step in enumerate(self.steps):
            before = [source for source in step.sources.values() if source >= 0]
            stage = max((stages[source] + self.steps[source].is_matrix for source in before), default=0)
            stages.append(stage)
            if step.region is not None and step.region != number:
                roots[number] = root(step.region)
            elif fused and not step.is_matrix:
                for source in before:
                    if stages[source] == stage and not self.steps[source].is_matrix:
                        first, second = sorted((root(source), root(number)))
                        roots[second] = first
        return [root(number) for number in range(len(self.steps))]


def trace_forward(model: nn.Module, x: Tensor, operations: bool = False, everything: bool = False) -> Trace:
    """The operations of one forward pass without gradients.

    With `operations`, each operation that `flopping.compile_operations` compiles counts as one kernel. With
    `everything`, our networks compute all of their last block.
    """
    forward = whole_forward(model) if everything else model
    trace = Trace()
    with ExitStack() as hooks:
        for number, block in enumerate(find_blocks(model)):
            hooks.enter_context(block.register_forward_pre_hook(lambda *_, n=number: setattr(trace, "block", n)))
            hooks.enter_context(block.register_forward_hook(lambda *_: setattr(trace, "block", None)))
        with torch.inference_mode(), operations_by(trace.compile if operations else None), trace:
            forward(x)
    return trace


def _sizes(value: Any) -> dict[int, tuple[int, int]]:
    """Bytes of the tensors in a value, by storage, each number once; and the bytes of the whole storage."""
    sizes: dict[int, tuple[int, int]] = {}
    for tensor in tree_leaves(value):
        if isinstance(tensor, Tensor):
            storage = tensor.untyped_storage()
            key, whole = int(storage._cdata), storage.nbytes()
            sizes[key] = min(sizes.get(key, (0, 0))[0] + tensor.nbytes, whole), whole
    return sizes


def compiled_kernels(model: nn.Module, x: Tensor) -> list[Kernel]:
    """The kernels that torch's compiler makes of the blocks that `compile_blocks` compiles, each kind once."""
    from torch._functorch import config as autograd_config
    from torch._inductor import config, metrics
    from torch._inductor.compile_fx import inductor_metrics_log

    every = find_blocks(model)
    blocks = [block for block in layers_to_compile(model) if block in every]
    inputs: list[tuple[Any, ...]] = []
    with torch.no_grad(), ExitStack() as hooks:
        for block in blocks:
            hooks.enter_context(block.register_forward_pre_hook(lambda _, args: inputs.append(args)))
        model(x)
    found = []
    *others, last = blocks
    kinds = group_blocks(blocks) if len(inputs[-1]) == 1 else [*group_blocks(others), [last]]  # it is told what is read
    level = inductor_metrics_log.level
    inductor_metrics_log.setLevel("INFO")  # else the compiler doesn't count
    try:
        for kind in kinds:
            metrics.reset()
            with (
                torch.no_grad(),
                config.patch(fx_graph_cache=False),  # a graph from the cache is not counted
                autograd_config.patch(enable_autograd_cache=False),
            ):
                torch.compile(kind[0], dynamic=False)(*inputs[blocks.index(kind[0])])
            sizes = [4 * numbers for _, numbers in metrics.nodes_num_elem if numbers]
            for block in kind:
                found += [Kernel("compiled", 0, size, every.index(block)) for size in sizes]
    finally:
        inductor_metrics_log.setLevel(level)
    return found
