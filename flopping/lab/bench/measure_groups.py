"""Measuring one group of networks after another, in torch or in ONNX Runtime, while there is time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from flopping.cost.measure import Session
from flopping.cost.protocol import Protocol
from flopping.cost.records import EXPORTED, Record


def measure_groups(
    groups: Sequence[Sequence[Record]],
    protocol: Protocol,
    sink: Callable[[Record], object],
    *,
    seconds: float | None = None,
    cache: Path | None = None,
    progress: Callable[[str, float], object] = lambda text, share: None,
) -> int:
    """Measure the networks of each group in turn; after so many seconds no further group is begun.

    Returns how many groups are left. `progress` gets a text and the share of the work that is done.
    """
    start = monotonic()
    for number, group in enumerate(groups):
        if seconds is not None and monotonic() - start > seconds:
            return len(groups) - number

        def report(text: str, share: float = 0.5, number: int = number) -> None:
            progress(text, (number + share) / len(groups))

        if group[0].setting.mode == EXPORTED:
            from flopping.lab.bench.bench_export import compare_all  # ONNX is an extra

            x, e = group
            for found in compare_all([(x, e)], repeats=protocol.repeats, warmup=protocol.warmup, progress=report):
                sink(found.x)
                sink(found.e)
        else:
            Session(protocol, sink, cache=cache, progress=report).measure(group)
    return 0
