"""Which arithmetic a machine really has: it is tried in a process of its own, which may crash."""

from __future__ import annotations

import torch

from flopping.bench.probe import probe
from flopping.bench.records import Setting


def usable_precision(precision: str, device: torch.device) -> tuple[str, str]:
    """The precision to train in, and what to tell the user if it is another one than the recipe's.

    float16 needs a GPU: elsewhere networks train in float32, which is more exact. A precision that doesn't run on the
    machine is refused.
    """
    if precision == "float16" and device.type == "cpu":
        return "float32", "The recipe's mixed precision (float16) is for GPUs: on this CPU the run is in float32."
    if precision == "bfloat16":
        problem = probe(Setting("eager", "training", device.type, precision))
        if problem is not None:
            raise ValueError(f"{problem}. precision=float32 runs everywhere")
    return precision, ""
