"""Medians, spreads and intervals, on synthetic times: nothing here depends on how fast the machine is."""

import math

import pytest
import torch

from flopping.bench.timing import Timing, bootstrap, interleave


def test_runs_are_interleaved() -> None:
    calls: list[str] = []
    rounds: list[dict[str, float]] = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = interleave(functions, repeats=3, warmup=2, progress=rounds.append)
    assert "".join(calls) == "aabb" + "abbaab"  # every other round backwards
    assert all(timings[name].seconds == tuple(seconds[name] for seconds in rounds) for name in "ab")
    assert len(rounds) == 3


def test_ratio_survives_a_machine_that_slows_down() -> None:
    """The second is twice as fast in every round, while the machine gets ten times slower."""
    slower = [1 + i for i in range(10)]
    first, second = Timing(tuple(2.0 * s for s in slower)), Timing(tuple(1.0 * s for s in slower))
    assert first.interval_over(second) == (2.0, 2.0, 2.0)
    assert second.over(first) == 0.5


def test_spread() -> None:
    timing = Timing(tuple(float(i) for i in range(1, 102)))
    assert timing.median == 51
    assert timing.quartiles == (26, 76)
    assert timing.spread == 50 / 51


@pytest.mark.parametrize(("repeats", "warmup"), [(0, 1), (1, -1)])
def test_impossible_repeats_are_refused(repeats: int, warmup: int) -> None:
    with pytest.raises(ValueError, match=f"repeats={repeats}, warmup={warmup}"):
        interleave({}, repeats=repeats, warmup=warmup)


def synthetic(rounds: int, noise: float, seed: int) -> tuple[Timing, Timing]:
    """X takes 1.7 times as long as E. Both suffer from a machine that drifts, and each from noise of its own."""
    generator = torch.Generator().manual_seed(seed)
    drift = torch.linspace(1, 3, rounds, dtype=torch.float64)
    own = torch.exp(noise * torch.randn(2, rounds, generator=generator, dtype=torch.float64))
    x, e = 1.7 * drift * own[0], drift * own[1]
    return Timing(tuple(x.tolist())), Timing(tuple(e.tolist()))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_interval_holds_the_truth_as_often_as_it_says(level: float) -> None:
    """Of 300 measurements whose truth is known; within what chance allows (3 deviations) and a little caution."""
    intervals = [x.interval_over(e, level) for x, e in (synthetic(30, 0.1, seed) for seed in range(300))]
    held = sum(low <= 1.7 <= high for _, low, high in intervals) / len(intervals)
    chance = 3 * math.sqrt(level * (1 - level) / len(intervals))
    assert level - chance <= held <= level + chance + 0.03
    assert all(low <= value <= high for value, low, high in intervals)


def test_interval_narrows_with_rounds_and_widens_with_noise() -> None:
    def width(rounds: int, noise: float) -> float:
        found = [x.interval_over(e) for x, e in (synthetic(rounds, noise, seed) for seed in range(20))]
        return sum(high - low for _, low, high in found) / len(found)

    assert width(160, 0.1) < 0.7 * width(40, 0.1)
    assert width(40, 0.2) > 1.5 * width(40, 0.1)


def test_interval_is_the_same_each_time_and_leaves_the_seed_alone() -> None:
    x, e = synthetic(30, 0.1, 0)
    state = torch.get_rng_state()
    assert x.interval_over(e) == x.interval_over(e)
    assert torch.equal(torch.get_rng_state(), state)


def test_one_round_proves_nothing() -> None:
    assert bootstrap([1.5]) == (1.5, -math.inf, math.inf)


@pytest.mark.parametrize(("values", "level", "message"), [([], 0.9, "got none"), ([1.0, 2.0], 95, "got 95")])
def test_impossible_intervals_are_refused(values: list[float], level: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap(values, level)


def test_rounds_of_different_runs_are_not_paired() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Timing((1.0, 2.0)).over(Timing((1.0,)))
