"""The peak of memory while a network runs, of the process that asks."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

from flopping.bench.records import Memory

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"


def peak(run: Callable[[], object], state_bytes: int, device: torch.device, repeats: int = 2) -> Memory | None:
    """The most that some runs needed; None on a system that doesn't tell.

    On a CPU the resident set has Python, torch and what the compiler left in it. So the peak is `state_bytes`, what
    the network holds between runs, and by how much the resident set grew during them: what an allocator would report.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        for _ in range(repeats):
            run()
        return Memory(torch.cuda.max_memory_allocated(device), None)
    gc.collect()
    _return_free_memory()
    try:
        CLEAR.write_text(FORGET_PEAK)
        before = _status("VmRSS")
        for _ in range(repeats):
            run()
        highest = _status("VmHWM")
    except OSError:
        return None
    return Memory(state_bytes + max(0, highest - before), highest)


def _status(field: str) -> int:
    """Bytes in a line of the kernel's account of this process."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{STATUS} has no {field}")


def _return_free_memory() -> None:
    """Give back what was freed, so that the next run has to ask for it; only glibc can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
