"""The steering matrix of a layer: the matrix A that turns features into those of the mirror image.

C channels, R live directions. The law of an equivariant layer is g = A f for all pairs (see `moments`), with A A = I,
because mirroring twice changes nothing. For any layer, the matrix of least squares minimises

    E |g - A f|² + E |f - A g|²  =  2 tr(S - 2 A X + A S Aᵀ),    and is    A = X S⁻¹.

On whitened features, S^(-1/2) f, it is the symmetric matrix M = S^(-1/2) X S^(-1/2). U = S + X and V = S - X are
covariances, so neither has negative eigenvalues, and -1 <= M <= 1: A, which is similar to M, has real eigenvalues
between -1 and 1 and a full set of eigenvectors. For an eigenvector q of M with eigenvalue w,

    a = S^(-1/2) q reads one number off a feature, with variance aᵀ S a = 1; numbers of different q don't correlate;
    r = S^(1/2) q is what that number stands for: A r = w r, and f = mean + sum of (aᵀ f) r. So the variance of f
        falls apart into the |r|²;
    w = aᵀ X a / aᵀ S a = (aᵀ U a - aᵀ V a) / (aᵀ U a + aᵀ V a) is the correlation of that number for an image with
        that for its mirror image: 1 if it never changes (even), -1 if it changes its sign (odd), and 0 if the mirror
        image says nothing about it. 1 - w² is the share of it that A f can't tell.

So the error of A is the sum of (1 - w²) |r|², and A A = I just where every w is 1 or -1. The trace of A is the number
of even directions minus that of odd ones. Of all matrices with A A = I that are orthogonal on whitened features, the
nearest to M, and the best fit there, has the signs of the w in place of the w (`Steering.involution`).

Features of few images fit by chance. Two things keep that out of the result: a ridge, S + ridge in place of S, that is
chosen on images of its own; and that errors and correlations are measured on images that the fit hasn't seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flopping.probe.moments import Moments

RIDGES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""What is tried, in shares of the mean variance of live directions."""
ROUNDING = 1e-10
"""Directions with a smaller share of the squared size of features are rounding errors of float32, with a margin."""
PAIRS_PER_CHANNEL = 2
"""Fewer pairs than this fit by chance, whatever the ridge."""


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
        """The nearest matrix whose square is 1, on live directions."""
        signs = torch.where(self.correlations < 0, -1.0, 1.0)
        return (self.patterns * signs) @ self.directions.T


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
    correlations, vectors = torch.linalg.eigh(_symmetric(whiten.T @ moments.cross @ whiten))
    correlations, vectors = correlations.flip(0).clamp(-1, 1), vectors.flip(1)
    return Steering(moments.mean, correlations, whiten @ vectors, (axes * scales) @ vectors)


def best_ridge(fit: Moments, other: Moments) -> float:
    """The ridge of `RIDGES` with which a fit to some pairs has the smallest error on others.

    In the basis of the eigenvectors of S, each ridge costs C² operations.
    """
    variances, axes = _live(fit)
    cross = axes.T @ fit.cross @ axes
    square = cross @ cross
    their_spread, their_cross = (axes.T @ matrix @ axes for matrix in other.around(fit.mean))
    errors = []
    for ridge in RIDGES:
        inverse = 1 / (variances + ridge * variances.mean())
        hit = (cross * their_cross.T * inverse).sum()  # tr(A X)
        size = (square * their_spread.T * inverse * inverse[:, None]).sum()  # tr(A S Aᵀ)
        errors.append(float(size - 2 * hit))
    return RIDGES[errors.index(min(errors))]


def error(matrix: Tensor, mean: Tensor, moments: Moments) -> float:
    """E |g - A f|² as a share of the variance of features: 0 if A tells all, 1 if it tells as much as the mean.

    `matrix` acts on deviations from `mean`.

    >>> f = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    >>> even = Moments(2).add(f, f)
    >>> one = torch.eye(2, dtype=torch.float64)
    >>> [round(error(factor * one, even.mean, even), 6) for factor in (1, 0, -1)]
    [0.0, 1.0, 4.0]
    """
    spread, cross = moments.around(mean)
    left = spread.trace() - 2 * (matrix * cross).sum() + ((matrix @ spread) * matrix).sum()
    return max(0.0, float(left)) / moments.variance


def twice_error(matrix: Tensor, mean: Tensor, moments: Moments) -> float:
    """E |A A f - f|² as a share of the variance of features: how far A A is from 1 where features are."""
    spread, _ = moments.around(mean)
    left = matrix @ matrix - torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return float(((left @ spread) * left).sum()) / moments.variance


def measured(found: Steering, moments: Moments) -> tuple[Tensor, Tensor]:
    """Correlations `(R,)` of the directions of a fit, and their shares of the variance, in other pairs."""
    spread, cross = (
        (found.directions * (matrix @ found.directions)).sum(0) for matrix in (moments.spread, moments.cross)
    )
    correlations = torch.where(spread > 0, cross / spread.clamp(min=torch.finfo(spread.dtype).tiny), 0.0)
    weights = spread * found.patterns.square().sum(0)
    return correlations.clamp(-1, 1), weights / weights.sum()


def require_enough(moments: Moments, layer: str) -> None:
    """Refuse to fit what fits by chance, or has nothing to fit."""
    needed = PAIRS_PER_CHANNEL * moments.channels
    if moments.pairs < needed:
        raise ValueError(
            f"layer {layer!r} has {moments.channels} channels, and a steering matrix is fitted to {needed} pairs of"
            f" places at least, got {moments.pairs}: take {-(-needed // max(1, moments.pairs))} times as many images,"
            " or leave the layer out"
        )
    if not moments.mean.isfinite().all() or not moments.spread.isfinite().all():
        raise ValueError(f"features of layer {layer!r} are not finite: is this network whole?")
    if moments.variance <= ROUNDING * float(moments.mean.square().sum()):
        raise ValueError(f"layer {layer!r} says the same of all images and places: there is nothing to fit")


def _live(moments: Moments) -> tuple[Tensor, Tensor]:
    """Variances `(R,)` and axes `(C, R)` of the directions in which features differ by more than rounding."""
    variances, axes = torch.linalg.eigh(_symmetric(moments.spread))
    size = variances[-1] + moments.mean.square().sum()
    live = variances > ROUNDING * size
    return variances[live], axes[:, live]


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2
