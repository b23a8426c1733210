"""The script that a test runs on two ranks: synchronized batch norms give what one gives that has the whole batch."""

from __future__ import annotations

import torch
import torch.distributed as dist

from flopping import Layout, octic
from flopping import nn as fnn
from flopping.testing import randomize_, relative_error

LAYOUT = Layout.regular(octic, 10, extra=2)
SHARES = (slice(0, 2), slice(2, 6))
"""Two images for one rank, four for the other."""


def run(sync: bool, share: slice) -> list[tuple[torch.Tensor, ...]]:
    """Outputs, gradients of inputs and of parameters, and running statistics."""
    x = LAYOUT.random(6, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = (x[0] + 100, *x[1:])  # a large mean must cost no digits
    norm = randomize_(fnn.BatchNorm(LAYOUT, sync=sync).double()).train()
    inputs = tuple(part[share].clone().requires_grad_() for part in x)
    y = norm(inputs)
    torch.stack([(part**3).sum() for part in y]).sum().backward()
    for parameter in norm.parameters() if sync else ():
        dist.all_reduce(parameter.grad)
    statistics = tuple(buffer for name, buffer in norm.named_buffers() if "running" in name)
    return [y, tuple(p.grad for p in inputs), tuple(p.grad for p in norm.parameters()), statistics]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    share = SHARES[dist.get_rank()]
    found, whole = run(True, share), run(False, slice(None))
    expected = [*(tuple(part[share] for part in values) for values in whole[:2]), *whole[2:]]
    for got, wanted in zip(found, expected, strict=True):
        error = relative_error(got, wanted)
        assert error < 1e-9, error
    alone = run(False, share)[0]
    assert relative_error(alone, found[0]) > 1e-3  # without it each process has statistics of its own
    dist.destroy_process_group()
