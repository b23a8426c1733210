"""Interleaved timing: only ratios within one run are stable on a shared machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch


class Interval(NamedTuple):
    """A value and the bounds between which it lies with the level that they were made for."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Seconds of every run of one function.

    >>> fast, slow = Timing((1.0, 2.0, 1.0)), Timing((2.0, 4.0, 3.0))
    >>> slow.median, slow.quartiles, slow.interval_over(fast).value
    (3.0, (2.5, 3.5), 2.0)
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """A quarter of the runs was faster than the first, a quarter slower than the second."""
        low, high = torch.tensor(self.seconds, dtype=torch.float64).quantile(_levels(0.5)).tolist()
        return low, high

    @property
    def spread(self) -> float:
        """Inter-quartile range as a share of the median."""
        low, high = self.quartiles
        return (high - low) / self.median

    def interval_over(self, other: Timing, level: float = 0.95) -> Interval:
        """How many times longer than the other: median over rounds, whose two runs lie side by side."""
        return bootstrap([a / b for a, b in zip(self.seconds, other.seconds, strict=True)], level)


def bootstrap(values: Sequence[float], level: float = 0.95, resamples: int = 4000) -> Interval:
    """The median, and the interval in which it lies with a confidence of `level`.

    Rounds are drawn again from those that were seen, many times over, and the interval holds the middle share of the
    medians that come out. The draw is always the same, so a report made twice is the same report. One round says
    nothing about the next: its interval is without bounds.

    >>> bootstrap([1.0, 2.0, 3.0, 4.0, 100.0])
    Interval(value=3.0, low=1.0, high=100.0)
    >>> bootstrap([2.0])
    Interval(value=2.0, low=-inf, high=inf)
    """
    if not values or not 0 < level < 1:
        raise ValueError(f"an interval needs values and a level between 0 and 1, got {values} and {level}")
    if len(values) == 1:
        return Interval(values[0], float("-inf"), float("inf"))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(values), (resamples, len(values)), generator=generator)
    medians = torch.tensor(values, dtype=torch.float64)[drawn].quantile(0.5, dim=1)
    low, high = medians.quantile(_levels(level)).tolist()
    return Interval(median(values), low, high)


def _levels(share: float) -> torch.Tensor:
    """The two quantiles that enclose the middle share."""
    return torch.tensor([(1 - share) / 2, (1 + share) / 2], dtype=torch.float64)


def interleave(
    functions: dict[str, Callable[[], object]],
    repeats: int,
    warmup: int = 3,
    progress: Callable[[dict[str, float]], object] | None = None,
    enough: Callable[[int], bool] = lambda rounds: False,
) -> dict[str, Timing]:
    """Run the functions in turn, round after round, and time each run. `progress` gets the seconds of each round.

    Every other round goes backwards, so that none always runs after the same other. `enough` is asked after each
    round, with the number of rounds so far, whether to leave the others out.

    >>> sorted(interleave({"a": lambda: None, "b": lambda: None}, repeats=5))
    ['a', 'b']
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats is at least 1 and warmup at least 0, got repeats={repeats}, warmup={warmup}")
    for function in functions.values():
        for _ in range(warmup):
            function()
    rounds: list[dict[str, float]] = []
    for _ in range(repeats):
        seconds = dict.fromkeys(functions, 0.0)
        for name in reversed(functions) if len(rounds) % 2 else functions:
            start = perf_counter()
            functions[name]()
            seconds[name] = perf_counter() - start
        rounds.append(seconds)
        if progress is not None:
            progress(seconds)
        if enough(len(rounds)):
            break
    return {name: Timing(tuple(seconds[name] for seconds in rounds)) for name in functions}
