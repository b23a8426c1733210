"""What is kept of features and their mirror images: a mean and two matrices, however many there are.

N pairs, C channels. A pair is the feature `f` at a place of an image, and the feature `g` at the mirrored place of the
mirrored image. An image and its mirror image may trade their roles, so every pair counts in both orders, (f, g) and
(g, f). Then all second moments follow from those of two combinations that don't correlate:

    u = (f + g) / sqrt 2    stays when f and g trade places    U = cov(u) = S + X
    v = (f - g) / sqrt 2    changes its sign                   V = cov(v) = S - X

where S is the covariance of a feature, and X that of a feature with its mirror image; both are symmetric matrices. All
is measured around the mean of all features, mirrored ones among them. That mean stays when f and g trade places, so v
has mean 0: if features of images and of mirror images differ on average, that is part of V.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor


class Moments:
    """Number, mean and second moments of pairs, added batch by batch in float64.

    Deviations are taken from the mean of their own batch before batches are put together, so a mean that is large
    beside the deviations costs no digits.

    >>> f, g = torch.randn(2, 100, 3, dtype=torch.float64).unbind()
    >>> moments = Moments(3).add(f[:60], g[:60]).add(f[60:], g[60:])
    >>> both = torch.cat((f, g))
    >>> bool(torch.allclose(moments.spread, both.T.cov(correction=0))), moments.pairs
    (True, 100)
    """

    def __init__(self, channels: int, device: torch.device | str = "cpu") -> None:
        self.channels, self.pairs = channels, 0
        self.mean = torch.zeros(channels, dtype=torch.float64, device=device)
        self._even = torch.zeros(
            channels, channels, dtype=torch.float64, device=device
        )  # sums of u uᵀ, around the mean
        self._odd = torch.zeros_like(self._even)  # sums of v vᵀ

    def add(self, f: Tensor, g: Tensor) -> Moments:
        """Count features `(N, C)` and their mirror images."""
        if f.shape != g.shape or f.dim() != 2 or f.shape[1] != self.channels:
            raise ValueError(f"pairs are two tensors (N, {self.channels}), got {tuple(f.shape)} and {tuple(g.shape)}")
        if not len(f):
            return self
        f, g = f.double(), g.double()
        u, v = (f + g) / sqrt(2), (f - g) / sqrt(2)
        mean = u.mean(0)
        u = u - mean
        self._join(len(f), mean / sqrt(2), u.T @ u, v.T @ v)
        return self

    def __add__(self, other: Moments) -> Moments:
        """The moments of both together, as if all pairs had been added to one."""
        if other.channels != self.channels:
            raise ValueError(f"moments of {self.channels} and of {other.channels} channels can't be added")
        both = Moments(self.channels, self.mean.device)
        for part in (self, other):
            both._join(part.pairs, part.mean, part._even, part._odd)
        return both

    def _join(self, pairs: int, mean: Tensor, even: Tensor, odd: Tensor) -> None:
        if not pairs:
            return
        total = self.pairs + pairs
        step = sqrt(2) * (mean - self.mean)  # between the means of u
        self._even += even + torch.outer(step, step) * (self.pairs * pairs / total)
        self._odd += odd
        self.mean = self.mean + (mean - self.mean) * (pairs / total)
        self.pairs = total

    @property
    def spread(self) -> Tensor:
        """S: the covariance of features, mirrored ones among them."""
        return (self._even + self._odd) / (2 * self.pairs)

    @property
    def cross(self) -> Tensor:
        """X: the covariance of features with their mirror images, in both orders."""
        return (self._even - self._odd) / (2 * self.pairs)

    @property
    def variance(self) -> float:
        """The mean squared distance of a feature from the mean: the trace of S."""
        return float(self.spread.trace())

    def around(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """S and X with deviations from another mean."""
        step = self.mean - mean
        shift = torch.outer(step, step)
        return self.spread + shift, self.cross + shift
