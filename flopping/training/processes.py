"""One process or many: who is who, sums over all, and networks that are copied to or sharded over processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from flopping.training.stops import AloneError

T = TypeVar("T")
_GLOO = "/gloo/"
"""In what torch's processes on CPUs say when they fail: the file of its code that noticed."""


class AgreedError(ValueError):
    """A refusal that all processes have heard of, so that one can speak for all."""


@dataclass(frozen=True)
class World:
    """The processes that train together, and the device of this one."""

    device: torch.device
    rank: int = 0
    size: int = 1
    launched: bool = False
    """Whether something like `torchrun` started the processes; it then decides when they are killed."""

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Sums of numbers over all processes."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def every(self, mine: T) -> list[T]:
        """The values of all processes, by their rank."""
        if self.size == 1:
            return [mine]
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, mine)
        return every

    def lists(self, mine: list[int]) -> list[int]:
        """The numbers of all processes."""
        return [value for part in self.every(mine) for value in part]

    def agree(self, problem: str | None) -> str | None:
        """A problem that any process has, for all of them; so none waits for one that has stopped."""
        return next((found for found in self.every(problem) if found is not None), None)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What one process refuses within it, all refuse at its end. Within it no process waits for another."""
        if self.size == 1:
            yield
            return
        mine = None
        try:
            yield
        except (ValueError, TypeError, OSError) as error:
            mine = str(error)
        every = self.every(mine)
        found = next((rank for rank, problem in enumerate(every) if problem is not None), None)
        if found is not None:
            alone = f"process {found} of {self.size}: " if None in every else ""
            raise AgreedError(f"{alone}{every[found]}")

    @contextmanager
    def in_touch(self, meanwhile: Callable[[], str] = str) -> Iterator[None]:
        """Within it, a process that can't reach the others stops, and says so itself: they may be gone."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not (isinstance(error, dist.DistError) or _GLOO in str(error)):
                raise
            reason = str(error).strip().splitlines()[0]
            raise AloneError(
                f"process {self.rank} can't work with the others ({reason}). If one of them has ended before, it has"
                f" said why. {meanwhile()}Go on with --resume"
            ) from error


def chosen_device(name: str, local_rank: int = 0) -> torch.device:
    """A device by its name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"no device is called {name!r}: cpu, cuda or cuda:NUMBER") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"networks are trained on cpu or cuda, got {name!r}")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"no CUDA device was found for {name!r}; --device cpu works everywhere")
        device = torch.device("cuda", local_rank) if device.index is None else device
    return device


@contextmanager
def world(device_name: str) -> Iterator[World]:
    """The processes that `torchrun` started, or this one alone."""
    if "WORLD_SIZE" not in os.environ:
        yield World(chosen_device(device_name))
        return
    device = chosen_device(device_name, int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(device, dist.get_rank(), dist.get_world_size(), launched=True)
    finally:
        dist.destroy_process_group()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that a network repeats: what lies in a list called `blocks`."""
    lists = [layer for name, layer in model.named_modules() if name.rpartition(".")[2] == "blocks"]
    return [block for found in lists for block in found.children()]


def parts_to_compile(network: nn.Module, shard: bool) -> list[nn.Module]:
    """What is compiled on its own: the blocks of a network that are alike, since one graph then serves all of them.

    A network of 12 such blocks compiles in a quarter of the time. Where most blocks differ, as with stochastic depth
    that rises, it is the whole network; blocks that are gathered and freed one by one are always compiled one by one.
    """
    blocks = blocks_of(network)
    kinds = len({repr(block) for block in blocks})
    return blocks if shard or 0 < 2 * kinds <= len(blocks) else [network]


def compile_(network: nn.Module, shard: bool) -> None:
    """Compile a network, as a whole or in parts."""
    import torch._dynamo

    parts = parts_to_compile(network, shard)
    # Parts share their code, and may each need graphs of their own, for training and for tests. Beyond a limit of 8
    # torch would leave the others uncompiled. (These are its older names of the limits; all versions know them.)
    limits = torch._dynamo.config
    limits.cache_size_limit = max(limits.cache_size_limit, 4 * len(parts))
    limits.accumulated_cache_size_limit = max(limits.accumulated_cache_size_limit, 8 * len(parts))
    for part in parts:
        part.compile(dynamic=False)  # the same code whichever size of batches comes first


class Replica:
    """A network on all processes: alone, copied (DDP), or sharded (FSDP2), and compiled where that is asked for.

    `network` holds the parameters, under their own names in all three cases; `self(images)` runs it for training.
    """

    def __init__(self, network: nn.Module, world: World, *, shard: bool, compiled: bool) -> None:
        self.network = network
        self.sharded = shard
        self.wrapped: nn.Module = network
        if compiled:
            compile_(network, shard)
        if shard:
            self._shard(world)
        elif world.size > 1:
            ids = [world.device.index] if world.device.type == "cuda" else None
            self.wrapped = nn.parallel.DistributedDataParallel(network, device_ids=ids)

    def _shard(self, world: World) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        if world.size == 1:
            raise ValueError("--shard spreads a network over processes: start them with torchrun")
        mesh = init_device_mesh(world.device.type, (world.size,))
        for block in blocks_of(self.network):
            fully_shard(block, mesh=mesh)
        fully_shard(self.network, mesh=mesh)

    def __call__(self, images: Tensor) -> Tensor:
        logits: Tensor = self.wrapped(images)
        return logits

    def settle(self) -> None:
        """Drop the copies of weights that a forward pass without a backward pass leaves: the next one asks anew."""
        if self.sharded:
            for part in (*blocks_of(self.network), self.network):
                part.reshard()  # type: ignore[operator]

    @contextmanager
    def gradients(self, exchanged: bool) -> Iterator[None]:
        """Within it, gradients are summed up here, and exchanged with other processes only if it is said."""
        if self.sharded:
            self.network.set_requires_gradient_sync(exchanged)  # type: ignore[operator]
        if isinstance(self.wrapped, nn.parallel.DistributedDataParallel) and not exchanged:
            with self.wrapped.no_sync():
                yield
        else:
            yield


def whole_tensor(tensor: Tensor) -> Tensor:
    """A tensor with all its values, of which each process may hold a part. All processes call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill_(target: Tensor, value: Tensor) -> None:
    """Copy all values into a tensor of which each process may hold a part."""
    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    with torch.no_grad():
        target.copy_(value)


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity, in the part of it that this process has.

    >>> not_finite({"a": torch.ones(2), "b": torch.tensor([1.0, float("inf")])})
    'b'
    """
    parts = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors.values()]
    found = [part.isfinite().all() for part in parts]  # all are asked before a GPU is waited for
    return next((name for name, finite in zip(tensors, found, strict=True) if not finite), None)


def whole_state(state: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Copies of whole tensors in the CPU's memory; processes that don't keep them take part and get none."""
    found = {}
    for name, tensor in state.items():
        value = whole_tensor(tensor.detach())
        if keep:
            found[name] = value.to("cpu", copy=True)
    return found
