"""What a probe finds: how well the mirror image predicts a layer's features, and which directions are even and odd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from flopping.lab.probe.fit import Moments, best_ridge, correlate, error_of, require_enough, steer

PREDICTED = 0.5
"""A direction is even or odd if the mirror image predicts at least this share of it: w² >= 1/2."""
EIGHTHS = 8
"""Shares of invariant channels in these steps make whole channels, and whole heads, in all networks of the paper."""


class Shares(NamedTuple):
    """How a whole splits into what is even, what is odd, and what the mirror image doesn't predict."""

    even: float
    odd: float
    neither: float


@dataclass(frozen=True)
class Folds:
    """Pairs of a layer by what they are for. No image is in two of them."""

    fit: Moments
    choose: Moments
    """For the choice of the ridge."""
    test: Moments


@dataclass(frozen=True)
class LayerReport:
    """A layer. Errors are shares of the variance of its features on images that the fit hasn't seen."""

    name: str
    channels: int
    live: int
    """Directions in which features differ: fewer than channels where some are dead or depend on others."""
    pairs: int
    """Pairs of places in the test."""
    ridge: float
    error: float
    """Error of A f, for the A of least squares."""
    involution_error: float
    """The same for the nearest A with A A = I, as an equivariant layer has it."""
    identity_error: float
    """The same for A = I: 0 if the layer is invariant, 2 if features of image and mirror image are independent."""
    spectrum: tuple[tuple[float, float], ...]
    """The correlation of every direction with its mirror image, largest in the fit first, and its share of variance."""

    @cached_property
    def counts(self) -> Shares:
        """The split of directions, each of which counts the same."""
        return Shares(*(number / self.live for number in _split([(w, 1.0) for w, _ in self.spectrum])))

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
        """The trace of A over its size: a direction counts as (1 + w) / 2 even and (1 - w) / 2 odd.

        A layout with the share s of invariant channels has (1 + s) / 2 even and (1 - s) / 2 odd ones.
        """
        return sum(w for w, _ in self.spectrum) / self.live

    def as_dict(self) -> dict[str, Any]:
        more = {"counts": self.counts._asdict(), "variances": self.variances._asdict()}
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

    @property
    def counts(self) -> Shares:
        """The mean split of directions over the layers."""
        return Shares(*(sum(parts) / len(self.layers) for parts in zip(*(x.counts for x in self.layers), strict=True)))

    def verdict(self) -> str:
        """The shares, and the network that they suggest."""
        counts, share = self.counts, self.invariant_share
        more = " (it has more odd directions than even ones, which no network of ours has)"
        return (
            f"Of all directions, {counts.even:.0%} are even, {counts.odd:.0%} odd, and {counts.neither:.0%} are not"
            f" predicted by the mirror image. Each counted by its correlation, that is {(1 + share) / 2:.0%} even and"
            f" {(1 - share) / 2:.0%} odd: an equivariant network with invariant_share={self.suggested_share:g}"
            f"{more if share <= -0.5 / EIGHTHS else ''}."
        )


def examine(name: str, folds: Folds) -> LayerReport:
    """Choose the ridge, fit to all images but those of the test, and test."""
    require_enough(folds.fit, name)
    fitted = folds.fit + folds.choose
    ridge = best_ridge(folds.fit, folds.choose)
    found = steer(fitted, ridge)
    correlations, weights = correlate(found, folds.test)
    identity = torch.eye(fitted.channels, dtype=torch.float64, device=found.mean.device)
    return LayerReport(
        name=name,
        channels=fitted.channels,
        live=len(correlations),
        pairs=folds.test.pairs,
        ridge=ridge,
        error=error_of(found.matrix, found.mean, folds.test),
        involution_error=error_of(found.involution, found.mean, folds.test),
        identity_error=error_of(identity, found.mean, folds.test),
        spectrum=tuple(zip(correlations.tolist(), weights.tolist(), strict=True)),
    )


def _split(weighted: Sequence[tuple[float, float]]) -> Shares:
    """Weights of correlations, by whether they are near 1, near -1, or neither.

    >>> _split([(1.0, 0.25), (-0.9, 0.25), (0.5, 0.5)])
    Shares(even=0.25, odd=0.25, neither=0.5)
    """
    even = sum(weight for w, weight in weighted if w > 0 and w * w >= PREDICTED)
    odd = sum(weight for w, weight in weighted if w < 0 and w * w >= PREDICTED)
    return Shares(even, odd, sum(weight for w, weight in weighted if w * w < PREDICTED))
