"""The machine: its cores, its memory, which precisions run on it, and what is recorded of it with every measurement."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from flopping.errors import UsageError

FLAGS = ("ONEDNN_", "DNNL_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_CPU_", "CUDA_VISIBLE", "TORCH_COMPILE", "MALLOC_")
"""Prefixes of the environment variables that change speed."""
Precision = Literal["float32", "bfloat16", "float16", "float64"]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of glibc's mallopt: how much free memory it keeps, and from which size on a block is a mapping of its own."""


@dataclass(frozen=True)
class Machine:
    """Hardware, versions and switches, as recorded with every measurement."""

    processor: str
    cores: int
    memory_gib: float
    gpu: str | None
    system: str
    python: str
    versions: Mapping[str, str] = field(hash=False)
    flags: Mapping[str, str] = field(hash=False)
    """Instruction set of torch, precision of matrix products, and environment variables that change speed."""
    load: float | None
    """Mean number of runnable processes over the minute before."""


def this_machine(device: str = "cpu", others: Mapping[str, str] | None = None) -> Machine:
    """Describe this machine, with its GPU if that is the device; `others` are further versions to record.

    >>> sorted(this_machine().versions)
    ['flopping', 'timm', 'torch']
    """
    flags = {name: value for name, value in sorted(os.environ.items()) if name.startswith(FLAGS)}
    flags["instructions"] = torch.backends.cpu.get_cpu_capability()
    flags["float32 products"] = torch.get_float32_matmul_precision()
    flags["linear layers"] = "oneDNN" if device == "cpu" and onednn_is_faster() else "torch"
    versions = {"torch": torch.__version__, "timm": version("timm"), "flopping": version("flopping")}
    return Machine(
        processor=_read_field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        cores=usable_cores(),
        memory_gib=round(_memory("MemTotal") / 2**30, 1),
        gpu=torch.cuda.get_device_name(device) if device.startswith("cuda") else None,
        system=f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        python=platform.python_version(),
        versions=versions | dict(others or {}),
        flags=flags,
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    )


def usable_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes that new processes may allocate; inside a container, what its limit leaves."""
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


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for its next allocations; return whether the C library can.

    By default glibc returns large blocks to the system, and requests them again in the next forward pass or training
    step. The system clears every page of them, which takes up to an eighth of the time of a step (docs/speed.md). Call
    it once, before the first step. It holds for memory that the main thread allocates; the resident set then stays at
    its peak.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is None or mallopt(M_TRIM_THRESHOLD, -1) != 1:  # -1: free memory is never returned
        return False
    return any(mallopt(M_MMAP_THRESHOLD, size) == 1 for size in (2**31 - 1, 2**25))  # older versions: 32 MiB at most


def find_compiler() -> tuple[str, bool]:
    """The C++ compiler that torch.compile starts for CPUs: its name, and whether there is one of that name."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    return name, shutil.which(name) is not None


def has_onednn() -> bool:
    """Whether this torch was built with oneDNN."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def onednn_is_faster() -> bool:
    """Whether oneDNN is there and multiplies float32 matrices faster than MKL: on CPUs of AMD with AVX-512.

    Two threads of an AMD EPYC multiply 1576 rows by matrices of 192 to 3072 rows and columns at 199 to 217 GFLOP/s by
    oneDNN and 176 to 199 by MKL; with Zen 5, at 468 to 475 and 212 to 217. With AVX2 both take the same time; CPUs of
    Intel were not measured.
    """
    vendor = _read_field("/proc/cpuinfo", "vendor_id")
    return has_onednn() and vendor == "AuthenticAMD" and torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def has_wide_avx512() -> bool:
    """Whether this is a CPU of AMD with Zen 5, which computes 512 bits at once; Zen 4 takes two steps for them.

    Zen 5 in notebooks takes two steps, too. It was not measured, and counts as wide.
    """
    family = _read_field("/proc/cpuinfo", "cpu family")
    return _read_field("/proc/cpuinfo", "vendor_id") == "AuthenticAMD" and family.isdigit() and int(family) >= 26


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or a CPU. torch has no type of error for CPUs."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    messages = "can't allocate memory", "not enough memory", "cannot allocate memory", "out of memory"
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in messages)


def _memory(name: str) -> int:
    """A field of /proc/meminfo in bytes; without that file, all the memory of the machine."""
    found = _read_field("/proc/meminfo", name)
    return int(found.split()[0]) * 1024 if found else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_field(file: str, name: str) -> str:
    """The value of the first `name: value` line of a file, or "" if there is none."""
    try:
        for line in Path(file).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return " ".join(value.split())
    except OSError:
        pass
    return ""


def usable_precision(precision: Precision, device: torch.device) -> tuple[Precision, str]:
    """The precision to train in, and a note for the user if it is not the one that was asked for.

    float16 needs a GPU: on a CPU the answer is float32, which is more exact. bfloat16 is refused where it does not run.
    """
    if precision == "float16" and device.type == "cpu":
        return "float32", "The recipe's mixed precision (float16) is for GPUs: on this CPU the run is in float32."
    problem = precision_problem(precision, device)
    if problem is not None:
        raise UsageError(f"{problem}. precision=float32 runs everywhere")
    return precision, ""


def precision_problem(precision: str, device: torch.device) -> str | None:
    """Why a precision cannot be used on a device; None if it can."""
    if device.type == "cpu":
        return _cpu_problem(precision) if precision not in ("float32", "float64") else None
    if precision == "bfloat16":
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported():
                return f"bfloat16 doesn't run on {torch.cuda.get_device_name(device)}"
    return None


@cache
def _cpu_problem(precision: str) -> str | None:
    """Try a precision in a child process: some CPUs advertise instructions that kill the process."""
    command = [sys.executable, "-c", f"from flopping.machine import try_precision; try_precision({precision!r})"]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    if ended.returncode == 0:
        return None
    last = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "")
    hint = ""
    if ended.returncode == -signal.SIGILL:
        hint = "; with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment it may run"
    return f"{precision} doesn't run on this machine: {explain_exit(ended.returncode, last)}{hint}"


def try_precision(precision: str) -> None:
    """Run products, convolutions and attention on the CPU, forward and backward. It may kill the process."""
    patches, linear = nn.Conv2d(3, 64, 8, 8), nn.Linear(64, 64)
    with torch.autocast("cpu", getattr(torch, precision)):
        heads = linear(patches(torch.randn(2, 3, 32, 32)).flatten(2).mT).unflatten(-1, (2, 32)).transpose(1, 2)
        out = linear(nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2))
    out.float().sum().backward()


_SIGNALS: dict[int, str] = {
    signal.SIGILL: "SIGILL: the processor doesn't know an instruction that it advertises",
    signal.SIGKILL: "SIGKILL: most likely the system ran out of memory",
}


def explain_exit(code: int, last_line: str = "") -> str:
    """Why a process ended, from its exit code (negative: a signal) and the last line that it wrote.

    >>> explain_exit(-4)
    "the process was killed by SIGILL: the processor doesn't know an instruction that it advertises"
    >>> explain_exit(1, "KeyError: 'a'")
    "the process ended with code 1: KeyError: 'a'"
    """
    if code >= 0:
        return f"the process ended with code {code}{last_line and f': {last_line.strip()}'}"
    meaning = _SIGNALS.get(-code)
    return f"the process was killed by {meaning or f'signal {-code}, {signal.strsignal(-code)}'}"


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Within it, if enabled, torch uses only algorithms that give the same bits every time, and refuses others."""
    before = torch.are_deterministic_algorithms_enabled()
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
