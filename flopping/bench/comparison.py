"""From records to rows: each network beside its baseline of the same run, and beside what the paper reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite

from flopping.bench.records import Record, Setting, latest
from flopping.bench.timing import Interval, Timing
from flopping.paper import Result, family, results

FAMILIES = tuple(dict.fromkeys(map(family, results())))
"""Architectures in the order of the paper."""
OTHERS = "others"
"""The family of networks that aren't the paper's."""
PAPER_INPUT = (3, 224, 224)


@dataclass(frozen=True)
class Row:
    """A network E in one setting, and its baseline X.

    All ratios speak for E: throughput is E's over X's; parameters, FLOPs and memory are X's over E's. A figure that
    wasn't measured, or has nothing to be compared with, is None.
    """

    record: Record
    baseline: Record | None
    """Of the same run, setting and input: no other is comparable on the clock."""

    @property
    def name(self) -> str:
        """What to call it, on one line and without characters that move the cursor."""
        return printable(self.record.name)

    @property
    def family(self) -> str:
        found = family(self.record.paper or "")
        return found if found in FAMILIES else OTHERS

    @property
    def setting(self) -> Setting:
        return self.record.setting

    @property
    def problem(self) -> str | None:
        return None if self.record.problem is None else printable(self.record.problem)

    # What was measured ------------------------------------------------------------------------------------------------

    @property
    def throughput(self) -> float | None:
        """Images per second."""
        return self.record.throughput

    @property
    def milliseconds(self) -> float | None:
        """Median time of a batch."""
        timing = self.record.timing
        return None if timing is None else 1e3 * timing.median

    @cached_property
    def quartiles(self) -> tuple[float, float] | None:
        """Between these milliseconds lies the middle half of the rounds."""
        timing = self.record.timing
        return None if timing is None else (1e3 * timing.quartiles[0], 1e3 * timing.quartiles[1])

    @property
    def latency(self) -> float | None:
        """Median milliseconds of one image, if it was run alone."""
        return self.milliseconds if self.setting.batch == 1 else None

    @property
    def memory_mb(self) -> float | None:
        """Peak, in 10^6 bytes."""
        return None if self.record.memory is None else self.record.memory.peak / 1e6

    # Against the baseline ---------------------------------------------------------------------------------------------

    @cached_property
    def speedup(self) -> Interval | None:
        """Throughput over the baseline's: median over the rounds that both ran, and its 95 % confidence interval."""
        if self.baseline is None:
            return None
        rounds = min(len(self.baseline.seconds), len(self.record.seconds))
        if not rounds:
            return None
        return Timing(self.baseline.seconds[:rounds]).interval_over(Timing(self.record.seconds[:rounds]))

    @property
    def flop_ratio(self) -> float | None:
        """What the speed-up would be if time were FLOPs."""
        return None if self.baseline is None else _over(self.baseline.flops, self.record.flops)

    @property
    def params_ratio(self) -> float | None:
        return None if self.baseline is None else _over(self.baseline.params, self.record.params)

    @property
    def memory_ratio(self) -> float | None:
        if self.baseline is None or self.baseline.memory is None or self.record.memory is None:
            return None
        return _over(self.baseline.memory.peak, self.record.memory.peak)

    @property
    def efficiency(self) -> float | None:
        """Speed-up over FLOP ratio: 1 if the clock saves all that the count saves."""
        return None if self.speedup is None else _over(self.speedup.value, self.flop_ratio)

    # What the paper says ----------------------------------------------------------------------------------------------

    @property
    def reported(self) -> Result | None:
        """The paper's row, for images of its size."""
        return results().get(self.record.paper or "") if self.record.input_size == PAPER_INPUT else None

    @property
    def reported_cost(self) -> Result | None:
        """The paper's row, where its throughput, FLOPs and memory are of the same task: it has inference only."""
        return self.reported if self.setting.task == "inference" else None

    @property
    def reported_speedup(self) -> float | None:
        pair = self._reported_pair
        return None if pair is None else pair[1].throughput / pair[0].throughput

    @property
    def reported_flop_ratio(self) -> float | None:
        pair = self._reported_pair
        return None if pair is None else pair[0].flops_g / pair[1].flops_g

    @property
    def reported_efficiency(self) -> float | None:
        return _over(self.reported_speedup, self.reported_flop_ratio)

    @property
    def _reported_pair(self) -> tuple[Result, Result] | None:
        """X and E."""
        own = self.reported_cost
        return None if own is None or own.ordinary == own.name else (results()[own.ordinary], own)


def compare(records: Sequence[Record]) -> list[Row]:
    """A row per network, setting and machine, sorted by these; networks in the paper's order, others behind them.

    `latest` chooses among repeated measurements. The baseline is looked up among all records, since it must be of the
    same run as its row, which need not be the run that the baseline's own row shows.
    """
    every = {(r.run, r.setting, r.input_size, r.model): r for r in records}
    rows = []
    for r in latest(records):
        baseline = None if r.baseline in (None, r.model) else every.get((r.run, r.setting, r.input_size, r.baseline))
        rows.append(Row(r, baseline))
    return [row for group in groups(rows) for row in _sorted(group)]


def groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that may stand in one table: of one setting on one machine, in the order in which they first appear."""
    found: dict[object, list[Row]] = {}
    for row in rows:
        machine = row.record.machine
        found.setdefault((machine.processor, machine.cores, machine.gpu, row.setting), []).append(row)
    return list(found.values())


def _sorted(rows: Sequence[Row]) -> list[Row]:
    """By family, then in the paper's order; the others as they came, each behind its baseline."""
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
    r"""Text on one line, with a mark in place of every character that isn't meant to be seen.

    >>> printable("a\x1b[31m\nb")
    'a�[31m b'
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))


def figures_of(row: Row) -> dict[str, object]:
    """All figures of a row by name, ready for JSON: what isn't known is None."""
    r, reported, cost = row.record, row.reported, row.reported_cost
    low, high = row.quartiles or (None, None)
    found: Mapping[str, object] = {
        "model": r.model,
        "paper": r.paper,
        "baseline": r.baseline,
        **asdict(r.setting),
        "throughput": row.throughput,
        "ms": row.milliseconds,
        "ms_first_quartile": low,
        "ms_third_quartile": high,
        "latency_ms": row.latency,
        "rounds": len(r.seconds),
        "speedup": None if row.speedup is None else row.speedup.value,
        "speedup_low": None if row.speedup is None else row.speedup.low,
        "speedup_high": None if row.speedup is None else row.speedup.high,
        "efficiency": row.efficiency,
        "flops": r.flops,
        "flop_ratio": row.flop_ratio,
        "params": r.params,
        "params_ratio": row.params_ratio,
        "memory_mb": row.memory_mb,
        "memory_ratio": row.memory_ratio,
        "compile_seconds": r.compile_seconds,
        "noise": r.noise,
        "paper_throughput": None if cost is None else cost.throughput,
        "paper_speedup": row.reported_speedup,
        "paper_efficiency": row.reported_efficiency,
        "paper_flops_g": None if cost is None else cost.flops_g,
        "paper_params_m": None if reported is None else reported.params_m,
        "paper_memory_mb": None if cost is None else cost.memory_mb,
        "paper_top1": None if reported is None else reported.top1,
        "problem": r.problem,
        "run": r.run,
        "time": r.time,
    }
    return {name: None if isinstance(v, float) and not isfinite(v) else v for name, v in found.items()}


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
