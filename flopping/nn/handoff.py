"""Layers that end an equivariant segment: hand-offs to ordinary or invariant features or a subgroup, and the head.

The law differs from layer to layer and stands in each docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.groups import Group, get_group, trivial
from flopping.groups.sums import combine, sums_of
from flopping.nn.drop import probability
from flopping.nn.invariants import AbsToInvariant, MaxFilter, Polynomials
from flopping.nn.module import Module


class ToRegular(Module):
    """Hybrid hand-off: back to the regular basis, where ordinary blocks may follow.

    The result is one part of the trivial group: for flop [(e + o)/sqrt 2 | (e - o)/sqrt 2]. The law: a group
    element permutes the blocks of the result; what follows need not respect that.

    >>> from flopping import flop
    >>> layer = ToRegular(Layout.regular(flop, 4))
    >>> (x,) = layer((torch.ones(1, 2), torch.zeros(1, 2)))
    >>> tuple(x.shape), layer.out_layout
    ((1, 4), Layout(trivial, even=4))
    """

    in_layout: Layout

    def __init__(self, layout: Layout) -> None:
        layout.require_regular("ToRegular")
        super().__init__(layout, Layout.regular(trivial, layout.dim))

    def _check_group_change(self, in_layout: Layout, out_layout: Layout) -> None:
        """It gives up the group on purpose."""

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "ToRegular")
        values, extra = functional.to_regular(x, self.in_layout)
        return (torch.cat([*values, extra] if self.in_layout.extra else values, -1),)


class Concat(Module):
    """Hybrid hand-off without a change of basis: the channels of all irreps side by side, as octic-vits has it.

    The result is one part of the trivial group, ordered as `functional.slots`. The law: a group element acts on the
    result by its irreps; what follows need not respect that.

    >>> layer = Concat(Layout.regular("octic", 16))
    >>> layer.out_layout, [tuple(part.shape) for part in layer(layer.in_layout.random(5))]
    (Layout(trivial, even=16), [(5, 16)])
    """

    in_layout: Layout

    def __init__(self, layout: Layout) -> None:
        layout.require_regular("Concat")
        super().__init__(layout, Layout.regular(trivial, layout.dim))

    def _check_group_change(self, in_layout: Layout, out_layout: Layout) -> None:
        """It gives up the group on purpose."""

    def forward(self, x: Feature) -> Feature:
        return (torch.cat(functional.slots(self.in_layout.parts(x, "Concat"), self.in_layout), -1),)


InvariantKind = Literal["linear", "power_spectrum", "max_filtering", "polynomial"]


class ToInvariant(Module):
    """Invariant hand-off: invariants of a feature, mapped to `dim` channels by one linear layer.

    `invariants` says which: "linear" keeps the trivial irrep and drops the rest, "power_spectrum" takes the length of
    every copy (`AbsToInvariant`), "max_filtering" the best match with twice as many references as there are channels
    (`MaxFilter`), "polynomial" polynomials of degree 5 at most (`Polynomials`).

    The law: the result does not change under the group, apart from its places.

    >>> from flopping import flop
    >>> layer = ToInvariant(Layout.regular(flop, 4))
    >>> [tuple(part.shape) for part in layer((torch.ones(1, 2), torch.ones(1, 2)))], layer.out_layout
    ([(1, 4), (1, 0)], Layout(flop, even=4, odd=0))
    """

    in_layout: Layout

    def __init__(
        self,
        layout: Layout,
        dim: int | None = None,
        bias: bool = True,
        *,
        invariants: InvariantKind = "linear",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        dim = layout.dim if dim is None else dim
        super().__init__(layout, Layout.invariant(layout.group, dim))
        layers: dict[str, Callable[[], AbsToInvariant | MaxFilter | Polynomials]] = {
            "power_spectrum": lambda: AbsToInvariant(layout),
            "max_filtering": lambda: MaxFilter(layout, device=device, dtype=dtype),
            "polynomial": lambda: Polynomials(layout),
        }
        if invariants != "linear" and invariants not in layers:
            raise ValueError(f"invariants are one of linear, {', '.join(layers)}, got {invariants!r}")
        width = layout.multiplicities[0]
        self.invariants: nn.Module | None = None
        if invariants in layers:
            found = layers[invariants]()
            self.invariants, width = found, found.out_layout.dim
        self.linear = nn.Linear(width, dim, bias=bias, device=device, dtype=dtype)

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "ToInvariant")
        even, *none = functional.invariant_only(x if self.invariants is None else self.invariants(x))
        return self.linear(even), *none


class Restrict(Module):
    """Restriction to a subgroup: the same values, sorted by what each irrep becomes on the subgroup.

    The law: for every h of the subgroup, acting before (as an element of the large group) equals acting
    after. No channel is lost: a regular layout stays regular.

    >>> from flopping import flop, octic
    >>> Restrict(Layout.regular(octic, 16), flop).out_layout
    Layout(flop, even=8, odd=8)
    """

    in_layout: Layout

    def __init__(self, layout: Layout, subgroup: str | Group) -> None:
        subgroup = get_group(subgroup)
        self.pieces = layout.group.restriction(subgroup)
        found = [
            sum(r[j] * m for (r, _), m in zip(self.pieces, layout.multiplicities, strict=True))
            for j in range(len(subgroup.irreps))
        ]
        super().__init__(layout, Layout(subgroup, tuple(found)))
        self.sub_dims = tuple(irrep.dim for irrep in subgroup.irreps)
        # coordinates (irrep, component, copy) of the subgroup, as sums over the components
        self.columns = [sums_of(list(zip(*basis, strict=True))) for _, basis in self.pieces]

    def _check_group_change(self, in_layout: Layout, out_layout: Layout) -> None:
        """The restriction was found, so it is a subgroup."""

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Restrict")
        copies: list[list[list[Tensor]]] = [[[] for _ in range(d)] for d in self.sub_dims]  # [irrep][component]
        for i, (multiplicities, _) in enumerate(self.pieces):
            d = self.in_layout.irrep_dims[i]
            terms = [x[i]] if d == 1 else [x[i].select(-2, a) for a in range(d)]
            columns = iter(combine(terms, self.columns[i]))
            for j, r in enumerate(multiplicities):
                for b in range(self.sub_dims[j] if r else 0):
                    copies[j][b] += [next(columns) for _ in range(r)]
        parts = []
        for components in copies:
            joined = [torch.cat(found, -1) for found in components]
            parts.append(joined[0] if len(joined) == 1 else torch.stack(joined, -2))
        return tuple(parts)


class InvariantHead(Module):
    """One ordinary linear layer on the pooled trivial irrep: logits that the group doesn't change.

    `pool` is "avg" (mean over all places after `num_prefix_tokens`), "token" (the first one) or None for a
    feature that has been pooled. `num_classes=0` gives the pooled features themselves.

    >>> from flopping import flop
    >>> layout = Layout.regular(flop, 8)
    >>> tuple(InvariantHead(layout, num_classes=10)(layout.random(2, 5)).shape)
    (2, 10)
    """

    in_layout: Layout

    def __init__(
        self,
        layout: Layout,
        num_classes: int,
        pool: Literal["avg", "token"] | None = "avg",
        *,
        num_prefix_tokens: int = 0,
        drop: float = 0.0,
        bias: bool = True,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__(layout, None)
        width = layout.multiplicities[0]
        if pool not in ("avg", "token", None):
            raise ValueError(f"pool is 'avg', 'token' or None, got {pool!r}")
        if not width:
            raise ValueError(f"a head needs {layout.group.irreps[0].name} channels, got {layout}")
        if num_prefix_tokens < 0 or (num_prefix_tokens and pool != "avg"):
            raise ValueError(f"num_prefix_tokens belongs to pool='avg', got {num_prefix_tokens} with pool={pool!r}")
        if num_classes < 0:
            raise ValueError(f"num_classes is at least 0, got {num_classes}")
        self.pool = pool
        self.num_prefix_tokens = num_prefix_tokens
        self.drop = nn.Dropout(probability(drop))
        self.linear = (
            nn.Linear(width, num_classes, bias=bias, device=device, dtype=dtype) if num_classes else nn.Identity()
        )

    def forward(self, x: Feature) -> Tensor:
        even = self.in_layout.parts(x, "InvariantHead")[0]
        if not is_symbolic(even) and self.pool is not None:
            self._check(even)
        if self.pool == "avg":
            even = even.flatten(1, -2)[:, self.num_prefix_tokens :].mean(1)
        elif self.pool == "token":
            even = even[:, 0]
        logits: Tensor = self.linear(self.drop(even))
        return logits

    def _check(self, even: Tensor) -> None:
        maps = self.pool == "avg" and not self.num_prefix_tokens
        if even.dim() != 3 and not (even.dim() == 4 and maps):
            kinds = "tokens (B, N) or maps (B, H, W)" if maps else "tokens (B, N)"
            raise ValueError(f"InvariantHead with pool={self.pool!r} takes {kinds}, got {tuple(even.shape)}")
        if even.shape[1] <= self.num_prefix_tokens:
            raise ValueError(f"no token is left after {self.num_prefix_tokens} prefix tokens, got {even.shape[1]}")
