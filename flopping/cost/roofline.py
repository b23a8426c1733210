"""How long a forward pass takes on a GPU: a roofline, calibrated on measurements of ordinary networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import timm
import torch

from flopping.cost.meta import build_on_meta
from flopping.cost.traffic import Kernel, trace_forward
from flopping.models import registered_name
from flopping.models.fuse import fuse

BATCH, BYTES = 64, 2
"""The paper's batch; a number in half precision."""
ATTENTION = "scaled_dot_product"


@dataclass(frozen=True)
class Device:
    """A kernel takes as long as its products or its bytes, whichever takes longer.

    >>> Device(1e12, 1e9, 1e11).seconds([Kernel("linear", 10**12, 10**6, None), Kernel("add", 0, 10**9, None)])
    2.0
    """

    macs: float
    """Multiply-adds per second."""
    bytes: float
    """Bytes per second."""
    attention: float
    """Multiply-adds per second of attention, whose matrices are small."""

    def seconds(self, kernels: Sequence[Kernel]) -> float:
        rates = [self.attention if ATTENTION in kernel.name else self.macs for kernel in kernels]
        return sum(max(k.macs / rate, k.bytes / self.bytes) for k, rate in zip(kernels, rates, strict=True))


A100 = Device(1.24e14, 6.43e11, 9.67e12)
"""An A100 with 40 GB of memory, half precision, as the paper's ordinary networks see it: with these rates they take the
times that the paper measured, by least squares of relative errors (tests/cost/test_traffic.py)."""


def paper_kernels(name: str, ours: bool = False) -> list[Kernel]:
    """The kernels of a network of the paper, fused as a compiler can at best, in half precision and at its batch.

    As the paper computes it, or with `ours` in the inference form, which computes only what is read.
    """
    model = build_on_meta(lambda: timm.create_model(registered_name(name))).eval()
    x = torch.empty(BATCH, *model.pretrained_cfg["input_size"], device="meta")
    trace = trace_forward(fuse(model), x) if ours else trace_forward(model, x, everything=True)
    return [replace(k, bytes=k.bytes * BYTES // x.itemsize) for k in trace.kernels(fused=True)]


def predict(name: str, ours: bool = False, device: Device = A100) -> float:
    """Images per second of a network of the paper: as the paper computes it, or in our inference form."""
    return BATCH / device.seconds(paper_kernels(name, ours))
