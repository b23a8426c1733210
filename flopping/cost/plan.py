"""What to measure: networks, their baselines, settings and protocols."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from flopping.cost.records import MODES, Setting
from flopping.errors import UsageError, as_usage_error
from flopping.models import names_in_paper, ordinary_twin, registered_name
from flopping.models.paper import results

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """One network in one setting."""

    model: str
    """A registered name, or FILE.py:ATTRIBUTE."""
    paper: str | None
    baseline: str | None
    """The `model` that it is compared with, or None if others are compared with it."""
    setting: Setting


@dataclass(frozen=True)
class Protocol:
    """How often a network runs, and on what."""

    batch: int
    dtype: str
    warmup: int
    repeats: int
    seconds: float | None = None
    """No round is begun after so many seconds, once there are `fewest`."""
    fewest: int = 10


PAPER_PROTOCOL = Protocol(batch=64, dtype="float16", warmup=10, repeats=100)
CPU_PROTOCOL = Protocol(batch=8, dtype="float32", warmup=3, repeats=30, seconds=50.0)


def protocol_for(device: str) -> Protocol:
    """The paper's on a GPU, a shorter one on a CPU."""
    return PAPER_PROTOCOL if device.startswith("cuda") else CPU_PROTOCOL


def check_device(device: str | None) -> str:
    """A device of this machine; by default CUDA where there is one.

    >>> check_device("tpu")
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: no device is called 'tpu' here; possible are cpu...
    """
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    possible = ["cpu", *(["cuda"] if gpus else []), *gpus]
    if device is None:
        return "cuda" if gpus else "cpu"
    return _one_of(possible, device, "device", " here")


def _one_of(possible: Sequence[str], name: str, kind: str, where: str = "") -> str:
    if name not in possible:
        raise UsageError(f"no {kind} is called {name!r}{where}; possible are {', '.join(possible)}")
    return name


def settings(
    modes: Iterable[str], dtypes: Iterable[str], device: str, batch: int, threads: int, training: bool
) -> list[Setting]:
    """All combinations of modes and precisions."""
    chosen = [(_one_of(MODES, mode, "mode"), _one_of(DTYPES, dtype, "precision")) for mode in modes for dtype in dtypes]
    if training and any(mode == "compiled-frozen" for mode, _ in chosen):
        raise UsageError("compiled-frozen makes constants of the weights, so it can't train: use another mode")
    task = "training" if training else "inference"
    return [Setting(mode, task, device, dtype, batch, threads) for mode, dtype in chosen]


def cases(names: Sequence[str], settings: Sequence[Setting], baseline: str | None = None) -> list[Case]:
    """Each network in each setting, and what it is compared with: X for E(X), H(X), I(X), or the given baseline.

    An X that is not in the list is added.

    >>> [case.model for case in cases(["E(ViT-S)"], [Setting()])]
    ['deit3_small_patch16_224', 'deit3_flop_small_patch16_224']
    """
    baselines: dict[str, str | None] = {}
    common = None if baseline is None else _resolve(baseline)
    for model in map(_resolve, names):
        other = common or ordinary_twin(model)
        if other is None or other == model:
            baselines.setdefault(model, None)
        else:
            baselines.setdefault(other, None)
            baselines[model] = other
    papers = names_in_paper()
    return [Case(model, papers.get(model), other, s) for s in settings for model, other in baselines.items()]


def _resolve(name: str) -> str:
    with as_usage_error(ValueError):
        return name if ":" in name else registered_name(name)


def rows_of_the_paper() -> list[str]:
    """All networks of the paper's table, small families first, so that a short budget measures as many as it can."""
    found = results()
    order = sorted((n for n in found if "(" not in n[:2]), key=lambda name: found[name].flops_g)
    return [name for x in order for name in found if name in (x, f"E({x})", f"H({x})", f"I({x})")]


def families(cases: Iterable[Case]) -> list[list[Case]]:
    """Groups of cases that are compared with one another."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.baseline or case.model, []).append(case)
    return list(found.values())
