"""What a probe finds: how well the mirror image foretells a layer's features, and which parts are even and odd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch

from flopping.probe.fit import best_ridge, error, measured, require_enough, steer, twice_error
from flopping.probe.moments import Moments

FORETOLD = 0.5
"""A direction counts as even or odd if at least this share of it is foretold by the mirror image: w² >= 1/2."""
EIGHTHS = 8
"""Shares of invariant channels in these steps make whole channels, and whole heads, in all networks of the paper."""


@dataclass(frozen=True)
class Shares:
    """How a whole is split into what is even, what is odd, and what the mirror image doesn't foretell."""

    even: float
    odd: float
    neither: float


@dataclass(frozen=True)
class Folds:
    """Pairs of a layer by what they are for: to fit, to choose the ridge, to test. No image is in two of them."""

    fit: Moments
    choose: Moments
    test: Moments


@dataclass(frozen=True)
class LayerReport:
    """A layer. Errors are shares of the variance of its features on images that the fit hasn't seen."""

    name: str
    channels: int
    live: int
    """Directions in which features differ: fewer than channels where some are dead or depend on others."""
    pairs: int
    """Pairs of places that the test had."""
    ridge: float
    error: float
    """What A f can't tell of the mirror image's features, for the A of least squares."""
    fit_error: float
    """The same on the images of the fit."""
    involution_error: float
    """The same for the nearest A with A A = I, as an equivariant layer has it."""
    identity_error: float
    """The same for A = I: how far the layer is from being invariant. 2 is what independent features have."""
    twice_error: float
    """How far A A is from I."""
    spectrum: tuple[tuple[float, float], ...]
    """The correlation of every direction with its mirror image, largest in the fit first, and its share of variance."""

    @cached_property
    def counts(self) -> Shares:
        """The split of directions, each of which counts the same."""
        found = _split([(w, 1.0) for w, _ in self.spectrum])
        return Shares(*(number / self.live for number in _parts(found)))

    @cached_property
    def variances(self) -> Shares:
        """The split of variance."""
        return _split(self.spectrum)

    @property
    def even(self) -> int:
        return round(self.counts.even * self.live)

    @property
    def odd(self) -> int:
        return round(self.counts.odd * self.live)

    @property
    def invariant_share(self) -> float:
        """The trace of A over its size: even minus odd, where each direction counts by its correlation w.

        A layout with the share s of invariant channels has (1 + s) / 2 even and (1 - s) / 2 odd ones, and a direction
        counts as (1 + w) / 2 even and (1 - w) / 2 odd. With w = 0, about which the mirror image says nothing, that is
        half of each: it needs a partner to become equivariant, and the two make one even and one odd channel.
        """
        return sum(w for w, _ in self.spectrum) / self.live

    def as_dict(self) -> dict[str, Any]:
        more = {"counts": asdict(self.counts), "variances": asdict(self.variances)}
        return {**asdict(self), **more, "even": self.even, "odd": self.odd, "invariant_share": self.invariant_share}


@dataclass(frozen=True)
class Report:
    """All layers of a network, in their order."""

    images: int
    layers: tuple[LayerReport, ...]

    @property
    def invariant_share(self) -> float:
        """The mean over the layers: our networks have one share for all of their blocks."""
        return sum(layer.invariant_share for layer in self.layers) / len(self.layers)

    @property
    def suggested_share(self) -> float:
        """The nearest eighth that our networks take; they have no fewer even channels than odd ones."""
        return max(0, round(EIGHTHS * self.invariant_share)) / EIGHTHS

    def mean(self, kind: str) -> Shares:
        """The mean split over the layers, of `counts` or `variances`."""
        found: list[Shares] = [getattr(layer, kind) for layer in self.layers]
        return Shares(*(sum(parts) / len(found) for parts in zip(*(_parts(s) for s in found), strict=True)))

    def verdict(self) -> str:
        """What the task seems to want, in a sentence."""
        counts, share = self.mean("counts"), self.invariant_share
        more = (
            ""
            if share > -0.5 / EIGHTHS
            else " (it has more odd directions than even ones, which no network of ours has)"
        )
        return (
            f"Of all directions, {counts.even:.0%} are even, {counts.odd:.0%} odd, and {counts.neither:.0%} are not"
            f" foretold by the mirror image. Each counted by its correlation, that is {(1 + share) / 2:.0%} even and"
            f" {(1 - share) / 2:.0%} odd: an equivariant network with invariant_share={self.suggested_share:g}{more}."
        )


def examine(name: str, folds: Folds) -> LayerReport:
    """Choose the ridge, fit to all images but those of the test, and test."""
    require_enough(folds.fit, name)
    fitted = folds.fit + folds.choose
    ridge = best_ridge(folds.fit, folds.choose)
    found = steer(fitted, ridge)
    matrix = found.matrix
    correlations, weights = measured(found, folds.test)
    one = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    return LayerReport(
        name=name,
        channels=fitted.channels,
        live=len(correlations),
        pairs=folds.test.pairs,
        ridge=ridge,
        error=error(matrix, found.mean, folds.test),
        fit_error=error(matrix, found.mean, fitted),
        involution_error=error(found.involution, found.mean, folds.test),
        identity_error=error(one, found.mean, folds.test),
        twice_error=twice_error(matrix, found.mean, folds.test),
        spectrum=tuple(zip(correlations.tolist(), weights.tolist(), strict=True)),
    )


def _split(weighted: Sequence[tuple[float, float]]) -> Shares:
    """Weights of correlations, by whether they are near 1, near -1, or neither.

    >>> _split([(1.0, 0.25), (-0.9, 0.25), (0.5, 0.5)])
    Shares(even=0.25, odd=0.25, neither=0.5)
    """
    even = sum(weight for w, weight in weighted if w > 0 and w * w >= FORETOLD)
    odd = sum(weight for w, weight in weighted if w < 0 and w * w >= FORETOLD)
    return Shares(even, odd, sum(weight for w, weight in weighted if w * w < FORETOLD))


def _parts(shares: Shares) -> tuple[float, float, float]:
    return shares.even, shares.odd, shares.neither
