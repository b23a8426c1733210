"""What autograd keeps in memory, for tests of training."""

from __future__ import annotations

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def kept_bytes(run: object) -> int:
    """The memory of all tensors that autograd keeps for the backward pass of a function, parameters aside."""
    storages: dict[int, int] = {}
    handles = []

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        handles.append(tensor)  # so that no memory is used twice
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storages.values())
