"""The probe finds the steering matrix that was planted, in features of any size, and its errors are what they say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flopping.errors import UsageError
from flopping.lab.probe import examine
from flopping.lab.steering import RIDGES, Moments, best_ridge, correlate, error_of, require_enough, steer


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def involution(even: int, odd: int, seed: int, *, orthogonal: bool = False) -> Tensor:
    """A matrix whose square is 1, with so many eigenvalues 1 and -1."""
    basis = random(even + odd, even + odd, seed=seed)
    basis = torch.linalg.qr(basis).Q if orthogonal else basis + 3 * torch.eye(even + odd, dtype=torch.float64)
    signs = torch.tensor([1.0] * even + [-1.0] * odd, dtype=torch.float64)
    return basis @ (signs[:, None] * torch.linalg.inv(basis))


def folds(f: Tensor, g: Tensor) -> tuple[Moments, ...]:
    """Half of the pairs to fit, a quarter to choose the ridge, a quarter to test."""
    quarter = len(f) // 4
    cuts = ((0, 2 * quarter), (2 * quarter, 3 * quarter), (3 * quarter, len(f)))
    return tuple(Moments(f.shape[1]).add(f[start:end], g[start:end]) for start, end in cuts)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 99))
def test_batches_give_what_all_pairs_give_at_once(sizes: list[int], channels: int, seed: int) -> None:
    number = sum(sizes) + 1
    f, g = random(2, number, channels, seed=seed) + 1e4  # a mean that is large beside the deviations
    streamed = Moments(channels)
    for a, b in zip(f.split([*sizes, 1]), g.split([*sizes, 1]), strict=True):
        streamed.add(a, b)
    both, swapped = torch.cat((f, g)), torch.cat((g, f))
    mean = both.mean(0)
    torch.testing.assert_close(streamed.mean, mean)
    torch.testing.assert_close(streamed.spread, (both - mean).T @ (both - mean) / (2 * number), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(streamed.cross, (both - mean).T @ (swapped - mean) / (2 * number), rtol=1e-6, atol=1e-6)
    assert streamed.pairs == number


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 99), st.floats(-3, 3))
def test_a_planted_matrix_is_found(even: int, odd: int, seed: int, scale: float) -> None:
    """Any involution, features of any size and mean, in few pairs."""
    channels = even + odd
    if not channels:
        return
    matrix = involution(even, odd, seed)
    f = (random(20 * channels, channels, seed=seed) + 1) * 10**scale
    made = folds(f, f @ matrix.T)
    found = examine("planted", *made)
    assert (found.even, found.odd, found.live) == (even, odd, channels)
    assert found.error < 1e-10
    assert found.involution_error < 1e-10
    assert found.extra_share == pytest.approx((even - odd) / channels, abs=1e-6)
    torch.testing.assert_close(steer(made[0]).matrix, matrix, rtol=1e-5, atol=1e-5)


def test_the_fit_is_that_of_least_squares_and_its_eigenvalues_lie_between_minus_one_and_one() -> None:
    f, g = random(200, 5), 0.5 * random(200, 5, seed=1)
    g = g + f @ random(5, 5, seed=2).T
    found = steer(Moments(5).add(f, g))
    mean = torch.cat((f, g)).mean(0)
    a, b = torch.cat((f, g)) - mean, torch.cat((g, f)) - mean
    torch.testing.assert_close(found.matrix, torch.linalg.lstsq(a, b).solution.T)
    eigenvalues = torch.linalg.eigvals(found.matrix)
    assert eigenvalues.imag.abs().max() < 1e-9
    torch.testing.assert_close(eigenvalues.real.sort(descending=True).values, found.correlations)
    assert found.correlations.abs().max() <= 1


def test_directions_and_patterns_are_what_the_maths_says() -> None:
    f = random(300, 4) @ random(4, 4, seed=1)
    g = f @ random(4, 4, seed=2) + random(300, 4, seed=3)
    moments = Moments(4).add(f, g)
    found = steer(moments)
    a, r = found.directions, found.patterns
    one = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(a.T @ moments.spread @ a, one)  # numbers that don't correlate, of variance 1
    torch.testing.assert_close(a.T @ moments.cross @ a, torch.diag(found.correlations))
    torch.testing.assert_close(r @ a.T, one)  # f is the sum of what its numbers stand for
    torch.testing.assert_close(float(r.square().sum()), moments.variance)
    left = ((1 - found.correlations**2) * r.square().sum(0)).sum() / moments.variance
    assert error_of(found.matrix, found.mean, moments) == pytest.approx(float(left))
    torch.testing.assert_close(found.involution @ found.involution, one)
    same, weights = correlate(found, moments)
    torch.testing.assert_close(same, found.correlations)
    torch.testing.assert_close(weights, r.square().sum(0) / moments.variance)


def test_errors_are_those_of_the_pairs_themselves() -> None:
    f = random(400, 3) + 2
    g = f @ involution(2, 1, 5).T + random(400, 3, seed=1)
    moments, matrix, mean = Moments(3).add(f, g), random(3, 3, seed=2), random(3, seed=3)
    a, b = torch.cat((f, g)), torch.cat((g, f))
    variance = (a - a.mean(0)).square().sum() / len(a)
    direct = (b - mean - (a - mean) @ matrix.T).square().sum() / len(a) / variance
    assert error_of(matrix, mean, moments) == pytest.approx(float(direct))


def test_the_best_ridge_is_the_one_with_the_least_error() -> None:
    for seed, noise in ((0, 0.0), (1, 3.0), (2, 30.0)):
        f = random(60, 12, seed=seed)
        g = f @ involution(8, 4, seed, orthogonal=True).T + noise * random(60, 12, seed=seed + 9)
        fit, other = Moments(12).add(f[:30], g[:30]), Moments(12).add(f[30:], g[30:])
        errors = {}
        for ridge in RIDGES:
            found = steer(fit, ridge)
            errors[ridge] = error_of(found.matrix, found.mean, other)
        best = best_ridge(fit, other)
        assert errors[best] == pytest.approx(min(errors.values()))
        assert (best == 0) == (noise == 0)


def test_pure_noise_is_neither_even_nor_odd_and_held_out_pairs_show_it() -> None:
    """Few pairs for the channels: on its own pairs the fit looks better than it is."""
    f, g = random(2, 240, 40)
    fit, choose, test = folds(f, g)
    found = examine("noise", fit, choose, test)
    assert found.counts.neither == 1
    assert found.error > 0.99
    unguarded = steer(fit)
    assert error_of(unguarded.matrix, unguarded.mean, fit) < 0.9  # by chance alone
    assert error_of(unguarded.matrix, unguarded.mean, test) > 1.1


def test_directions_that_never_differ_are_left_out() -> None:
    """Copies and constants beside planted channels: the split is that of the rest."""
    matrix = involution(3, 2, 1)
    f = random(400, 5)
    g = f @ matrix.T

    def more(x: Tensor) -> Tensor:
        return torch.cat((x, x[:, :2] - x[:, 2:4], torch.full((len(x), 1), 7.0)), 1)

    found = examine("copies", *folds(more(f), more(g)))
    assert (found.channels, found.live, found.even, found.odd) == (8, 5, 3, 2)
    assert found.error < 1e-10


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        (random(7, 4), "4 channels.* got 7"),
        (torch.ones(9, 4), "the same"),
        (torch.full((9, 4), torch.nan), "not finite"),
    ],
)
def test_features_that_nothing_can_be_fitted_to_are_refused(features: Tensor, reason: str) -> None:
    with pytest.raises(UsageError, match=f"'thin'.*{reason}"):
        require_enough(Moments(4).add(features, features), "thin")
