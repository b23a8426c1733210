"""The machine that figures were measured on: what it is called, what runs on it, how busy it was."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch

from flopping.cores import usable_cores

FLAGS = ("ONEDNN_", "DNNL_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_CPU_", "CUDA_VISIBLE", "TORCH_COMPILE", "MALLOC_")
"""How variables of the environment begin that change how fast things are."""
PACKAGES = "timm", "flopping"


@dataclass(frozen=True)
class Machine:
    """Hardware, versions and switches, as recorded with every figure."""

    processor: str
    cores: int
    """Those that this process may use."""
    memory_gib: float
    gpu: str | None
    system: str
    python: str
    versions: Mapping[str, str] = field(hash=False)
    flags: Mapping[str, str] = field(hash=False)
    """Instruction set that torch uses, precision of matrix products, and variables of the environment that are set."""
    load: float | None
    """Processes that wanted to run when it began, mean over a minute."""


def this_machine(device: str = "cpu", others: Mapping[str, str] | None = None) -> Machine:
    """What is known about the machine that this runs on, and about its GPU if that is the device.

    Beside those of ours, `others` are versions that count.

    >>> sorted(this_machine().versions)
    ['flopping', 'timm', 'torch']
    """
    gpu = torch.cuda.get_device_name(device) if device.startswith("cuda") else None
    flags = {name: value for name, value in sorted(os.environ.items()) if name.startswith(FLAGS)}
    flags["instructions"] = torch.backends.cpu.get_cpu_capability()
    flags["float32 products"] = torch.get_float32_matmul_precision()
    return Machine(
        processor=_processor(),
        cores=usable_cores(),
        memory_gib=round(_memory("MemTotal") / 2**30, 1),
        gpu=gpu,
        system=f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        python=platform.python_version(),
        versions={"torch": torch.__version__, **{name: version(name) for name in PACKAGES}, **(others or {})},
        flags=flags,
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    )


def available_memory() -> int:
    """Bytes that new processes may take without pushing others out; within a container, what its limit leaves."""
    limits = [_memory("MemAvailable")]
    for limit, usage in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            limits.append(int(Path(limit).read_text()) - int(Path(usage).read_text()))
        except (OSError, ValueError):  # no such limit, or "max"
            continue
    return max(0, min(limits))


def _memory(field: str) -> int:
    """A line of the kernel's account of memory, in bytes; where there is none, all the memory there is."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()
