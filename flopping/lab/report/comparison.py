"""From records to rows: each network beside its baseline of the same run, and beside what the paper reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from flopping.cost.records import Record
from flopping.cost.timing import Interval, Timing
from flopping.models.paper import family, results

FAMILIES = tuple(dict.fromkeys(map(family, results())))
"""Architectures in the order of the paper."""
OTHERS = "others"
"""The family of networks that aren't the paper's."""
PAPER_INPUT = (3, 224, 224)


@dataclass(frozen=True)
class Row:
    """A network E in one setting, and its baseline X: a record of the same run, setting and input."""

    record: Record
    baseline: Record | None

    @property
    def name(self) -> str:
        return printable(self.record.name)

    @property
    def family(self) -> str:
        found = family(self.record.paper or "")
        return found if found in FAMILIES else OTHERS

    @property
    def problem(self) -> str | None:
        return None if self.record.problem is None else printable(self.record.problem)

    @cached_property
    def figures(self) -> dict[str, Any]:
        """All figures by name, ready for JSON; None if a figure was not measured or has nothing to be compared with.

        Ratios are larger than 1 if E is better: throughput is E's over X's, what E costs is X's over E's. Efficiency is
        speed-up over FLOP ratio. The paper's costs are of inference with its own input size.
        """
        r, x = self.record, self.baseline
        timing, speedup = r.timing, self._speedup()
        low, high = (1e3 * quartile for quartile in timing.quartiles) if timing else (None, None)
        milliseconds = 1e3 * timing.median if timing else None
        flop_ratio = _ratio(_get(x, "flops"), r.flops)
        reported = results().get(r.paper or "") if r.input_size == PAPER_INPUT else None
        cost = reported if r.setting.task == "inference" else None
        ordinary = results()[cost.ordinary] if cost and cost.ordinary != cost.name else None
        paper_speedup = _ratio(_get(cost, "throughput"), _get(ordinary, "throughput"))
        figures = {
            "model": r.model,
            "paper": r.paper,
            "baseline": r.baseline,
            **asdict(r.setting),
            "throughput": r.throughput,
            "ms": milliseconds,
            "ms_first_quartile": low,
            "ms_third_quartile": high,
            "latency_ms": milliseconds if r.setting.batch == 1 else None,
            "rounds": len(r.seconds),
            "speedup": _get(speedup, "value"),
            "speedup_low": _get(speedup, "low"),
            "speedup_high": _get(speedup, "high"),
            "efficiency": _ratio(_get(speedup, "value"), flop_ratio),
            "flops": r.flops,
            "flop_ratio": flop_ratio,
            "params": r.params,
            "params_ratio": _ratio(_get(x, "params"), r.params),
            "memory_mb": r.memory and r.memory.peak / 1e6,
            "memory_ratio": _ratio(_get(_get(x, "memory"), "peak"), _get(r.memory, "peak")),
            "compile_seconds": r.compile_seconds,
            "noise": r.noise,
            "paper_throughput": _get(cost, "throughput"),
            "paper_speedup": paper_speedup,
            "paper_efficiency": _ratio(paper_speedup, _ratio(_get(ordinary, "flops_g"), _get(cost, "flops_g"))),
            "paper_flops_g": _get(cost, "flops_g"),
            "paper_params_m": _get(reported, "params_m"),
            "paper_memory_mb": _get(cost, "memory_mb"),
            "paper_top1": _get(reported, "top1"),
            "problem": r.problem,
            "run": r.run,
            "time": r.time,
        }
        return {name: None if isinstance(v, float) and not isfinite(v) else v for name, v in figures.items()}

    def _speedup(self) -> Interval | None:
        """Throughput over the baseline's: median over the rounds that both ran, and its 95 % confidence interval."""
        rounds = min(len(self.baseline.seconds), len(self.record.seconds)) if self.baseline else 0
        if self.baseline is None or not rounds:
            return None
        return Timing(self.baseline.seconds[:rounds]).interval_over(Timing(self.record.seconds[:rounds]))


def compare(records: Sequence[Record]) -> list[Row]:
    """A row per network, setting and machine, sorted by these; networks in the paper's order, others after them.

    `latest` chooses among repeated measurements. The baseline is looked up among all records, since it must be of the
    same run as its row, which need not be the run that the baseline's own row shows.
    """
    every = {(r.run, r.setting, r.input_size, r.model): r for r in records}
    rows = []
    for r in latest(records):
        baseline = None if r.baseline in (None, r.model) else every.get((r.run, r.setting, r.input_size, r.baseline))
        rows.append(Row(r, baseline))
    return [row for group in groups(rows) for row in _sorted(group)]


def latest(records: Sequence[Record]) -> list[Record]:
    """Of several records of one network in one setting on one machine, the one to show.

    That is the last complete one, else the last with some figures, else the last.
    """
    found: dict[object, Record] = {}
    for record in records:
        machine = record.machine
        key = record.model, record.setting, record.input_size, machine.processor, machine.cores, machine.gpu
        if key not in found or _completeness(record) >= _completeness(found[key]):
            found[key] = record
    return list(found.values())


def _completeness(record: Record) -> int:
    return 0 if not record.seconds else 1 if record.problem else 2


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each table: of one setting on one machine, in the order in which they first appear."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        machine = row.record.machine
        found.setdefault((machine.processor, machine.cores, machine.gpu, row.record.setting), []).append(row)
    return list(found.values())


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """By family, then in the paper's order; the others in their own order, each after its baseline."""
    papers = {name: place for place, name in enumerate(results())}
    came: dict[str, int] = {}
    for place, row in enumerate(rows):
        came.setdefault(row.record.baseline or row.record.model, place)

    def key(row: Row) -> tuple[int, int, int, bool]:
        r = row.record
        place = papers.get(r.paper or "", len(papers))
        own = came[r.baseline or r.model] if place == len(papers) else 0
        return (*FAMILIES, OTHERS).index(row.family), place, own, r.baseline not in (None, r.model)

    return sorted(rows, key=key)


def printable(text: str) -> str:
    r"""Text on one line, with a replacement character for each character that can't be printed.

    >>> printable("a\x1b[31m\nb")
    'a�[31m b'
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _get(value: object, name: str) -> Any:
    """`getattr`, or None for None."""
    return getattr(value, name, None)
