"""What measuring processes do: try a precision, fill the memory, or run networks in turn. See `ChildProcess`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from queue import Queue
from threading import Thread
from time import perf_counter
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

from flopping.bench.count import count
from flopping.bench.machine import available_memory
from flopping.bench.memory import peak
from flopping.bench.records import Setting
from flopping.bench.running import Run, is_out_of_memory
from flopping.bench.timing import interleave
from flopping.targets import example_input, load, load_without_numbers

Emit = Callable[..., None]
MESSAGES: Queue[dict[str, Any]] = Queue()
"""What the caller says after the job."""
NOISE = "noise"
"""Key of the product of two fixed matrices, timed beside the networks: a quiet machine takes the same time always."""
NOISE_SIZE = 512
WARM = 1
"""Runs after the first, which compiles, until a network counts as built."""


def try_precision(job: dict[str, Any], emit: Emit) -> None:
    """Products, convolutions and attention, forward and backward, as networks have them. It ends, or it crashes."""
    setting = _setting(job)
    model = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.Flatten(2), nn.Linear(16, 64), _Attend(), nn.Linear(64, 64))
    run = Run(model, torch.randn(2, 3, 32, 32), setting)
    run()


class _Attend(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 32)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)


def fill_memory(job: dict[str, Any], emit: Emit) -> None:
    """Describe one network, compile it, and tell its peak of memory."""
    setting = _setting(job)
    if setting.device == "cpu":
        _limit_memory(available_memory())
    run, compile_seconds = _first_run(job["case"], setting)
    # on a CPU, frozen weights are copies that lie where neither the network nor the growth of a run shows them
    hidden = setting.mode == "compiled-frozen" and run.device.type == "cpu"
    memory = None if hidden else peak(run, run.state_bytes, run.device)
    emit(
        "memory",
        compile_seconds=compile_seconds,
        memory=None if memory is None else {"peak": memory.peak, "resident": memory.resident},
    )


def describe(job: dict[str, Any], emit: Emit) -> None:
    """Size, parameters and work of each network, from shapes alone."""
    for case in job["cases"]:
        try:
            emit("described", key=case["key"], **description(case["model"], case["setting"]["task"] == "training"))
        except Exception as error:
            emit("problem", key=case["key"], problem=_explain(error))


def take_time(job: dict[str, Any], emit: Emit) -> None:
    """Prepare networks as they are named, until told to go. Then run all in turn, and tell each round's seconds."""
    runs: dict[str, Run] = {}
    while "go" not in (case := MESSAGES.get()):
        emit("begin", key=case["key"])
        try:
            run, _ = _first_run(case, _setting(case))
            for _ in range(job["warmup"] - WARM):
                run()
            runs[case["key"]] = run
        except Exception as error:
            emit("problem", key=case["key"], problem=_explain(error))
    emit("ready")
    if runs:
        device = next(iter(runs.values())).device
        functions: dict[str, Callable[[], object]] = {NOISE: _fixed_product(device), **runs}
        start, limit, fewest = perf_counter(), case["seconds"], case["fewest"]
        interleave(
            functions,
            case["go"],
            warmup=0,
            progress=lambda seconds: emit("round", seconds=seconds),
            enough=lambda rounds: limit is not None and rounds >= fewest and perf_counter() - start > limit,
        )


JOBS = {"try": try_precision, "describe": describe, "memory": fill_memory, "time": take_time}


def description(target: str, training: bool) -> dict[str, Any]:
    """Size, parameters and work of a network; a remark if the work isn't known."""
    model = load_without_numbers(target)
    size = tuple(_images(model, target, batch=1).shape[1:])
    described: dict[str, Any] = {
        "params": sum(p.numel() for p in model.parameters()),
        "modules": sum(1 for _ in model.modules()),
        "input_size": size,
    }
    try:
        cost = count(model, size, training=training)
        return {**described, "flops": cost.flops, "macs": cost.macs, "remark": None}
    except Exception as error:  # it can be timed all the same
        return {**described, "flops": None, "macs": None, "remark": f"FLOPs aren't known: {_explain(error)}"}


def _first_run(case: dict[str, Any], setting: Setting) -> tuple[Run, float | None]:
    """A network that ran once, and how long the compiler took."""
    model = load(case["model"])
    run = Run(model, _images(model, case["model"], setting.batch), setting)
    seconds = []
    for _ in range(1 + WARM):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return run, None if setting.mode == "eager" else max(0.0, seconds[0] - seconds[1])


def _images(model: nn.Module, target: str, batch: int) -> Tensor:
    x = example_input(model, None, torch.float32, batch)
    if not isinstance(x, Tensor):
        raise ValueError(f"{target!r} takes features, not images: a network is needed")
    return x


def _fixed_product(device: torch.device) -> Callable[[], object]:
    matrix = torch.randn(NOISE_SIZE, NOISE_SIZE, device=device)

    def product() -> None:
        matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return product


def _setting(case: dict[str, Any]) -> Setting:
    return Setting(**case["setting"])


def _explain(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out of memory"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def _limit_memory(available: int) -> None:
    """More than this is refused, an error of Python, before the system runs out and kills what it likes."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = available if hard == resource.RLIM_INFINITY else min(available, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _allow_many_networks() -> None:
    """Networks of one class share their code, and the compiler gives up on code that it compiled too often."""
    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # until torch 2.6
    setattr(config, name, 10_000)


def main() -> None:
    """Read a job, do it, tell what happens. What others print goes to standard error, not between the events."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def emit(event: str, **values: Any) -> None:
        channel.write(json.dumps({"event": event, **values}) + "\n")
        channel.flush()

    job = json.loads(sys.stdin.readline())
    Thread(target=_listen, daemon=True).start()
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    try:
        _allow_many_networks()
        JOBS[job["job"]](job, emit)
    except Exception as error:
        emit("failed", problem=_explain(error))


def _listen() -> None:
    """Take messages, and end when the caller ends."""
    for line in sys.stdin:
        MESSAGES.put(json.loads(line))
    os.killpg(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
