"""Interleaved timing: only ratios within one run are stable on a shared machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter


@dataclass(frozen=True)
class Timing:
    """Seconds of every run of one function.

    >>> fast, slow = Timing((1.0, 2.0, 1.0)), Timing((2.0, 4.0, 3.0))
    >>> slow.median, slow.over(fast)
    (3.0, 2.0)
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    def over(self, other: Timing) -> float:
        """How many times longer than the other: median over rounds, whose two runs lie side by side."""
        return median(a / b for a, b in zip(self.seconds, other.seconds, strict=True))


def interleave(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    warmup: int = 3,
    progress: Callable[[], object] | None = None,
) -> dict[str, Timing]:
    """Run the functions in turn, round after round, and time each run.

    >>> sorted(interleave({"a": lambda: None, "b": lambda: None}, repeats=5))
    ['a', 'b']
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats is at least 1 and warmup at least 0, got repeats={repeats}, warmup={warmup}")
    for function in functions.values():
        for _ in range(warmup):
            function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = perf_counter()
            function()
            seconds[name].append(perf_counter() - start)
        if progress is not None:
            progress()
    return {name: Timing(tuple(values)) for name, values in seconds.items()}
