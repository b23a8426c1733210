"""One process or many: ranks, collectives, and networks that are replicated (DDP) or sharded (FSDP2)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor

from flopping.errors import PeerLostError, RunStoppedError, UsageError, as_usage_error, describe
from flopping.models.blocks import compile_blocks, find_blocks, group_blocks

T = TypeVar("T")
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""State dicts of full tensors in CPU memory, on rank 0 only."""


class SharedUsageError(UsageError):
    """A refusal that all ranks raise, so that rank 0 reports it for all."""


@dataclass(frozen=True)
class World:
    """The ranks that work together, and the device of this one."""

    device: torch.device
    rank: int = 0
    size: int = 1
    launched: bool = False
    """Whether a launcher such as `torchrun` started the processes; it then decides when they are killed."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and messages."""
        return self.rank == 0

    def all_reduce(self, values: list[float]) -> list[float]:
        """Sums of numbers over all ranks."""
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)  # on the CPU: no GPU has to be waited for
        dist.all_reduce(total)
        return [float(value) for value in total.tolist()]

    def all_gather_object(self, mine: T) -> list[T]:
        """The values of all ranks, by rank."""
        if self.size == 1:
            return [mine]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, mine)
        return gathered

    def broadcast_object(self, value: T) -> T:
        """The value of rank 0."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def first_problem(self, mine: str | None) -> str | None:
        """The problem of the lowest rank that has one."""
        return next((problem for problem in self.all_gather_object(mine) if problem is not None), None)

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """Raise an error of one rank on all ranks, so that none waits for a rank that has ended.

        A `UsageError` becomes a `SharedUsageError` on every rank. Any other error is raised as it is where it occurred,
        and as a `RunStoppedError` elsewhere. The block must not contain collectives.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            if self.size == 1:
                raise
            error = caught
        found = [
            (rank, *problem)
            for rank, problem in enumerate(
                self.all_gather_object(error and (isinstance(error, UsageError), describe(error)))
            )
            if problem
        ]
        if not found:
            return
        rank, refused, message = found[0]
        if error is not None and not isinstance(error, UsageError):
            raise error
        text = message if len(found) == self.size else f"rank {rank} of {self.size}: {message}"
        raise (SharedUsageError if refused else RunStoppedError)(text) from error

    @contextmanager
    def detect_lost_peers(self, hint: Callable[[], str] = str) -> Iterator[None]:
        """Raise `PeerLostError` for an error of a collective whose cause is a rank that is gone."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not (isinstance(error, dist.DistError) or self._lost_peer()):
                raise
            reason = str(error).strip().splitlines()[0]
            raise PeerLostError(
                f"rank {self.rank} lost the connection to another rank ({reason}). If that rank ended by itself, it has"
                f" reported why. {hint()}"
            ) from error

    def _lost_peer(self) -> bool:
        """Whether a connection to another rank is closed: gloo has no error type for it, but refuses to use it."""
        try:
            for rank in range(self.size):
                if rank != self.rank:
                    dist.irecv(torch.empty(1), src=rank)
        except RuntimeError:
            return True
        return False


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """A device by its name; "auto" is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"no device is called {name!r}: cpu, cuda or cuda:NUMBER") from error
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise UsageError(f"networks run on cpu, cuda or cuda:NUMBER, got {name!r}")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"no CUDA device was found for {name!r}; --device cpu works everywhere")
        device = torch.device("cuda", local_rank) if device.index is None else device
        if device.index >= (found := torch.cuda.device_count()):
            raise UsageError(f"there are {found} CUDA devices, counted from 0, got {name!r} as cuda:{device.index}")
    return device


def _read_local_rank() -> int:
    """The rank on this machine. Impossible ranks and sizes are refused: torch would wait for absent processes."""
    texts = {
        name: os.environ.get(name, usual) for name, usual in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    }
    given = ", ".join(f"{name}={text}" for name, text in texts.items() if name in os.environ)
    if not all(text.isdecimal() for text in texts.values()) or int(texts["RANK"]) >= int(texts["WORLD_SIZE"]):
        raise UsageError(
            f"torchrun numbers its processes from RANK=0 to WORLD_SIZE - 1, got {given}: unset these variables"
        )
    return int(texts["LOCAL_RANK"])


@contextmanager
def init_world(device_name: str) -> Iterator[World]:
    """The processes that `torchrun` started, or this one alone."""
    local_rank = _read_local_rank()
    if "WORLD_SIZE" not in os.environ:
        yield World(resolve_device(device_name))
        return
    device = resolve_device(device_name, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with as_usage_error(ValueError, context="processes find each other by MASTER_ADDR and MASTER_PORT"):
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(device, dist.get_rank(), dist.get_world_size(), launched=True)
    finally:
        dist.destroy_process_group()


def compile_network(network: nn.Module, shard: bool) -> None:
    """Compile the blocks of a network, since one graph serves all that are alike, or the network as a whole.

    It is compiled as a whole where most blocks differ, as with stochastic depth that rises. A sharded network is always
    compiled block by block; one without blocks is not compiled.
    """
    blocks = find_blocks(network)
    if blocks and (shard or 2 * len(group_blocks(blocks)) <= len(blocks)):
        compile_blocks(network, dynamic=False)  # the same code whichever size of batches comes first
    elif not shard:
        network.compile(dynamic=False)


def shard_network(network: nn.Module, world: World, precision: torch.dtype | None = None) -> None:
    """Shard a network on the meta device over the ranks; then give each rank memory, not yet filled, for its shards.

    With a precision, weights are gathered and used in it; shards and sums of gradients stay in full precision.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if world.size == 1:
        raise UsageError("--shard spreads a network over processes: start them with torchrun")
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=precision and torch.float32)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for part in (*find_blocks(network), network):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    network.to_empty(device=world.device)


def load_full_state(network: nn.Module, state: Mapping[str, Tensor], world: World) -> None:
    """Fill a network, sharded or not, with the full tensors of rank 0; other ranks may pass none."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=world.size > 1)
    set_model_state_dict(network, dict(state), options=options)


def broadcast_network(network: nn.Module, source: nn.Module | None, world: World) -> None:
    """Fill a sharded network with the parameters and buffers of a full one, which only rank 0 has."""
    load_full_state(network, {} if source is None else source.state_dict(), world)
    for name, buffer in network.named_buffers():  # also those that a state dict leaves out
        if source is not None:
            buffer.copy_(source.get_buffer(name))
        dist.broadcast(buffer, src=0)


class ParallelModel:
    """A network for training on all ranks: alone, replicated (DDP), or sharded by `shard_network` (FSDP2).

    `network` holds the parameters, under their own names in all three cases.
    """

    def __init__(self, network: nn.Module, world: World, *, sharded: bool) -> None:
        self.network, self.sharded = network, sharded
        self.wrapped = network
        if world.size > 1 and not sharded:
            ids = [world.device.index] if world.device.type == "cuda" else None
            self.wrapped = nn.parallel.DistributedDataParallel(network, device_ids=ids)

    def __call__(self, images: Tensor) -> Tensor:
        logits: Tensor = self.wrapped(images)
        return logits

    def reshard(self) -> None:
        """Free the gathered weights that a forward pass without a backward pass leaves: the next one gathers anew."""
        if self.sharded:
            for part in (*find_blocks(self.network), self.network):
                part.reshard()  # type: ignore[operator]

    @contextmanager
    def accumulate_gradients(self, sync: bool) -> Iterator[None]:
        """Within it, backward passes add up gradients on this rank; only with `sync` are they averaged over ranks."""
        if self.sharded:
            self.network.set_requires_gradient_sync(sync)  # type: ignore[operator]
        if isinstance(self.wrapped, nn.parallel.DistributedDataParallel) and not sync:
            with self.wrapped.no_sync():
                yield
        else:
            yield


def find_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or an infinity, in the shard of this rank.

    >>> find_non_finite({"a": torch.ones(2), "b": torch.tensor([1.0, float("inf")])})
    'b'
    """
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors.values()]
    finite = [part.isfinite().all() for part in local]  # all are started before a GPU is waited for
    return next((name for name, is_finite in zip(tensors, finite, strict=True) if not is_finite), None)
