"""Whether the library works on this machine: what the machine has, and one check after another in child processes."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from threading import Timer
from time import perf_counter
from typing import Any

import timm
import torch
from torch import Tensor, nn

from flopping.cost.measure import CACHE, ChildProcess
from flopping.cost.records import Setting
from flopping.cost.worker import Emit, Run, main
from flopping.errors import pluralize
from flopping.machine import available_memory, find_compiler, precision_problem, this_machine, usable_cores
from flopping.models.targets import example_input, load
from flopping.models.zoo import ZOO
from flopping.testing import randomize_, relative_error

TOLERANCE = 1e-2
"""Passes TF32; the logits of an ordinary network change by more when its images are mirrored."""
LIMIT = 900.0
"""Seconds after which a check is ended: compiling takes half a minute. A busy machine gets as many times more."""
SKIPPED_STEPS = 16
"""float16: so many steps may overflow, until the scale of the loss, which each of them halves, is small enough."""


@dataclass(frozen=True)
class Check:
    """One thing that a network does, in one setting."""

    network: str
    name: str
    setting: Setting


@dataclass(frozen=True)
class Result:
    """A check that ran, or that this machine cannot run."""

    network: str
    check: str
    status: str
    """pass; FAIL; no: the machine doesn't have the precision, which is no fault of the library."""
    seconds: float | None
    problem: str | None


def networks() -> list[str]:
    """The first small equivariant network of each architecture.

    >>> networks()[:2]
    ['deit3_flop_test_patch16_64', 'resmlp_flop_test_64']
    """
    small = [entry for entry in ZOO.values() if "_flop_" in entry.name and "test" in entry.name]
    found: dict[type, str] = {}
    for entry in small:
        if "handoffs" not in entry.args:
            found.setdefault(entry.model, entry.name)
    return list(found.values())


def plan(device: str) -> list[Check]:
    """All checks, network by network."""
    infer = Setting("eager", "inference", device, "float32", batch=2, threads=usable_cores())
    train = replace(infer, task="training")
    precisions = ("bfloat16", "float16") if device.startswith("cuda") else ("bfloat16",)
    settings = {"forward": infer, "training step": train, "compiled step": replace(train, mode="compiled")}
    settings |= {f"{precision} step": replace(train, dtype=precision) for precision in precisions}
    settings["save and load"] = infer
    return [Check(network, name, setting) for network in networks() for name, setting in settings.items()]


def examine(checks: Sequence[Check], limit: float | None = None) -> Generator[Result, None, None]:
    """Run checks in a process each. One that crashes, or is not done in time, is a result like any other."""
    with tempfile.TemporaryDirectory(prefix="flopping-doctor-", ignore_cleanup_errors=True) as cache:
        for check in checks:
            problem = precision_problem(check.setting.dtype, torch.device(check.setting.device))
            if problem is not None:
                yield Result(check.network, check.name, "no", None, problem)
            else:
                busy = max(1.0, os.getloadavg()[0] / usable_cores())
                yield _examine(check, {CACHE: cache}, limit or LIMIT * busy)


def _examine(check: Check, environment: dict[str, str], limit: float) -> Result:
    case = {"model": check.network, "setting": asdict(check.setting)}
    job = {"job": "check", "name": check.name, "cases": [case]}
    start = perf_counter()
    with ChildProcess(job, environment, "flopping.lab.doctor") as child:
        timer = Timer(limit, child.stop)
        timer.start()
        try:
            seconds = [event["seconds"] for event in child.events()]
            problem = child.problem
        finally:
            timer.cancel()
    if problem is None and seconds:
        return Result(check.network, check.name, "pass", round(seconds[0], 2), None)
    if perf_counter() - start >= limit:
        problem = f"not done after {limit:.0f} s"
    return Result(check.network, check.name, "FAIL", None, problem or "the process ended without a result")


def run_check(job: dict[str, Any], emit: Emit) -> None:
    """In the child process: do what the job names, and report the seconds, imports aside."""
    start = perf_counter()
    (case,) = job["cases"]
    model, setting = randomize_(load(case["model"])), Setting(**case["setting"])
    x = example_input(model, None, torch.float32, setting.batch)
    assert isinstance(x, Tensor)
    device = torch.device(setting.device)
    others = {"forward": check_forward, "save and load": check_saving}
    check = check_training if setting.task == "training" else others[job["name"]]
    check(model.to(device).eval(), x.to(device), setting)
    emit("passed", seconds=perf_counter() - start)


def check_forward(model: nn.Module, x: Tensor, setting: Setting) -> None:
    """Mirrored images have the logits of the images."""
    with torch.no_grad():
        _require_equal(model(x.flip(-1)), model(x), "the logits of mirrored images")


def check_training(model: nn.Module, x: Tensor, setting: Setting) -> None:
    """A step changes weights, and every parameter gets a gradient; compiled logits are those of the eager network."""
    run, finite = Run(model, x, setting), dict[str, bool]()
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: finite.update({name: p.grad is not None and bool(p.grad.isfinite().all())})
        )
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(1 + SKIPPED_STEPS * (setting.dtype == "float16")):
        run()
        if all(finite.values()):
            break
    if bad := [name for name, _ in model.named_parameters() if not finite.get(name, False)]:
        raise RuntimeError(f"no finite gradient for {', '.join(bad[:3])} ({len(bad)} of {len(before)} parameters)")
    if all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)):
        raise RuntimeError("the step changed no weight")
    if setting.mode == "compiled":
        _require_equal(run.compiled(run.x), model(run.x), "the logits of the compiled network")


def check_saving(model: nn.Module, x: Tensor, setting: Setting) -> None:
    """A network that timm wrote and read has the same logits to the last bit."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        again = load(f"local-dir:{folder}").to(x.device).eval()
        for (name, saved), loaded in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
            if not torch.equal(saved, loaded):
                raise RuntimeError(f"{name} is another after it was saved and loaded")
        _require_equal(again(x), model(x), "the logits of the loaded network")


def _require_equal(got: Tensor, expected: Tensor, what: str) -> None:
    error = relative_error(got, expected)
    if not error <= TOLERANCE:
        raise RuntimeError(f"{what} have a relative error of {error:.1e}, more than {TOLERANCE:.0e}")


def describe_machine(device: str) -> dict[str, str]:
    """What a bug report needs to say: versions, processor, devices, memory, precisions and compilers."""
    machine = this_machine(device)
    versions = {**machine.versions, "Python": machine.python}
    free = available_memory() / 2**30
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    problems = {name: precision_problem(name, torch.device(device)) for name in ("float32", "bfloat16", "float16")}
    works = [name for name, problem in problems.items() if problem is None]
    return {
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "system": machine.system,
        "processor": f"{machine.processor}, {pluralize(machine.cores, 'core')}, {machine.flags['instructions']}",
        "memory": f"{free:.1f} of {machine.memory_gib:.1f} GiB free",
        "GPUs": "; ".join(map(_describe_gpu, range(torch.cuda.device_count()))) or f"none for torch, {built}",
        "device": device,
        "precisions": ", ".join(works) + "".join(f"; {problem}" for problem in problems.values() if problem),
        "compiler": _describe_compiler(),
    }


def _describe_gpu(index: int) -> str:
    try:
        found, (free, total) = torch.cuda.get_device_properties(index), torch.cuda.mem_get_info(index)
    except RuntimeError as error:  # a driver that is too old, a GPU that others have locked
        return f"cuda:{index}: {str(error).splitlines()[0]}"
    memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    return f"cuda:{index}: {found.name}, capability {found.major}.{found.minor}, {memory}, CUDA {torch.version.cuda}"


def _describe_compiler() -> str:
    """The C++ compiler that torch.compile starts for CPUs, and Triton, which it needs for GPUs."""
    name, is_there = find_compiler()
    if not is_there:
        cpp = f"no {name}: torch.compile needs it on a CPU"
    else:
        done = subprocess.run([name, "--version"], capture_output=True, text=True, errors="replace", check=False)
        cpp = next(iter(done.stdout.splitlines()), name)
    try:
        return f"{cpp}; Triton {version('triton')}"
    except PackageNotFoundError:
        return f"{cpp}; no Triton"


def sentence(machine: dict[str, str], results: Sequence[Result]) -> str:
    """The sentence for a bug report: the machine, how many checks passed, and why others did not."""
    tried = [result for result in results if result.status != "no"]
    failed = [result for result in tried if result.status == "FAIL"]
    known = "; ".join(f"{name}: {text}" for name, text in machine.items())
    end = "".join(f"; {result.network}, {result.check}: {result.problem}" for result in failed)
    return f"flopping doctor: {len(tried) - len(failed)} of {pluralize(len(tried), 'check')} passed{end}. {known}."


if __name__ == "__main__":
    main({"check": run_check})
