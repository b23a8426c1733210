"""Normalisation and scaling: weights per channel copy on every irrep, shifts on the trivial one only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flopping import functional
from flopping.features import Feature, Layout
from flopping.nn.module import Module


class _PerCopy(Module):
    """A layer that keeps its layout and owns one number per copy of each irrep."""

    in_layout: Layout
    out_layout: Layout

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, layout)
        self.names = tuple(irrep.name for irrep, m in zip(layout.group.irreps, layout.multiplicities, strict=True) if m)

    def _per_copy(self, value: float, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.ParameterDict:
        used = [m for m in self.in_layout.multiplicities if m]
        return nn.ParameterDict(
            {
                name: nn.Parameter(torch.full((m,), value, device=device, dtype=dtype))
                for name, m in zip(self.names, used, strict=True)
            }
        )

    def _shift(self, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
        return nn.Parameter(torch.zeros(self.in_layout.multiplicities[0], device=device, dtype=dtype))

    def _scaled(self, x: Feature, weight: nn.ParameterDict) -> list[Tensor]:
        irreps = self.in_layout.group.irreps
        return [p * weight[i.name] if i.name in self.names else p for p, i in zip(x, irreps, strict=True)]

    def extra_repr(self) -> str:
        return str(self.in_layout)


class LayerNorm(_PerCopy):
    """Mean removed within each part, one joint variance over all parts, scale per copy, shift on even.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> even, odd = LayerNorm(layout)(layout.random(5))
    >>> bool(torch.allclose((even.var(-1, correction=0) + odd.var(-1, correction=0)) / 2, torch.ones(5), atol=1e-3))
    True
    """

    def __init__(
        self,
        layout: Layout,
        eps: float = 1e-6,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(layout)
        self.eps = eps
        self.weight = self._per_copy(1.0, device, dtype)
        self.bias = self._shift(device, dtype)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "LayerNorm")
        return functional.layer_norm(x, self.in_layout, [self.weight[n] for n in self.names], self.bias, self.eps)


class Affine(_PerCopy):
    """Scale every copy, shift the trivial irrep (ResMLP's replacement of a norm).

    >>> from flopping import flop
    >>> sorted(Affine(Layout.regular(flop, 8)).state_dict())
    ['alpha.even', 'alpha.odd', 'beta']
    """

    def __init__(
        self,
        layout: Layout,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(layout)
        self.alpha = self._per_copy(1.0, device, dtype)
        self.beta = self._shift(device, dtype)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Affine")
        even, *others = self._scaled(x, self.alpha)
        return even + self.beta, *others


class LayerScale(_PerCopy):
    """Scale every copy, from a small start.

    >>> from flopping import flop
    >>> even, odd = LayerScale(Layout.regular(flop, 4), 0.5)((torch.ones(1, 2), torch.ones(1, 2)))
    >>> odd.tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self,
        layout: Layout,
        init_value: float = 1e-4,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(layout)
        self.gamma = self._per_copy(init_value, device, dtype)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "LayerScale")
        return tuple(self._scaled(x, self.gamma))
