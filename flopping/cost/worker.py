"""The child process that measures: the memory of one network, or the time of several in turn. See `measure`."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

import torch
import torch._inductor.config as inductor
import torch.nn.functional as F
from torch import Tensor, nn

from flopping.cost.count import count
from flopping.cost.records import Memory, Setting
from flopping.cost.timing import interleave
from flopping.errors import UsageError
from flopping.functional import compile_operations, use_onednn
from flopping.functional.operation import allow_graphs
from flopping.machine import available_memory, is_out_of_memory, keep_freed_memory, onednn_is_faster
from flopping.models import is_our_ordinary
from flopping.models.backbone import whole_forward
from flopping.models.blocks import compile_blocks
from flopping.models.fuse import fuse
from flopping.models.targets import example_input, load, load_on_meta

Emit = Callable[..., None]
OPAQUE_TO = ("compiled-frozen", "max-autotune")
"""Modes whose compiler chooses products by itself, and can't choose those of `use_onednn`."""
NOISE, NOISE_SIZE = "noise", 512
"""A product of two matrices of this size is timed beside the networks: on a quiet machine its time is constant."""


class Run:
    """Calling it runs a network once on a batch of random images, and returns when the device is done.

    Inference runs the inference form of our networks (`flopping.fuse`); timm's stay as they are. With
    `optimised=False` a network is not fused, computes the whole last block, and torch multiplies. Training is forward,
    cross-entropy, backward and a step of AdamW, with the loss scaled for float16; the optimiser is not compiled.
    Precisions other than float32 are autocast. `MODES` says how each mode runs a network.

    >>> setting = Setting("eager", "training", "cpu", "float32", batch=2, threads=1)
    >>> Run(nn.Sequential(nn.Flatten(), nn.Linear(12, 5)), torch.randn(2, 3, 2, 2), setting)()
    """

    def __init__(self, model: nn.Module, x: Tensor, setting: Setting, optimised: bool = True) -> None:
        self.setting, self.device = setting, torch.device(setting.device)
        self.training = setting.task == "training"
        model = model.to(self.device).train(self.training)
        self.model = fuse(model) if optimised and not self.training else model
        self.x = x.to(self.device)
        self.compiled = self._compile(self.model if optimised else whole_forward(model))
        self.by_onednn = optimised and setting.mode not in OPAQUE_TO and onednn_is_faster()
        self.must_freeze = setting.mode == "compiled-frozen"
        if self.training:
            self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
            self.scaler = torch.amp.GradScaler(self.device.type, enabled=setting.dtype == "float16")

    def _compile(self, forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        mode = self.setting.mode
        # static shapes: a second network of the same class with another image size would get dynamic ones
        if mode in ("eager", "operations"):
            return forward
        if mode == "blocks":
            compile_blocks(self.model, every=forward is not self.model, dynamic=False)
            return forward
        if mode in ("reduce-overhead", "max-autotune"):
            return torch.compile(forward, dynamic=False, mode=mode)
        # the option keeps frozen code from being shared with code that is not frozen
        return torch.compile(forward, dynamic=False, options={"freezing": mode == "compiled-frozen"})

    def __call__(self) -> None:
        if self.setting.mode == "operations":
            compile_operations()  # a switch of the process, in which other networks run without it
        use_onednn(self.by_onednn)
        try:
            self._run()
        finally:
            compile_operations(False)
            use_onednn(False)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _run(self) -> None:
        if self.training:
            with self._autocast():
                out = self.compiled(self.x)
                loss = F.cross_entropy(out.flatten(1), torch.zeros(len(out), dtype=torch.long, device=self.device))
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimiser)
            self.scaler.update()
            self.optimiser.zero_grad(set_to_none=True)
        else:
            # the first run compiles; tracing asks for this switch, and the option of torch.compile comes too late
            freezing = inductor.patch(freezing=True) if self.must_freeze else nullcontext()
            with torch.no_grad(), self._autocast(), freezing:
                self.compiled(self.x)
            self.must_freeze = False

    @property
    def state_bytes(self) -> int:
        """What stays between runs: weights, buffers, optimiser state and images."""
        states = self.optimiser.state.values() if self.training else ()
        moments = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        return sum(t.nbytes for t in (self.x, *self.model.parameters(), *self.model.buffers(), *moments))

    def _autocast(self) -> AbstractContextManager[object]:
        enabled = self.setting.dtype != "float32"
        return torch.autocast(self.device.type, getattr(torch, self.setting.dtype)) if enabled else nullcontext()


def peak_memory(run: Run, repeats: int = 2) -> Memory | None:
    """Peak memory of some runs; None on a system that does not tell.

    On a CPU the resident set contains Python, torch and what the compiler left. So the peak is what the run holds
    between its calls plus the growth of the resident set during them, which is what an allocator would report.
    """
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
        for _ in range(repeats):
            run()
        return Memory(torch.cuda.max_memory_allocated(run.device), None)
    if run.setting.mode == "compiled-frozen":
        return None  # the compiler's copies of the weights cannot be told from torch itself
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)  # only glibc returns freed memory to the system
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        before = _status("VmRSS")
        for _ in range(repeats):
            run()
        highest = _status("VmHWM")
    except OSError:
        return None
    return Memory(run.state_bytes + max(0, highest - before), highest)


def _status(name: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def describe(target: str, training: bool) -> dict[str, Any]:
    """Input size, parameters, FLOPs and MACs of a network, and a remark if the FLOPs are unknown."""
    model = load_on_meta(target)
    size = tuple(_images(model, target, batch=1).shape[1:])
    found = {"params": sum(p.numel() for p in model.parameters()), "input_size": size}
    try:
        cost = count(model, size, training=training)
        return {**found, "flops": cost.flops, "macs": cost.macs, "problem": None}
    except Exception as error:  # it can be timed all the same
        return {**found, "flops": None, "macs": None, "problem": f"FLOPs are unknown: {_explain(error)}"}


def _images(model: nn.Module, target: str, batch: int) -> Tensor:
    x = example_input(model, None, torch.float32, batch)
    if not isinstance(x, Tensor):
        raise UsageError(f"{target!r} takes features, not images: a network is needed")
    return x


def _prepare(case: dict[str, Any], warmup: int) -> tuple[Run, float | None]:
    """A network that ran once and `warmup` times more, at least once, and how long the compiler took."""
    model, setting = load(case["model"]), Setting(**case["setting"])
    run = Run(
        model, _images(model, case["model"], setting.batch), setting, optimised=not is_our_ordinary(case["model"])
    )
    seconds = []
    for _ in range(1 + max(1, warmup)):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return run, None if setting.mode == "eager" else max(0.0, seconds[0] - seconds[1])


def measure_memory(job: dict[str, Any], emit: Emit) -> None:
    """Describe a network; compile it and measure its memory, unless it is known that it cannot run."""
    (case,) = job["cases"]
    emit("described", **describe(case["model"], case["setting"]["task"] == "training"))
    if job["runs"]:
        run, compile_seconds = _prepare(case, warmup=1)
        memory = peak_memory(run)
        emit("memory", compile_seconds=compile_seconds, memory=memory and asdict(memory))


def measure_time(job: dict[str, Any], emit: Emit) -> None:
    """Prepare the networks, then run them in turn and report the seconds of each round."""
    keep_freed_memory()
    runs: dict[str, Callable[[], object]] = {}
    for case in job["cases"]:
        emit("preparing", key=case["key"])
        try:
            runs[case["key"]], _ = _prepare(case, job["warmup"])
        except Exception as error:
            emit("problem", key=case["key"], problem=_explain(error))
    emit("prepared")
    if runs:
        alone = Setting("eager", "inference", job["cases"][0]["setting"]["device"], "float32", NOISE_SIZE, 1)
        noise = Run(nn.Linear(NOISE_SIZE, NOISE_SIZE), torch.randn(NOISE_SIZE, NOISE_SIZE), alone)
        start, limit = perf_counter(), job["seconds"]
        interleave(
            {NOISE: noise, **runs},
            job["repeats"],
            warmup=0,
            progress=lambda seconds: emit("round", seconds=seconds),
            enough=lambda rounds: limit is not None and rounds >= job["min_repeats"] and perf_counter() - start > limit,
        )


def _explain(error: Exception) -> str:
    if is_out_of_memory(error):
        return "out of memory"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _limit_memory() -> None:
    """Make allocations beyond the available memory Python errors, before the system kills processes."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [available_memory(), *([] if hard == resource.RLIM_INFINITY else [hard])]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def _end_with_caller() -> None:
    """Kill this process and the compilers that it started when the caller's end of the pipe closes."""
    sys.stdin.read()
    os.killpg(os.getpid(), signal.SIGKILL)


JOBS: dict[str, Callable[[dict[str, Any], Emit], None]] = {"memory": measure_memory, "time": measure_time}


def main(jobs: Mapping[str, Callable[[dict[str, Any], Emit], None]] = JOBS) -> None:
    """Read a job from standard input and do it. Events are lines of JSON on standard output; prints go to stderr."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def emit(event: str, **values: Any) -> None:
        channel.write(json.dumps({"event": event, **values}) + "\n")
        channel.flush()

    job = json.loads(sys.stdin.readline())
    Thread(target=_end_with_caller, daemon=True).start()
    torch.set_num_threads(job["cases"][0]["setting"]["threads"])
    torch.manual_seed(0)
    allow_graphs(10_000)  # networks of one class share their code
    try:
        if job["cases"][0]["setting"]["device"] == "cpu":
            _limit_memory()
        jobs[job["job"]](job, emit)
    except Exception as error:
        emit("failed", problem=_explain(error))


if __name__ == "__main__":
    main()
