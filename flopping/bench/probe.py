"""Whether a precision runs on this machine: some processors advertise instructions that kill the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from flopping.bench.child import ChildProcess
from flopping.bench.records import Setting


def probe(
    setting: Setting, start: Callable[[Mapping[str, Any]], AbstractContextManager[ChildProcess]] = ChildProcess
) -> str | None:
    """Why a setting's precision can't be used on its device; found out by a process that may crash."""
    trial = replace(setting, mode="eager", task="training", batch=Setting.batch)
    with start({"job": "try", "setting": asdict(trial), "threads": trial.threads}) as child:
        list(child.events())
        problem = child.problem
    if problem is None:
        return None
    hint = ""
    if "SIGILL" in problem and setting.device == "cpu":
        hint = "; with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment it may run"
    return f"{setting.dtype} doesn't run on this machine: {problem}{hint}"
