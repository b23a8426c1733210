"""Real representations of any finite group: irreps, their Schur types, decomposition, intertwiners.

A layer that commutes with a group is a change of basis around a block-diagonal matrix (Maschke and
Schur). This file finds that basis numerically for a group given by matrices, and counts what it saves.

Shapes: G group order, K conjugacy classes, N dimension of a representation, D dimension of an irrep,
M copies of it, E = 1, 2 or 4 dimension of its endomorphism algebra. A representation is a stack (G, N, N).
All numbers are float64; every random choice comes from a generator of its own with a fixed seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

# Equality of group elements: rounding leaves 1e-13, and elements of an orthogonal group of order 1024
# differ by a rotation of 2 pi / 1024 = 6e-3 or more.
_TOLERANCE = 1e-6
_SEED = 0


class SchurType(str, Enum):
    """What commutes with a real irrep: the real numbers, the complex numbers or the quaternions.

    >>> [t.degree for t in SchurType]
    [1, 2, 4]
    """

    REAL = "real"
    COMPLEX = "complex"
    QUATERNIONIC = "quaternionic"

    @property
    def degree(self) -> int:
        """E, the dimension over the reals of the endomorphism algebra."""
        return {"real": 1, "complex": 2, "quaternionic": 4}[self.value]


# --- the group -------------------------------------------------------------------------------------


def close(generators: Sequence[Tensor], max_order: int = 1024) -> Tensor:
    """All products of the generators, (N, N) each: (G, N, N), the identity first, shorter words earlier.

    >>> close([torch.tensor([[0.0, -1.0], [1.0, 0.0]])]).shape  # a quarter turn
    torch.Size([4, 2, 2])
    """
    shapes = [tuple(s.shape) for s in generators]
    if not shapes or len(set(shapes)) > 1:
        raise ValueError(f"generators must be square matrices of one size, got shapes {shapes}")
    steps = _stack(torch.stack(list(generators)), "generators")
    # Powers of a contraction pile up at 0 and would look like a finite set, so determinants come first.
    sizes = torch.linalg.det(steps).abs()
    if not ((sizes - 1).abs() <= _TOLERANCE).all():
        raise ValueError(f"generators of a finite group have |det| = 1, got {sizes.tolist()}: not finite")
    tolerance = _TOLERANCE * max(1.0, float(steps.abs().max()))
    elements = _eye(steps.shape[1])[None]
    done = 0
    while done < len(elements):
        for product in elements[done] @ steps:
            if (elements - product).abs().amax((1, 2)).min() <= tolerance:
                continue
            if len(elements) >= max_order:
                raise ValueError(f"the generated group is not finite, or larger than max_order={max_order}")
            elements = torch.cat((elements, product[None]))
        done += 1
    return elements


def multiplication_table(matrices: Tensor) -> Tensor:
    """The table of a faithful (G, N, N): long (G, G), matrices[g] @ matrices[h] = matrices[table[g, h]].

    >>> multiplication_table(close([torch.tensor([[-1.0]])])).tolist()
    [[0, 1], [1, 0]]
    """
    matrices = _stack(matrices, "matrices")
    tolerance = _TOLERANCE * max(1.0, float(matrices.abs().max()))
    flat = matrices.flatten(1)
    same = (torch.cdist(flat, flat, p=math.inf) <= tolerance).triu(1).nonzero().tolist()
    if same:
        raise ValueError(f"not faithful: matrices {same[0][0]} and {same[0][1]} coincide")
    rows = []
    for g, matrix in enumerate(matrices):
        distance, nearest = torch.cdist((matrix @ matrices).flatten(1), flat, p=math.inf).min(1)
        if not (distance <= tolerance).all():
            h = int(distance.argmax())
            raise ValueError(f"not closed: {g} times {h} is {distance[h]:.3g} away from every matrix")
        rows.append(nearest)
    table = torch.stack(rows)
    if (matrices[_identity(table)] - _eye(matrices.shape[1])).abs().max() > tolerance:
        raise ValueError("the matrices are closed under multiplication, but singular")
    return table


def inverses(table: Tensor) -> Tensor:
    """Long (G,): table[g, inverses[g]] is the identity.

    >>> inverses(torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])).tolist()
    [0, 2, 1]
    """
    return (table == _identity(table)).long().argmax(1)


def conjugacy_classes(table: Tensor) -> tuple[tuple[int, ...], ...]:
    """The sets {h g h^-1 : h}, the identity's first and then by smallest member.

    >>> conjugacy_classes(multiplication_table(close([torch.eye(3)[[1, 0, 2]], torch.eye(3)[[1, 2, 0]]])))
    ((0,), (1, 3, 4), (2, 5))
    """
    inverse, identity = inverses(table), _identity(table)
    conjugates = table[table, inverse[:, None]]  # [h, g] -> h g h^-1
    found = {tuple(sorted(set(column))) for column in conjugates.T.tolist()}
    return tuple(sorted(found, key=lambda members: (identity not in members, members)))


def regular(table: Tensor) -> Tensor:
    """The left regular representation (G, G, G): R(h) delta_g = delta_hg.

    >>> regular(torch.tensor([[0, 1], [1, 0]]))[1].tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    _identity(table)
    return torch.nn.functional.one_hot(table, len(table)).mT.to(torch.float64)


# --- characters ------------------------------------------------------------------------------------


def character_table(table: Tensor) -> Tensor:
    """The complex irreps' characters: complex128 (K, K), a row per irrep, a column per conjugacy class.

    The trivial one is first, then by degree. Rows satisfy sum_c |c| chi(c) conj(psi(c)) = G [chi = psi].

    >>> character_table(torch.tensor([[0, 1], [1, 0]])).real.tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    inverse, order = inverses(table), len(table)
    sizes, class_of = _classes(table)
    count, root = len(sizes), sizes.sqrt()
    # Class sums act on each other by multiplication and commute: their common eigenvectors, scaled by
    # root, are the characters. Weights with w(g^-1) = conj(w(g)) make the sum of all Hermitian, so that
    # chi and conj(chi) get different real eigenvalues and orthogonality holds to rounding.
    cell = (class_of * count + class_of[table]).flatten()  # y's class and xy's class, for all x, y
    generator = torch.Generator().manual_seed(_SEED)
    best_gap, vectors = -1.0, root
    for _ in range(8):  # eigenvalues that nearly coincide mix characters: the best separated draw counts
        draw = torch.complex(_normal(generator, count), _normal(generator, count))
        weight = (draw / root)[class_of]
        weight = weight + weight[inverse].conj()
        product = weight.new_zeros(count * count)
        product.index_add_(0, cell, weight.repeat_interleave(order))
        values, candidate = torch.linalg.eigh(product.view(count, count) / root.outer(root))
        gap = float((values.diff() / values.abs().max()).min()) if count > 1 else 1.0
        if gap > best_gap:
            best_gap, vectors = gap, candidate
    vectors = vectors / vectors[:1].sgn()  # chi(1) > 0
    rows = _snap(vectors.T * math.sqrt(order) / root)

    def key(row: list[complex]) -> list[tuple[float, float]]:
        first, *rest = [(round(z.real, 6), round(z.imag, 6)) for z in row]
        return [first, *((-re, -im) for re, im in rest)]

    values_of: list[list[complex]] = rows.tolist()
    return rows[sorted(range(count), key=lambda i: key(values_of[i]))]


def frobenius_schur(table: Tensor, character: Tensor) -> SchurType:
    """The type of a complex irrep from its character (K,): mean_g chi(g^2) is 1, 0 or -1.

    >>> c3 = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    >>> [frobenius_schur(c3, chi).value for chi in character_table(c3)]
    ['real', 'complex', 'complex']
    """
    sizes, class_of = _classes(table)
    if character.shape != sizes.shape:
        raise ValueError(f"expected one value per class, {len(sizes)}, got shape {tuple(character.shape)}")
    norm = float((sizes * character.abs() ** 2).sum()) / len(table)
    indicator = complex(character[class_of[table.diagonal()]].sum()) / len(table)
    types = {1: SchurType.REAL, 0: SchurType.COMPLEX, -1: SchurType.QUATERNIONIC}
    kind = types.get(round(indicator.real))
    near = abs(norm - 1) < _TOLERANCE and abs(indicator - round(indicator.real)) < _TOLERANCE
    if kind is None or not near or character[0].real < 0.5:
        raise ValueError(f"not an irreducible character: norm {norm:.6g}, indicator {indicator:.6g}")
    return kind


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
        _check_orthogonal(self.matrices, "matrices")
        if kind is not self.type or units.shape != shape:
            given = f"{self.type.value}, endomorphisms {tuple(units.shape)}"
            raise ValueError(f"these matrices are of {kind.value} type, endomorphisms {shape}, got {given}")
        drift = float((self.matrices[:, None] @ units - units @ self.matrices[:, None]).abs().max())
        if drift > _TOLERANCE:
            raise ValueError(f"endomorphisms must commute with the irrep, they are {drift:.3g} off")

    @property
    def dim(self) -> int:
        """D."""
        return self.matrices.shape[-1]


def schur_type(matrices: Tensor) -> SchurType:
    """The type of a real irrep (G, D, D): mean_g chi(g)^2 = E. Raises ValueError if it is reducible.

    E alone doesn't tell: two different real irreps side by side have a commutant of dimension 2 as well.
    But a representation is irreducible iff only multiples of 1 are symmetric among what commutes with it.

    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> schur_type(close([turn])).value
    'complex'
    """
    matrices = _stack(matrices, "matrices")
    commutant = float(_character(matrices).square().mean())
    symmetric = (commutant + float(_character(matrices @ matrices).mean())) / 2
    for kind in SchurType:
        if abs(commutant - kind.degree) < _TOLERANCE and abs(symmetric - 1) < _TOLERANCE:
            return kind
    raise ValueError(
        f"not irreducible: a space of dimension {commutant:.6g} commutes with it, {symmetric:.6g} of it "
        "symmetric; an irrep has 1, 2 or 4, of which 1 symmetric"
    )


def endomorphisms(matrices: Tensor) -> Tensor:
    """What commutes with an orthogonal irrep (G, D, D): (E, D, D), as described at `RealIrrep`.

    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> one, j = endomorphisms(close([turn]))
    >>> torch.allclose(j @ j, -one)
    True
    """
    matrices = _stack(matrices, "matrices")
    kind, dim = schur_type(matrices), matrices.shape[-1]
    one = _eye(dim)
    _check_orthogonal(matrices, "matrices")
    generator = torch.Generator().manual_seed(_SEED)
    found = [one]
    for _ in range(kind.degree // 2):  # none, J, or i and j: an orthonormal set of imaginary units
        draw = _normal(generator, dim, dim)
        unit = (matrices @ (draw - draw.T) @ matrices.mT).mean(0)
        for other in found[1:]:
            unit = unit - other * (other * unit).sum() / dim
        found.append(unit * math.sqrt(dim) / unit.norm())
    if kind is SchurType.QUATERNIONIC:
        found.append(found[1] @ found[2])
    return torch.stack(found)


def real_irreps(table: Tensor) -> tuple[RealIrrep, ...]:
    """All real irreps, the trivial one first, then by dimension: sum_i D_i^2 / E_i = G.

    Each is cut out of the regular representation, in a basis (unit of the algebra, component) that makes
    its endomorphisms unit kron 1_{D/E}: J = [[0, -1], [1, 0]] kron 1 for the complex type.

    >>> [(r.dim, r.type.value) for r in real_irreps(torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]]))]
    [(1, 'real'), (2, 'complex')]
    """
    inverse, order = inverses(table), len(table)
    _, class_of = _classes(table)
    generator = torch.Generator().manual_seed(_SEED)
    irreps = []
    for chi in character_table(table):
        kind, degree = frobenius_schur(table, chi), round(float(chi[0].real))
        tilted = chi.imag[chi.imag.abs() > _TOLERANCE]
        if len(tilted) and tilted[0] < 0:
            continue  # conj(chi) belongs to the same real irrep
        double = 2 if kind is SchurType.COMPLEX else 1
        dim = degree if kind is SchurType.REAL else 2 * degree
        # Left translations span the projection onto all copies; what commutes with them is right ones.
        isotypic = (double * degree / order) * chi.real[class_of][table[:, inverse]]
        space = torch.linalg.eigh(isotypic)[1][:, -double * degree * degree :]
        draw = _normal(generator, order)
        commuting = (draw + draw[inverse])[table[inverse]]
        # A generic symmetric element of the commutant has one eigenvalue per copy, D times.
        values, vectors = torch.linalg.eigh(space.T @ commuting @ space)
        level = values.view(-1, dim).mean(1)
        edges = torch.cat((level.new_tensor([-math.inf]), level, level.new_tensor([math.inf])))
        copy = int(torch.minimum(edges.diff()[:-1], edges.diff()[1:]).argmax())  # the most isolated one
        basis = space @ vectors[:, copy * dim : (copy + 1) * dim]  # (G, D)
        matrices = basis.T @ basis[table[inverse]]  # (R(g) basis)[a] = basis[g^-1 a]
        units = endomorphisms(matrices)
        frame = _orbits(units, dim // kind.degree)
        matrices, units = (_snap(frame.T @ stack @ frame) for stack in (matrices, units))
        irreps.append(RealIrrep(matrices, kind, units))
    return tuple(sorted(irreps, key=lambda irrep: irrep.dim))


# --- decomposition ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Decomposition:
    """rho(g) = Q blockdiag_i(rho_i(g) kron 1_{M_i}) Q^-1: `basis` is Q (N, N), one multiplicity per irrep.

    Within irrep i the columns of Q are ordered (component, copy), the copy running fastest.

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
        out = irrep_matrices[0].new_zeros(len(irrep_matrices[0]), width, width)
        start = 0
        for matrices, copies in zip(irrep_matrices, self.multiplicities, strict=True):
            end = start + matrices.shape[-1] * copies
            out[:, start:end, start:end] = torch.kron(matrices, _eye(copies)[None])
            start = end
        return out


def decompose(rho: Tensor, table: Tensor, irreps: Sequence[RealIrrep] | None = None) -> Decomposition:
    """Split a representation (G, N, N) into copies of `irreps` (default: `real_irreps(table)`).

    Q is orthonormal if rho is orthogonal, else only invertible.

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
    if basis.shape[1] != width or (basis.T @ basis - _eye(width)).abs().max() > _TOLERANCE:
        dims = [irrep.dim for irrep in irreps]
        raise ValueError(
            f"irreps missing or repeated: {multiplicities} copies of dimensions {dims} do not fill {width}"
        )
    return Decomposition(upper_inverse @ basis, tuple(multiplicities))


def intertwiners(
    rho_in: Tensor,
    rho_out: Tensor,
    table: Tensor,
    irreps: Sequence[RealIrrep] | None = None,
) -> Tensor:
    """A basis of {A : A rho_in(g) = rho_out(g) A}: (sum_i E_i M_i M'_i, N_out, N_in).

    Orthonormal (Frobenius) if both representations are orthogonal.

    >>> c3 = torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])
    >>> intertwiners(regular(c3), regular(c3), c3).shape  # the circulant matrices
    torch.Size([3, 3, 3])
    """
    irreps = real_irreps(table) if irreps is None else irreps
    source, target = decompose(rho_in, table, irreps), decompose(rho_out, table, irreps)
    into, out_of = torch.linalg.inv(source.basis), target.basis
    parts, row, column = [], 0, 0
    for irrep, m, n in zip(irreps, source.multiplicities, target.multiplicities, strict=True):
        dim, end_row, end_column = irrep.dim, row + irrep.dim * m, column + irrep.dim * n
        analysis = into[row:end_row].view(dim, m, into.shape[1])
        synthesis = out_of[:, column:end_column].reshape(len(out_of), dim, n)
        maps = torch.einsum("yan,eab,bmx->enmyx", synthesis, irrep.endomorphisms, analysis)
        parts.append(maps.flatten(0, 2) / math.sqrt(dim))
        row, column = end_row, end_column
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


def _eye(size: int) -> Tensor:
    """On the CPU even inside `with torch.device("meta")`, where models are built without memory."""
    return torch.eye(size, dtype=torch.float64, device="cpu")


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device="cpu", generator=generator)


def _stack(matrices: Tensor, name: str) -> Tensor:
    shape = tuple(matrices.shape)
    if len(shape) != 3 or shape[1] != shape[2] or 0 in shape or matrices.is_complex():
        raise ValueError(f"{name} must be real, square and of one size, got {matrices.dtype} {shape}")
    return matrices.to(torch.float64)


def _identity(table: Tensor) -> int:
    """The identity's index, after a check that rows and columns are permutations."""
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.dtype != torch.long or not len(table):
        raise ValueError(f"a table is long with shape (|G|, |G|), got {table.dtype} {tuple(table.shape)}")
    every = torch.arange(len(table), device=table.device)
    candidates = ((table == every).all(1) & (table == every[:, None]).all(0)).nonzero()
    latin = (table.sort(0).values == every[:, None]).all() and (table.sort(1).values == every).all()
    if not latin or len(candidates) != 1:
        raise ValueError(f"not the multiplication table of a group: {table.tolist()}")
    return int(candidates[0])


def _classes(table: Tensor) -> tuple[Tensor, Tensor]:
    """Sizes of the conjugacy classes (K,), and the class of each element (G,)."""
    class_of = table.new_empty(len(table))
    for index, members in enumerate(conjugacy_classes(table)):
        class_of[list(members)] = index
    return class_of.bincount().to(torch.float64), class_of


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


def _check_orthogonal(matrices: Tensor, name: str) -> None:
    drift = float((matrices @ matrices.mT - _eye(matrices.shape[-1])).abs().max())
    if drift > _TOLERANCE:
        raise ValueError(f"{name} must be orthogonal, got |R R^T - 1| up to {drift:.3g}")


def _snap(x: Tensor) -> Tensor:
    """Multiples of 1/2, frequent in characters, made exact. Moves no entry by more than rounding did."""
    if x.is_complex():
        return torch.complex(_snap(x.real), _snap(x.imag))
    nearest = (2 * x).round() / 2 + 0.0
    return torch.where((x - nearest).abs() < 1e-12, nearest, x)


def _representation(rho: Tensor, table: Tensor, name: str) -> Tensor:
    """rho in float64, after a check that rho(g) rho(h) = rho(gh) and rho(identity) = 1."""
    rho, identity = _stack(rho, name), _identity(table)
    if len(rho) != len(table):
        raise ValueError(f"{name} has {len(rho)} matrices, the group {len(table)} elements")
    tolerance = _TOLERANCE * max(1.0, float(rho.abs().max())) ** 2
    errors = torch.stack([(a @ rho - rho[row]).abs().amax((1, 2)) for a, row in zip(rho, table, strict=True)])
    g, h = divmod(int(errors.argmax()), len(table))
    if not errors[g, h] <= tolerance:
        raise ValueError(f"{name} is no representation: ({g})({h}) is {errors[g, h]:.3g} off ({table[g, h]})")
    off = float((rho[identity] - _eye(rho.shape[1])).abs().max())
    if off > tolerance:
        raise ValueError(f"{name} is no representation: the identity is {off:.3g} off the identity matrix")
    return rho
