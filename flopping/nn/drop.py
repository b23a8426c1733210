"""Random drops, the same for all components of a copy or all parts of a sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flopping.features import Feature, Layout
from flopping.nn.module import Module


def probability(p: float) -> float:
    """Check that a drop probability is at least 0 and below 1."""
    if not 0 <= p < 1:
        raise ValueError(f"a drop probability is at least 0 and below 1, got {p}")
    return p


class Dropout(Module):
    """Zero single copies at random, each with all of its components.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> x = layout.random(5)
    >>> all(a is b for a, b in zip(Dropout(layout, 0.5).eval()(x), x))
    True
    """

    in_layout: Layout

    def __init__(self, layout: Layout, p: float = 0.5) -> None:
        super().__init__(layout, layout)
        self.p = probability(p)

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Dropout")
        if not self.training or not self.p:
            return x
        return tuple([self._drop(part, d) for part, d in zip(x, self.in_layout.irrep_dims, strict=True)])

    def _drop(self, part: Tensor, d: int) -> Tensor:
        if d == 1:
            return F.dropout(part, self.p)
        return part * F.dropout(torch.ones_like(part.narrow(-2, 0, 1)), self.p)


class DropPath(Module):
    """Zero whole samples of a residual branch at random, one mask for all parts (stochastic depth).

    >>> from flopping import flop
    >>> even, odd = DropPath(Layout(flop, (2, 3)), 0.5)((torch.ones(64, 2), torch.ones(64, 3)))
    >>> bool((even[:, 0] == odd[:, 0]).all()), sorted(set(even.flatten().tolist()))
    (True, [0.0, 2.0])
    """

    in_layout: Layout

    def __init__(self, layout: Layout, drop_prob: float = 0.0, scale_by_keep: bool = True) -> None:
        super().__init__(layout, layout)
        self.drop_prob = probability(drop_prob)
        self.scale_by_keep = scale_by_keep

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob}"

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "DropPath")
        if not self.training or not self.drop_prob:
            return x
        keep = 1 - self.drop_prob
        mask_B1 = torch.bernoulli(x[0].new_full((x[0].shape[0], 1), keep))
        if self.scale_by_keep:
            mask_B1 = mask_B1 / keep
        return tuple((part.flatten(1) * mask_B1).view_as(part) for part in x)
