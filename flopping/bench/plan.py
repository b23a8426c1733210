"""What is to be measured: networks, settings, protocol, and the networks that they are compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from flopping.bench.records import MODES, Setting
from flopping.models import names_in_paper, ordinary_twin, registered_name
from flopping.paper import results

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Case:
    """One network in one setting."""

    model: str
    """A registered name, or what else `flopping.targets.load` takes."""
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

    def __post_init__(self) -> None:
        if self.warmup < 0 or self.repeats < 1 or self.batch < 1:
            raise ValueError(f"batch and repeats are at least 1 and warmup at least 0, got {self}")


PAPER_PROTOCOL = Protocol(batch=64, dtype="float16", warmup=10, repeats=100)
CPU_PROTOCOL = Protocol(batch=8, dtype="float32", warmup=3, repeats=30, seconds=50.0)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def protocol_for(device: str) -> Protocol:
    """The paper's on a GPU, a shorter one on a CPU."""
    return PAPER_PROTOCOL if device.startswith("cuda") else CPU_PROTOCOL


def check_device(device: str) -> str:
    """A device that is here, or an error that lists those that are.

    >>> check_device("tpu")
    Traceback (most recent call last):
    ...
    ValueError: no device is called 'tpu' here; possible are cpu...
    """
    possible = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    possible += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if device not in possible:
        raise ValueError(f"no device is called {device!r} here; possible are {', '.join(possible)}")
    return device


def check_dtype(dtype: str) -> str:
    """A precision that networks can be run in, or an error that lists them."""
    if dtype not in DTYPES:
        raise ValueError(f"no precision is called {dtype!r}; possible are {', '.join(DTYPES)}")
    return dtype


def settings(
    modes: Iterable[str], dtypes: Iterable[str], device: str, batch: int, threads: int, training: bool
) -> list[Setting]:
    """All combinations of modes and precisions."""
    task = "training" if training else "inference"
    made = []
    for mode in modes:
        if mode not in MODES:
            raise ValueError(f"no mode is called {mode!r}; possible are {', '.join(MODES)}")
        if training and mode == "compiled-frozen":
            raise ValueError("compiled-frozen makes constants of the weights, so it can't train: leave it or training")
        for dtype in dtypes:
            made.append(Setting(mode, task, check_device(device), check_dtype(dtype), batch, threads))
    return made


def cases(names: Sequence[str], settings: Sequence[Setting], baseline: str | None = None) -> list[Case]:
    """Each network in each setting, and what it is compared with: X for E(X), H(X), I(X), or the given baseline.

    An X that isn't in the list comes along.

    >>> [case.model for case in cases(["E(ViT-S)"], [Setting()])]
    ['deit3_small_patch16_224', 'deit3_flop_small_patch16_224']
    """
    models: dict[str, str | None] = {}  # network: what it is compared with
    common = None if baseline is None else _resolve(baseline)
    for name in names:
        model = _resolve(name)
        other = common or ordinary_twin(model)
        if other is not None and other != model:
            models.setdefault(other, None)
            models[model] = other
        else:
            models.setdefault(model, None)
    papers = names_in_paper()
    return [Case(model, papers.get(model), other, s) for s in settings for model, other in models.items()]


def _resolve(name: str) -> str:
    return name if ":" in name else registered_name(name)


def rows_of_the_paper() -> list[str]:
    """All networks of the paper's table, small families first, so that a short budget measures as many as it can."""
    found = results()
    order = sorted((n for n in found if "(" not in n[:2]), key=lambda name: found[name].flops_g)
    return [name for x in order for name in found if name in (x, f"E({x})", f"H({x})", f"I({x})")]


def families(cases: Iterable[Case]) -> list[list[Case]]:
    """Cases that are compared with one another, together."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(case.baseline or case.model, []).append(case)
    return list(found.values())
