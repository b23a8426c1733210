"""Real representations of any finite group: irreps, decomposition, intertwiners, and what they save.

A layer that commutes with a group is a change of basis around a block-diagonal matrix (Maschke and
Schur). This file finds that basis numerically for a group given by its multiplication table.

Shapes: G group order, N dimension of a representation, D dimension of an irrep, M copies of it, E = 1, 2 or 4
dimension of its endomorphism algebra. A representation is a stack (G, N, N). All numbers are float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from flopping.groups.characters import (
    TOLERANCE,
    SchurType,
    character_table,
    class_sizes,
    eye,
    frobenius_schur,
    identity_of,
    inverses,
    matrix_stack,
    normal,
    round_to_halves,
    seeded,
)

# --- real irreps -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RealIrrep:
    """An orthogonal irrep over the reals, and the algebra that commutes with it.

    `endomorphisms` are orthogonal matrices: 1; then J with J^T = -J, J^2 = -1 for the complex type; then
    i, j, k = ij, which anticommute and square to -1, for the quaternionic type.

    >>> real_irreps(torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]))[1].endomorphisms.shape
    torch.Size([2, 2, 2])
    """

    matrices: Tensor  # (G, D, D)
    type: SchurType
    endomorphisms: Tensor  # (E, D, D)

    def __post_init__(self) -> None:
        kind, units = schur_type(self.matrices), self.endomorphisms
        shape = (kind.degree, self.dim, self.dim)
        _check_orthogonal(self.matrices)
        if kind is not self.type or units.shape != shape:
            given = f"{self.type.value}, endomorphisms {tuple(units.shape)}"
            raise ValueError(f"these matrices are of {kind.value} type, endomorphisms {shape}, got {given}")
        drift = float((self.matrices[:, None] @ units - units @ self.matrices[:, None]).abs().max())
        if drift > TOLERANCE:
            raise ValueError(f"endomorphisms must commute with the irrep, they are {drift:.3g} off")

    @property
    def dim(self) -> int:
        """D."""
        return self.matrices.shape[-1]


def schur_type(matrices: Tensor) -> SchurType:
    """The type of a real irrep (G, D, D): mean_g chi(g)^2 = E. Raises ValueError if it is reducible.

    E alone doesn't tell: two different real irreps side by side have a commutant of dimension 2 as well.
    But a representation is irreducible iff only multiples of 1 are symmetric among what commutes with it.

    >>> from flopping.groups.characters import close
    >>> schur_type(close([torch.tensor([[0.0, -1.0], [1.0, 0.0]])])).value  # a quarter turn
    'complex'
    """
    matrices = matrix_stack(matrices, "matrices")
    commutant = float(_character(matrices).square().mean())
    symmetric = (commutant + float(_character(matrices @ matrices).mean())) / 2
    for kind in SchurType:
        if abs(commutant - kind.degree) < TOLERANCE and abs(symmetric - 1) < TOLERANCE:
            return kind
    raise ValueError(
        f"not irreducible: a space of dimension {commutant:.6g} commutes with it, {symmetric:.6g} of it "
        "symmetric; an irrep has 1, 2 or 4, of which 1 symmetric"
    )


def endomorphisms(matrices: Tensor) -> Tensor:
    """What commutes with an orthogonal irrep (G, D, D): (E, D, D), as described at `RealIrrep`.

    >>> from flopping.groups.characters import close
    >>> one, j = endomorphisms(close([torch.tensor([[0.0, -1.0], [1.0, 0.0]])]))
    >>> torch.allclose(j @ j, -one)
    True
    """
    matrices = matrix_stack(matrices, "matrices")
    kind, dim, generator = schur_type(matrices), matrices.shape[-1], seeded()
    _check_orthogonal(matrices)
    found = [eye(dim)]
    for _ in range(kind.degree // 2):  # none, J, or i and j: an orthonormal set of imaginary units
        draw = normal(generator, dim, dim)
        unit = (matrices @ (draw - draw.T) @ matrices.mT).mean(0)
        for other in found[1:]:
            unit = unit - other * (other * unit).sum() / dim
        found.append(unit * math.sqrt(dim) / unit.norm())
    if kind is SchurType.QUATERNIONIC:
        found.append(found[1] @ found[2])
    return round_to_halves(torch.stack(found))


def real_irreps(table: Tensor) -> tuple[RealIrrep, ...]:
    """All real irreps, the trivial one first, then by dimension: sum_i D_i^2 / E_i = G.

    Each is cut out of the regular representation, in a basis (unit of the algebra, component) that makes
    its endomorphisms unit kron 1_{D/E}: J = [[0, -1], [1, 0]] kron 1 for the complex type.

    >>> [(r.dim, r.type.value) for r in real_irreps(torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]))]
    [(1, 'real'), (2, 'complex')]
    """
    inverse, order, generator = inverses(table), len(table), seeded()
    _, class_of = class_sizes(table)
    irreps = []
    for chi in character_table(table):
        kind, degree = frobenius_schur(table, chi), round(float(chi[0].real))
        tilted = chi.imag[chi.imag.abs() > TOLERANCE]
        if len(tilted) and tilted[0] < 0:
            continue  # conj(chi) belongs to the same real irrep
        double = 2 if kind is SchurType.COMPLEX else 1
        dim = degree if kind is SchurType.REAL else 2 * degree
        # Left translations span the projection onto all copies; what commutes with them is right ones.
        isotypic = (double * degree / order) * chi.real[class_of][table[:, inverse]]
        space = torch.linalg.eigh(isotypic)[1][:, -double * degree * degree :]
        draw = normal(generator, order)
        commuting = (draw + draw[inverse])[table[inverse]]
        # A generic symmetric element of the commutant has one eigenvalue per copy, D times.
        values, vectors = torch.linalg.eigh(space.T @ commuting @ space)
        level = values.view(-1, dim).mean(1)
        gaps = torch.nn.functional.pad(level.diff(), (1, 1), value=math.inf)
        copy = int(torch.minimum(gaps[:-1], gaps[1:]).argmax())  # the most isolated one
        basis = space @ vectors[:, copy * dim : (copy + 1) * dim]  # (G, D)
        matrices = basis.T @ basis[table[inverse]]  # (R(g) basis)[a] = basis[g^-1 a]
        units = endomorphisms(matrices)
        frame = _orbits(units, dim // kind.degree)
        matrices, units = (round_to_halves(frame.T @ stack @ frame) for stack in (matrices, units))
        irreps.append(RealIrrep(matrices, kind, units))
    return tuple(sorted(irreps, key=lambda irrep: irrep.dim))


# --- decomposition ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Decomposition:
    """rho(g) = Q blockdiag_i(rho_i(g) kron 1_{M_i}) Q^-1: `basis` is Q (N, N), one multiplicity per irrep.

    Within irrep i the columns of Q are ordered (component, copy), the copy running fastest.

    >>> from flopping.groups.characters import regular
    >>> swap = torch.tensor([[0, 1], [1, 0]])
    >>> decompose(regular(swap), swap).multiplicities
    (1, 1)
    """

    basis: Tensor
    multiplicities: tuple[int, ...]

    def blocks(self, irrep_matrices: Sequence[Tensor]) -> Tensor:
        """blockdiag_i(rho_i(g) kron 1_{M_i}): (G, N, N) from one (G, D_i, D_i) per irrep.

        >>> Decomposition(torch.eye(2), (2,)).blocks([torch.tensor([[[1.0]], [[-1.0]]])])[1].tolist()
        [[-1.0, -0.0], [-0.0, -1.0]]
        """
        dims = [matrices.shape[-1] for matrices in irrep_matrices]
        width = sum(d * m for d, m in zip(dims, self.multiplicities, strict=False))
        if len(dims) != len(self.multiplicities) or width != len(self.basis):
            raise ValueError(
                f"irreps of dimensions {dims} do not fill {len(self.basis)} with {self.multiplicities} copies"
            )
        parts = [torch.kron(r, eye(m).to(r)) for r, m in zip(irrep_matrices, self.multiplicities, strict=True)]
        return torch.stack([torch.block_diag(*matrices) for matrices in zip(*parts, strict=True)])


def decompose(rho: Tensor, table: Tensor, irreps: Sequence[RealIrrep] | None = None) -> Decomposition:
    """Split a representation (G, N, N) into copies of `irreps` (default: `real_irreps(table)`).

    Q is orthonormal if rho is orthogonal, else only invertible.

    >>> from flopping.groups.characters import regular
    >>> c3 = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    >>> irreps = real_irreps(c3)
    >>> parts = decompose(regular(c3), c3, irreps)
    >>> q, blocks = parts.basis, parts.blocks([r.matrices for r in irreps])
    >>> torch.allclose(q @ blocks @ q.T, regular(c3))
    True
    """
    rho, width = _representation(rho, table, "rho"), rho.shape[-1]
    irreps = real_irreps(table) if irreps is None else irreps
    # In coordinates L^T x the averaged inner product L L^T is the usual one, and rho is orthogonal.
    lower = torch.linalg.cholesky((rho.mT @ rho).mean(0))
    upper_inverse = torch.linalg.inv(lower).mT
    rho = lower.mT @ rho @ upper_inverse
    columns, multiplicities = [rho.new_empty(width, 0)], []
    for index, irrep in enumerate(irreps):
        matrices = _representation(irrep.matrices, table, f"irreps[{index}]")
        overlap = float(_character(rho) @ _character(matrices)) / len(table)  # E M
        multiplicities.append(round(overlap / irrep.type.degree))
        # ladder[a] takes the first component of every copy to the a-th (by Schur's lemma without changing
        # lengths); ladder[0] projects onto what can be a first component, a space of dimension E M.
        ladder = irrep.dim * torch.einsum("ga,gxy->axy", matrices[:, :, 0], rho) / len(table)
        columns.append(_orbits(ladder, multiplicities[-1]))
    basis = torch.cat(columns, dim=1)
    if basis.shape[1] != width or (basis.T @ basis - eye(width)).abs().max() > TOLERANCE:
        dims = [irrep.dim for irrep in irreps]
        raise ValueError(
            f"irreps missing or repeated: {multiplicities} copies of dimensions {dims} do not fill {width}"
        )
    return Decomposition(upper_inverse @ basis, tuple(multiplicities))


def intertwiners(rho_in: Tensor, rho_out: Tensor, table: Tensor, irreps: Sequence[RealIrrep] | None = None) -> Tensor:
    """A basis of {A : A rho_in(g) = rho_out(g) A}: (sum_i E_i M_i M'_i, N_out, N_in).

    Orthonormal (Frobenius) if both representations are orthogonal.

    >>> from flopping.groups.characters import regular
    >>> c3 = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    >>> intertwiners(regular(c3), regular(c3), c3).shape  # the circulant matrices
    torch.Size([3, 3, 3])
    """
    irreps = real_irreps(table) if irreps is None else irreps
    source, target = decompose(rho_in, table, irreps), decompose(rho_out, table, irreps)
    widths = [[r.dim * m for r, m in zip(irreps, side.multiplicities, strict=True)] for side in (source, target)]
    analysis = torch.linalg.inv(source.basis).split(widths[0])  # (D M, N) per irrep
    synthesis = target.basis.split(widths[1], 1)  # (N', D M') per irrep
    parts = []
    for irrep, into, out_of in zip(irreps, analysis, synthesis, strict=True):
        into, out_of = into.unflatten(0, (irrep.dim, -1)), out_of.unflatten(1, (irrep.dim, -1))
        maps = torch.einsum("yan,eab,bmx->enmyx", out_of, irrep.endomorphisms, into)
        parts.append(maps.flatten(0, 2) / math.sqrt(irrep.dim))
    return torch.cat(parts)


# --- cost ------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """One irrep's share of an equivariant linear layer."""

    dim: int
    degree: int
    m_in: int
    m_out: int


@dataclass(frozen=True)
class Cost:
    """What an equivariant linear layer holds and multiplies, per input vector, beside a dense one.

    >>> cost([1, 1], [SchurType.REAL] * 2, [3, 3], [5, 5]).ratio
    0.5
    """

    blocks: tuple[Block, ...]

    @property
    def parameters(self) -> int:
        """sum E M M'."""
        return sum(b.degree * b.m_in * b.m_out for b in self.blocks)

    @property
    def multiply_adds(self) -> int:
        """sum D E M M': each of the D / E components over the algebra is an (E M', E M) matrix."""
        return sum(b.dim * b.degree * b.m_in * b.m_out for b in self.blocks)

    @property
    def dense_multiply_adds(self) -> int:
        """N N'."""
        return sum(b.dim * b.m_in for b in self.blocks) * sum(b.dim * b.m_out for b in self.blocks)

    @property
    def ratio(self) -> float:
        """Multiply-adds relative to the dense layer."""
        return self.multiply_adds / self.dense_multiply_adds


def cost(dims: Sequence[int], types: Sequence[SchurType], m_in: Sequence[int], m_out: Sequence[int]) -> Cost:
    """The cost of a layer from m_in[i] to m_out[i] copies of an irrep of dimension dims[i], types[i].

    >>> cost([1, 1, 1, 1, 2], [SchurType.REAL] * 5, [1, 1, 1, 1, 2], [1, 1, 1, 1, 2]).ratio  # the square
    0.1875
    """
    if len({len(dims), len(types), len(m_in), len(m_out)}) > 1:
        raise ValueError(
            f"one entry per irrep: got dims={list(dims)}, types={[t.value for t in types]}, "
            f"m_in={list(m_in)}, m_out={list(m_out)}"
        )
    for dim, kind in zip(dims, types, strict=True):
        if dim < 1 or dim % kind.degree:
            raise ValueError(f"a {kind.value} irrep has a multiple of {kind.degree} dimensions, got {dim}")
    for name, copies in (("m_in", m_in), ("m_out", m_out)):
        if min(copies, default=0) < 0 or not any(copies):
            raise ValueError(f"{name} needs multiplicities >= 0, not all of them 0, got {list(copies)}")
    rows = zip(dims, types, m_in, m_out, strict=True)
    return Cost(tuple(Block(dim, kind.degree, m, n) for dim, kind, m, n in rows))


# --- helpers ---------------------------------------------------------------------------------------


def _character(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def _orbits(ladder: Tensor, count: int) -> Tensor:
    """Orthonormal columns (N, A * count), ladder[a] v_c with c fastest, for vectors v_c that it chooses.

    ladder (A, N, N) takes a unit vector v in the range of the projection ladder[0] to an orthonormal set;
    sets of different c are orthogonal.
    """
    free, found = ladder[0], [ladder.new_empty(0, *ladder.shape[:2])]
    for _ in range(count):
        # A projection's longest column is at least 1/sqrt(N) long: dividing by it keeps rounding small.
        first = free[:, free.diagonal().argmax()]
        orbit = ladder @ (first / first.norm())  # (A, N)
        free = free - orbit.T @ (orbit @ free)
        found.append(orbit[None])
    return torch.cat(found).permute(2, 1, 0).flatten(1)


def _check_orthogonal(matrices: Tensor) -> None:
    drift = float((matrices @ matrices.mT - eye(matrices.shape[-1])).abs().max())
    if drift > TOLERANCE:
        raise ValueError(f"matrices must be orthogonal, got |R R^T - 1| up to {drift:.3g}")


def _representation(rho: Tensor, table: Tensor, name: str) -> Tensor:
    """rho in float64, after a check that rho(g) rho(h) = rho(gh) and rho(identity) = 1."""
    rho, identity = matrix_stack(rho, name), identity_of(table)
    if len(rho) != len(table):
        raise ValueError(f"{name} has {len(rho)} matrices, the group {len(table)} elements")
    tolerance = TOLERANCE * max(1.0, float(rho.abs().max())) ** 2
    errors = torch.stack([(a @ rho - rho[row]).abs().amax((1, 2)) for a, row in zip(rho, table, strict=True)])
    g, h = divmod(int(errors.argmax()), len(table))
    if not errors[g, h] <= tolerance:
        raise ValueError(f"{name} is no representation: ({g})({h}) is {errors[g, h]:.3g} off ({table[g, h]})")
    off = float((rho[identity] - eye(rho.shape[1])).abs().max())
    if off > tolerance:
        raise ValueError(f"{name} is no representation: the identity is {off:.3g} off the identity matrix")
    return rho
