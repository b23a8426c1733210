"""Normalisation and scaling: weights per channel copy on every irrep, shifts on the trivial one only."""

from __future__ import annotations

import torch
from torch import nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout
from flopping.nn.module import Module


class _PerCopy(Module):
    """A layer that owns one number per copy of each irrep of its result."""

    in_layout: Layout
    out_layout: Layout

    def __init__(self, layout: Layout, out_layout: Layout | None = None) -> None:
        super().__init__(layout, out_layout or layout)
        irreps, counts = layout.group.irreps, self.out_layout.multiplicities
        self.names = tuple(irrep.name for irrep, m in zip(irreps, counts, strict=True) if m)

    def _per_copy(self, device: Device, dtype: Dtype) -> nn.ParameterDict:
        used = [m for m in self.out_layout.multiplicities if m]
        return nn.ParameterDict(
            {n: nn.Parameter(torch.empty(m, device=device, dtype=dtype)) for n, m in zip(self.names, used, strict=True)}
        )

    def _shift(self, device: Device, dtype: Dtype) -> nn.Parameter:
        return nn.Parameter(torch.empty(self.in_layout.multiplicities[0], device=device, dtype=dtype))

    def extra_repr(self) -> str:
        return str(self.in_layout)


class LayerNorm(_PerCopy):
    """Mean removed within each part, one joint variance over all parts, scale per copy, shift on even.

    With `invariant_only`, for a norm before a head, the variance is that of all parts, but the result has only the
    trivial irrep. So nothing superfluous is computed, and every parameter gets a gradient.

    With `by_irrep` the variance is the mean of the irreps' own variances, so a 2-dimensional irrep counts like a
    1-dimensional one, not four times as much. octic-vits was trained so, and weights can't absorb the difference.
    Where all parts have as many channels, as for flop with equal shares, it is the joint variance.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> even, odd = LayerNorm(layout)(layout.random(5))
    >>> bool(torch.allclose((even.var(-1, correction=0) + odd.var(-1, correction=0)) / 2, torch.ones(5), atol=1e-3))
    True
    >>> LayerNorm(layout, invariant_only=True).out_layout
    Layout(flop, even=4, odd=0)
    """

    def __init__(
        self,
        layout: Layout,
        eps: float = 1e-6,
        *,
        invariant_only: bool = False,
        by_irrep: bool = False,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(layout, layout.invariant_part if invariant_only else layout)
        self.eps = eps
        self.invariant_only = invariant_only
        self.by_irrep = by_irrep
        self.weight: nn.ParameterDict | None = self._per_copy(device, dtype)
        self.bias: nn.Parameter | None = self._shift(device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.weight or {}).values():
            nn.init.ones_(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "LayerNorm")
        weight = None if self.weight is None else [self.weight[name] for name in self.names]
        return functional.layer_norm(x, self.in_layout, weight, self.bias, self.eps, self.invariant_only, self.by_irrep)


class Affine(_PerCopy):
    """Scale every copy, shift the trivial irrep (ResMLP's replacement of a norm).

    >>> from flopping import flop
    >>> sorted(Affine(Layout.regular(flop, 8)).state_dict())
    ['alpha.even', 'alpha.odd', 'beta']
    """

    def __init__(self, layout: Layout, *, device: Device = None, dtype: Dtype = None) -> None:
        super().__init__(layout)
        self.alpha = self._per_copy(device, dtype)
        self.beta = self._shift(device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for alpha in self.alpha.values():
            nn.init.ones_(alpha)
        nn.init.zeros_(self.beta)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Affine")
        irreps = self.in_layout.group.irreps
        even, *others = [self.alpha[irrep.name] if irrep.name in self.names else None for irrep in irreps]
        shifted = x[0] if even is None else torch.addcmul(self.beta, x[0], even)
        return shifted, *[part if a is None else part * a for part, a in zip(x[1:], others, strict=True)]


class LayerScale(_PerCopy):
    """Scale every copy, from a small start. Called with a second feature, the result is added to that.

    >>> from flopping import flop
    >>> even, odd = LayerScale(Layout.regular(flop, 4), 0.5)((torch.ones(1, 2), torch.ones(1, 2)))
    >>> odd.tolist()
    [[0.5, 0.5]]
    """

    def __init__(
        self, layout: Layout, init_values: float = 1e-5, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        super().__init__(layout)
        self.init_values = init_values
        self.gamma = self._per_copy(device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for gamma in self.gamma.values():
            nn.init.constant_(gamma, self.init_values)

    def forward(self, x: Feature, onto: Feature | None = None) -> Feature:
        """The scaled feature, added to another one if that is given."""
        x = self.in_layout.parts(x, "LayerScale")
        names = [irrep.name for irrep in self.in_layout.group.irreps]
        gamma = [self.gamma[name] if name in self.names else None for name in names]
        if isinstance(onto, tuple):  # torch.fx hands its own values to arguments that have a default
            return functional.residual(onto, x, self.in_layout, gamma)
        return tuple([part if g is None else part * g for part, g in zip(x, gamma, strict=True)])


def layer_scale(layout: Layout, init_values: float | None, *, device: Device = None, dtype: Dtype = None) -> nn.Module:
    """A layer scale, or the identity if its initial value is None or 0.

    >>> layer_scale(Layout.regular("flop", 4), None)
    Identity()
    """
    if not init_values:
        return nn.Identity()
    return LayerScale(layout, init_values, device=device, dtype=dtype)


def add_branch(x: Feature, branch: Feature, layout: Layout, scale: nn.Module) -> Feature:
    """x + scale(branch), for a branch of a layout; `scale` is what `layer_scale` gave."""
    if isinstance(scale, LayerScale):
        out: Feature = scale(branch, x)
        return out
    return functional.residual(x, scale(branch), layout)
