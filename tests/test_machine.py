"""Which precisions run: on CUDA torch is asked, on a CPU a child process tries, and the caller survives."""

import os
import platform
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from flopping import machine
from flopping.errors import UsageError
from flopping.machine import is_out_of_memory, precision_problem, usable_precision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    machine._cpu_problem.cache_clear()


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_is_asked_and_no_process_starts(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: asked.append(device) or nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    found = precision_problem("bfloat16", torch.device("cuda", 3))
    assert asked == [torch.device("cuda", 3)]
    assert found == (None if supported else "bfloat16 doesn't run on GPU 3")
    assert precision_problem("float16", torch.device("cuda", 3)) is None


def test_out_of_memory_is_recognised() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**55)
    assert is_out_of_memory(error.value)
    with pytest.raises(RuntimeError) as error:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_out_of_memory(error.value)


COUNT_PAGES = """
import resource, torch
from flopping.machine import keep_freed_memory

def count_pages():
    torch.ones(10**7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(10**7)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(count_pages(), keep_freed_memory(), count_pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is a function of glibc")
def test_freed_memory_is_kept() -> None:
    """A block of 40 MB is requested again and again: by default, the system clears its pages every time.

    In a separate process: the setting can't be undone, and it holds for the main thread only.
    """
    default, kept, after = subprocess.check_output([sys.executable, "-c", COUNT_PAGES], text=True).split()
    assert kept == "True"
    assert int(after) < int(default) / 5


def test_float16_on_a_cpu_becomes_float32() -> None:
    precision, note = usable_precision("float16", CPU)
    assert precision == "float32"
    assert "float16" in note


@pytest.mark.parametrize("crashes", [True, False])
def test_a_cpu_tries_once(crashes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the trial is a usage error; whatever came of it is known from then on."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/log\n{'kill -ILL $$' if crashes else ''}\n")
    os.chmod(python, 0o755)
    monkeypatch.setattr("sys.executable", str(python))
    refused = pytest.raises(UsageError, match=r"bfloat16 .* SIGILL.*ONEDNN_MAX_CPU_ISA.*precision=float32")
    for _ in range(2):
        with refused if crashes else nullcontext():
            assert usable_precision("bfloat16", CPU) == ("bfloat16", "")
    for precision in ("float32", "float64"):
        assert usable_precision(precision, CPU) == (precision, "")
    assert (
        tmp_path / "log"
    ).read_text() == "-c from flopping.machine import try_precision; try_precision('bfloat16')\n"


@pytest.mark.long
def test_this_cpu_tries() -> None:
    """Whatever this machine does with bfloat16, this process lives."""
    found = precision_problem("bfloat16", CPU)
    assert found is None or "SIGILL" in found
