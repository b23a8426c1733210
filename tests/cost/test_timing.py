"""Medians, spreads and intervals, on synthetic times: nothing here depends on how fast the machine is."""

import math

import pytest
import torch

from flopping.cost.timing import Interval, Timing, bootstrap, interleave


def test_runs_are_interleaved() -> None:
    calls: list[str] = []
    rounds: list[dict[str, float]] = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = interleave(functions, repeats=9, warmup=2, progress=rounds.append, enough=lambda done: done == 3)
    assert "".join(calls) == "aabb" + "abbaab"  # every other round backwards
    assert all(timings[name].seconds == tuple(seconds[name] for seconds in rounds) for name in "ab")
    assert len(rounds) == 3


def test_ratio_survives_a_machine_that_slows_down() -> None:
    """The second is twice as fast in every round, while the machine gets ten times slower."""
    slower = [1 + i for i in range(10)]
    first, second = Timing(tuple(2.0 * s for s in slower)), Timing(tuple(1.0 * s for s in slower))
    assert first.interval_over(second) == (2.0, 2.0, 2.0)
    assert second.interval_over(first).value == 0.5


def test_spread() -> None:
    timing = Timing(tuple(float(i) for i in range(1, 102)))
    assert (timing.median, timing.quartiles, timing.spread) == (51, (26, 76), 50 / 51)


def synthetic(rounds: int, noise: float, seed: int) -> tuple[Timing, Timing]:
    """X takes 1.7 times as long as E. Both suffer from a machine that drifts, and each from noise of its own."""
    generator = torch.Generator().manual_seed(seed)
    drift = torch.linspace(1, 3, rounds, dtype=torch.float64)
    own = torch.exp(noise * torch.randn(2, rounds, generator=generator, dtype=torch.float64))
    x, e = 1.7 * drift * own[0], drift * own[1]
    return Timing(tuple(x.tolist())), Timing(tuple(e.tolist()))


def test_interval_contains_the_truth_as_often_as_it_says() -> None:
    """Of 60 measurements whose truth is known; within what chance allows (3 deviations) and a little caution."""
    level = 0.8

    def x_over_e(seed: int) -> Interval:
        x, e = synthetic(30, 0.1, seed)
        return x.interval_over(e, level)

    intervals = [x_over_e(seed) for seed in range(60)]
    held = sum(low <= 1.7 <= high for _, low, high in intervals) / len(intervals)
    chance = 3 * math.sqrt(level * (1 - level) / len(intervals))
    assert level - chance <= held <= level + chance + 0.03
    assert all(low <= value <= high for value, low, high in intervals)
    assert x_over_e(0) == intervals[0], "the same each time"


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats=0, warmup=1"):
        interleave({}, repeats=0, warmup=1)
    for values, level in ([], 0.9), ([1.0, 2.0], 95):
        with pytest.raises(ValueError, match=f"and {level}"):
            bootstrap(values, level)
    with pytest.raises(ValueError, match="shorter"):  # rounds of different runs are not paired
        Timing((1.0, 2.0)).interval_over(Timing((1.0,)))
