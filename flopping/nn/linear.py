"""The linear layer: one matrix per irrep (Schur's lemma), so a fraction of the dense multiply-adds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flopping import functional
from flopping.features import Device, Dtype, Feature, Layout, is_symbolic
from flopping.functional.operation import recompute_in_backward
from flopping.groups.sums import combine
from flopping.nn.module import Module


class _Stacked(nn.Linear):
    """The maps of an irrep of complex or quaternionic type, stacked; their outputs are turned and added."""

    def __init__(self, m_in: int, m_out: int, degree: int, device: Device, dtype: Dtype) -> None:
        self.degree = degree
        super().__init__(m_in, degree * m_out, bias=False, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.weight /= self.degree**0.5  # the sum starts like one map


class Linear(Module):
    """All equivariant linear maps between two layouts; a bias on the trivial irrep only.

    A child `nn.Linear` named after the irrep maps its copies, whatever component they belong to. An irrep of
    complex type has two such matrices A and B, stacked, for the map A + B J.

    >>> from flopping import flop
    >>> layer = Linear(Layout.regular(flop, 8), Layout.regular(flop, 4))
    >>> even, odd = layer((torch.randn(3, 4), torch.randn(3, 4)))
    >>> even.shape, odd.shape, sorted(layer.state_dict())
    (torch.Size([3, 2]), torch.Size([3, 2]), ['even.bias', 'even.weight', 'odd.weight'])
    """

    in_layout: Layout
    out_layout: Layout

    def __init__(
        self, in_layout: Layout, out_layout: Layout, bias: bool = True, *, device: Device = None, dtype: Dtype = None
    ) -> None:
        super().__init__(in_layout, out_layout)
        irreps = in_layout.group.irreps
        self.names = tuple(irrep.name for irrep in irreps)
        self.degrees = tuple(irrep.type.degree for irrep in irreps)
        self.turns = tuple(irrep.turns for irrep in irreps)
        for i, (irrep, m_in, m_out) in enumerate(
            zip(irreps, in_layout.multiplicities, out_layout.multiplicities, strict=True)
        ):
            if m_in and m_out:
                degree = irrep.type.degree
                if degree == 1:
                    block = nn.Linear(m_in, m_out, bias=bias and i == 0, device=device, dtype=dtype)
                else:
                    block = _Stacked(m_in, m_out, degree, device, dtype)
                self.add_module(irrep.name, block)
        if not self._modules:
            raise ValueError(f"no irrep in common: {in_layout} -> {out_layout}")
        if bias and not hasattr(self, self.names[0]):
            raise ValueError(f"a bias needs {self.names[0]} channels on both sides, got {in_layout} -> {out_layout}")

    def forward(self, x: Feature) -> Feature:
        x = self.in_layout.parts(x, "Linear")
        if torch.compiler.is_compiling() or is_symbolic(x) or not torch.is_grad_enabled():
            return tuple([self._block(i, part) for i, part in enumerate(x)])
        with recompute_in_backward(x):
            return tuple([self._block(i, part) for i, part in enumerate(x)])

    def share(self, x: Feature, start: int, end: int, shares: int) -> Feature:
        """The outputs from share `start` to share `end`, of so many equal shares of the copies of each irrep.

        >>> layer = Linear(Layout.regular("flop", 4), Layout.regular("flop", 12), bias=False)
        >>> x = layer.in_layout.random(5)
        >>> [torch.allclose(some, part[:, 2:]) for some, part in zip(layer.share(x, 1, 3, shares=3), layer(x))]
        [True, True]
        """
        x = self.in_layout.parts(x, "Linear")
        return tuple([self._block(i, part, (start, end, shares)) for i, part in enumerate(x)])

    def _block(self, i: int, part: Tensor, share: tuple[int, int, int] = (0, 1, 1)) -> Tensor:
        start, end, shares = share
        m_out = self.out_layout.multiplicities[i] // shares * (end - start)
        if not m_out:
            return part.narrow(-1, 0, 0)
        if not self.in_layout.multiplicities[i]:
            return F.pad(part, (0, m_out))
        block = getattr(self, self.names[i])
        is_matrix = type(block) in (nn.Linear, _Stacked)
        if shares == 1:
            by_onednn = is_matrix and functional.is_for_onednn(part, block)
            out: Tensor = functional.onednn_linear(part, block.weight, block.bias) if by_onednn else block(part)
        elif is_matrix:
            rows = [self._rows(i, w, share) for w in (block.weight, block.bias) if w is not None]
            out = functional.linear(part, *rows)
        else:  # one that was put in its place, and may be no matrix
            out = self._rows(i, block(part).movedim(-1, 0), share).movedim(0, -1)
        return out if self.degrees[i] == 1 else self._turn(i, out)

    def _rows(self, i: int, whole: Tensor, share: tuple[int, int, int]) -> Tensor:
        start, end, shares = share
        rows: Tensor = whole.unflatten(0, (self.degrees[i], shares, -1)).narrow(1, start, end - start)
        return rows.flatten(0, 2)

    def _turn(self, i: int, stacked: Tensor) -> Tensor:
        """Sum of the stacked maps `(..., d, degree * m)`, each turned by its endomorphism."""
        degree, d = self.degrees[i], self.in_layout.irrep_dims[i]
        blocks = stacked.unflatten(-1, (degree, -1))
        terms = [blocks.select(-3, a).select(-2, k) for k in range(degree) for a in range(d)]
        return torch.stack(combine(terms, self.turns[i]), -2)

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """The ordinary layer on packed channels that does the same, at full cost."""
        reference = next(self.parameters())
        has_bias = getattr(self, self.names[0], None) is not None and getattr(self, self.names[0]).bias is not None
        dense = nn.Linear(
            self.in_layout.dim, self.out_layout.dim, bias=has_bias, device=reference.device, dtype=reference.dtype
        )
        blocks = []
        for i, irrep in enumerate(self.in_layout.group.irreps):
            m_in, m_out = self.in_layout.multiplicities[i], self.out_layout.multiplicities[i]
            if m_in and m_out:
                weights = getattr(self, irrep.name).weight.view(irrep.type.degree, m_out, m_in)
                turns = irrep.endomorphisms.to(weights)
                block = torch.einsum("kab,koi->aobi", turns, weights)
                blocks.append(block.reshape(irrep.dim * m_out, irrep.dim * m_in))
            else:
                blocks.append(reference.new_zeros(irrep.dim * m_out, irrep.dim * m_in))
        dense.weight.copy_(torch.block_diag(*blocks))
        if has_bias:
            bias = getattr(self, self.names[0]).bias
            dense.bias.copy_(F.pad(bias, (0, self.out_layout.dim - len(bias))))
        return dense
