"""What to measure and how often: networks beside their baselines, the paper's protocol and a shorter one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flopping.cost.records import Record, Setting, new_record
from flopping.errors import UsageError
from flopping.models import names_in_paper, ordinary_twin, paper_names, registered_name
from flopping.models.paper import ordinary_name, results


@dataclass(frozen=True)
class Protocol:
    """How often a network runs, and on what."""

    batch: int
    dtype: str
    warmup: int
    repeats: int
    seconds: float | None = None
    """After so many seconds no round starts, if at least `min_repeats` are done."""
    min_repeats: int = 15


PAPER_PROTOCOL = Protocol(batch=64, dtype="float16", warmup=10, repeats=100)
CPU_PROTOCOL = Protocol(batch=8, dtype="float32", warmup=3, repeats=30, seconds=50.0)


def plan_records(
    names: Sequence[str], settings: Sequence[Setting], baseline: str | None = None, own: bool = False, **origin: Any
) -> list[Record]:
    """A record without figures for each network in each setting; `origin` are machine, command and time.

    A network is compared with X if it is E(X), H(X) or I(X), or with the given baseline, which is added to the list.
    With `own`, so is E(X) with the trivial group: the ordinary network with all that makes E(X) fast.

    >>> setting = Setting("compiled", "inference", "cpu", "float32", batch=8, threads=2)
    >>> [record.model for record in plan_records(["E(ViT-S)"], [setting])]
    ['deit3_small_patch16_224', 'deit3_flop_small_patch16_224']
    """
    models = [name if ":" in name else registered_name(name) for name in names]
    common = baseline if baseline is None or ":" in baseline else registered_name(baseline)
    papers = names_in_paper()
    baselines: dict[str, str | None] = {}
    for model in models:
        other = common or ordinary_twin(model)
        if other is None or other == model:
            baselines.setdefault(model, None)
        else:
            baselines.setdefault(other, None)
            if own:
                twin = f"E({papers.get(other, other)})"
                if twin not in paper_names():
                    raise UsageError(f"--own adds E(X) with the trivial group, and there is no E(X) of {other!r}")
                baselines[f"{twin}:trivial"] = other
            baselines[model] = other
    return [
        new_record(model=model, paper=papers.get(model), baseline=other, setting=setting, **origin)
        for setting in settings
        for model, other in baselines.items()
    ]


def paper_networks() -> list[str]:
    """All networks of the paper's table, small families first, so that a short budget measures as many as it can."""
    found = results()
    return sorted(found, key=lambda name: found[ordinary_name(name)].flops_g)


def group_by_baseline(records: Iterable[Record]) -> list[list[Record]]:
    """Records that are compared with one another."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.baseline or record.model, []).append(record)
    return list(found.values())
