"""The steering matrix of a layer: the matrix A that turns features into those of the mirror image.

N pairs, C channels, R live directions. A pair is the feature f at a place of an image, and the feature g at the
mirrored place of the mirrored image. An image and its mirror image may trade roles, so every pair counts in both
orders. Then all second moments follow from those of two combinations that don't correlate:

    u = (f + g) / sqrt 2    stays when f and g trade places    U = cov(u) = S + X
    v = (f - g) / sqrt 2    changes its sign                   V = cov(v) = S - X

S is the covariance of a feature, X that of a feature with its mirror image; both are symmetric, and deviations are
taken from the mean of all features, mirrored ones included.

An equivariant layer has g = A f for all pairs, with A A = I, because mirroring twice changes nothing. For any layer,
the matrix of least squares minimises E |g - A f|² + E |f - A g|² = 2 tr(S - 2 A X + A S Aᵀ) and is A = X S⁻¹. On
whitened features, S^(-1/2) f, it is the symmetric matrix M = S^(-1/2) X S^(-1/2), and -1 <= M <= 1 because U and V
are covariances. So A, which is similar to M, has real eigenvalues between -1 and 1. For an eigenvector q of M with
eigenvalue w,

    a = S^(-1/2) q reads one number off a feature, with variance aᵀ S a = 1; numbers of different q don't correlate;
    r = S^(1/2) q is the feature that this number stands for: A r = w r, f = mean + sum of (aᵀ f) r, and the variance
        of f is the sum of the |r|²;
    w is the correlation of that number for an image with that for its mirror image: 1 if it never changes (even), -1
        if it changes its sign (odd), 0 if the mirror image does not predict it.

So the error of A is the sum of (1 - w²) |r|², and the trace of A is the number of even directions minus that of odd
ones. Of all matrices with A A = I that are orthogonal on whitened features, the nearest to M has the signs of the w
in place of the w (`Steering.involution`).

Features of few images fit by chance. Against that, S + ridge takes the place of S, with a ridge that is chosen on
images of its own; and errors and correlations are measured on images that the fit has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from flopping.errors import UsageError

RIDGES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""The ridges to choose from, in shares of the mean variance of live directions."""
ROUNDING = 1e-10
"""Directions with a smaller share of the squared size of features are rounding errors of float32."""
PAIRS_PER_CHANNEL = 2
"""Fewer pairs than this fit by chance, whatever the ridge."""


class Moments:
    """Number, mean and second moments of pairs, added batch by batch in float64.

    Deviations are taken from the mean of their own batch before batches are joined, so a mean that is large beside the
    deviations costs no digits.

    >>> f, g = torch.randn(2, 100, 3, dtype=torch.float64).unbind()
    >>> moments = Moments(3).add(f[:60], g[:60]).add(f[60:], g[60:])
    >>> bool(torch.allclose(moments.spread, torch.cat((f, g)).T.cov(correction=0))), moments.pairs
    (True, 100)
    """

    def __init__(self, channels: int, device: torch.device | str = "cpu") -> None:
        self.channels, self.pairs = channels, 0
        self.mean = torch.zeros(channels, dtype=torch.float64, device=device)
        self._even = torch.zeros(channels, channels, dtype=torch.float64, device=device)  # sums of u uᵀ
        self._odd = torch.zeros_like(self._even)  # sums of v vᵀ

    def add(self, f: Tensor, g: Tensor) -> Moments:
        """Count features `(N, C)` and their mirror images."""
        f, g = f.double(), g.double()
        u, v = (f + g) / sqrt(2), (f - g) / sqrt(2)
        mean = u.mean(0)
        return self._join(len(f), mean / sqrt(2), (u - mean).T @ (u - mean), v.T @ v)

    def __add__(self, other: Moments) -> Moments:
        """The moments of all pairs of both."""
        both = Moments(self.channels, self.mean.device)
        for part in (self, other):
            both._join(part.pairs, part.mean, part._even, part._odd)
        return both

    def _join(self, pairs: int, mean: Tensor, even: Tensor, odd: Tensor) -> Moments:
        if pairs:
            total, step = self.pairs + pairs, mean - self.mean
            self._even += even + torch.outer(step, step) * (2 * self.pairs * pairs / total)
            self._odd += odd
            self.mean, self.pairs = self.mean + step * (pairs / total), total
        return self

    @property
    def spread(self) -> Tensor:
        """S, the covariance of features."""
        return (self._even + self._odd) / (2 * self.pairs)

    @property
    def cross(self) -> Tensor:
        """X, the covariance of features with their mirror images."""
        return (self._even - self._odd) / (2 * self.pairs)

    @property
    def variance(self) -> float:
        """The mean squared distance of a feature from the mean."""
        return float(self.spread.trace())

    def center_at(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """S and X with deviations from another mean."""
        shift = torch.outer(self.mean - mean, self.mean - mean)
        return self.spread + shift, self.cross + shift


@dataclass(frozen=True)
class Steering:
    """A fitted steering matrix and its eigenvectors, those with the largest eigenvalues first."""

    mean: Tensor
    """`(C,)`; A acts on deviations from it."""
    correlations: Tensor
    """The eigenvalues w `(R,)`, of the pairs that were fitted."""
    directions: Tensor
    """The columns a `(C, R)`."""
    patterns: Tensor
    """The columns r `(C, R)`."""

    @property
    def matrix(self) -> Tensor:
        """A `(C, C)`; it is 0 on directions in which features don't differ."""
        return (self.patterns * self.correlations) @ self.directions.T

    @property
    def involution(self) -> Tensor:
        """The nearest matrix whose square is 1 on live directions."""
        return (self.patterns * torch.where(self.correlations < 0, -1.0, 1.0)) @ self.directions.T


def steer(moments: Moments, ridge: float = 0.0) -> Steering:
    """The steering matrix of least squares; `ridge` is a share of the mean variance of live directions.

    >>> f = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> found = steer(Moments(3).add(f, f * torch.tensor([1, -1, -1])))
    >>> found.correlations.round(decimals=6).tolist()
    [1.0, -1.0, -1.0]
    """
    variances, axes = _live(moments)
    scales = (variances + ridge * variances.mean()).sqrt()
    whiten = axes / scales
    correlations, vectors = torch.linalg.eigh(whiten.T @ moments.cross @ whiten)
    correlations, vectors = correlations.flip(0).clamp(-1, 1), vectors.flip(1)
    return Steering(moments.mean, correlations, whiten @ vectors, (axes * scales) @ vectors)


def best_ridge(fit: Moments, other: Moments) -> float:
    """The ridge of `RIDGES` with which a fit to some pairs has the smallest error on others.

    In the basis of the eigenvectors of S, each ridge costs C² operations.
    """
    variances, axes = _live(fit)
    cross = axes.T @ fit.cross @ axes
    square = cross @ cross
    their_spread, their_cross = (axes.T @ matrix @ axes for matrix in other.center_at(fit.mean))
    errors = []
    for ridge in RIDGES:
        inverse = 1 / (variances + ridge * variances.mean())
        hit = (cross * their_cross.T * inverse).sum()  # tr(A X)
        size = (square * their_spread.T * inverse * inverse[:, None]).sum()  # tr(A S Aᵀ)
        errors.append(float(size - 2 * hit))
    return RIDGES[errors.index(min(errors))]


def error_of(matrix: Tensor, mean: Tensor, moments: Moments) -> float:
    """E |g - A f|² as a share of the variance of features: 0 if A predicts all, 1 if it predicts as much as the mean.

    `matrix` acts on deviations from `mean`.

    >>> f = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    >>> even, one = Moments(2).add(f, f), torch.eye(2, dtype=torch.float64)
    >>> [round(error_of(factor * one, even.mean, even), 6) for factor in (1, 0, -1)]
    [0.0, 1.0, 4.0]
    """
    spread, cross = moments.center_at(mean)
    left = spread.trace() - 2 * (matrix * cross).sum() + ((matrix @ spread) * matrix).sum()
    return max(0.0, float(left)) / moments.variance


def correlate(found: Steering, moments: Moments) -> tuple[Tensor, Tensor]:
    """Correlations `(R,)` of the directions of a fit, and their shares of the variance, in other pairs."""
    a = found.directions
    spread, cross = ((a * (matrix @ a)).sum(0) for matrix in (moments.spread, moments.cross))
    correlations = torch.where(spread > 0, cross / spread.clamp(min=torch.finfo(spread.dtype).tiny), 0.0)
    weights = spread * found.patterns.square().sum(0)
    return correlations.clamp(-1, 1), weights / weights.sum()


def require_enough(moments: Moments, layer: str) -> None:
    """Refuse features that fit by chance, are not finite, or never differ."""
    needed = PAIRS_PER_CHANNEL * moments.channels
    if moments.pairs < needed:
        raise UsageError(
            f"layer {layer!r} has {moments.channels} channels, and a steering matrix is fitted to {needed} pairs of"
            f" places at least, got {moments.pairs}: take {-(-needed // max(1, moments.pairs))} times as many images,"
            " or leave the layer out"
        )
    if not moments.mean.isfinite().all() or not moments.spread.isfinite().all():
        raise UsageError(f"features of layer {layer!r} are not finite: are the weights corrupted?")
    if moments.variance <= ROUNDING * float(moments.mean.square().sum()):
        raise UsageError(f"features of layer {layer!r} are the same for all images and places: nothing can be fitted")


def _live(moments: Moments) -> tuple[Tensor, Tensor]:
    """Variances `(R,)` and axes `(C, R)` of the directions in which features differ by more than rounding."""
    variances, axes = torch.linalg.eigh(moments.spread)
    live = variances > ROUNDING * (variances[-1] + moments.mean.square().sum())
    return variances[live], axes[:, live]
