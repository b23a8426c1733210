"""Finite groups given by matrices: multiplication table, conjugacy classes, characters, Schur types.

Everything follows from the table, long (G, G), numbers of elements: table[g, h] is the number of gh.
Shapes: G group order, K conjugacy classes, N dimension of the matrices. All numbers are float64; every random
choice comes from a generator of its own with a fixed seed.
"""

import math
from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

# Equality of group elements: rounding leaves 1e-13, and elements of an orthogonal group of order 1024
# differ by a rotation of 2 pi / 1024 = 6e-3 or more.
TOLERANCE = 1e-6


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
    steps = matrix_stack(torch.stack(list(generators)), "generators")
    # Powers of a contraction pile up at 0 and would look like a finite set, so determinants come first.
    sizes = torch.linalg.det(steps).abs()
    if not ((sizes - 1).abs() <= TOLERANCE).all():
        raise ValueError(f"generators of a finite group have |det| = 1, got {sizes.tolist()}: not finite")
    tolerance = TOLERANCE * max(1.0, float(steps.abs().max()))
    elements = eye(steps.shape[1])[None]
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
    matrices = matrix_stack(matrices, "matrices")
    tolerance = TOLERANCE * max(1.0, float(matrices.abs().max()))
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
    if (matrices[identity_of(table)] - eye(matrices.shape[1])).abs().max() > tolerance:
        raise ValueError("the matrices are closed under multiplication, but singular")
    return table


def inverses(table: Tensor) -> Tensor:
    """Long (G,): table[g, inverses[g]] is the identity.

    >>> inverses(torch.tensor([[0, 1, 2], [1, 2, 0], [2, 0, 1]])).tolist()
    [0, 2, 1]
    """
    return (table == identity_of(table)).long().argmax(1)


def conjugacy_classes(table: Tensor) -> tuple[tuple[int, ...], ...]:
    """The sets {h g h^-1 : h}, the identity's first and then by smallest member.

    >>> conjugacy_classes(multiplication_table(close([torch.eye(3)[[1, 0, 2]], torch.eye(3)[[1, 2, 0]]])))
    ((0,), (1, 3, 4), (2, 5))
    """
    inverse, identity = inverses(table), identity_of(table)
    conjugates = table[table, inverse[:, None]]  # [h, g] -> h g h^-1
    found = {tuple(sorted(set(column))) for column in conjugates.T.tolist()}
    return tuple(sorted(found, key=lambda members: (identity not in members, members)))


def regular(table: Tensor) -> Tensor:
    """The left regular representation (G, G, G): R(h) delta_g = delta_hg.

    >>> regular(torch.tensor([[0, 1], [1, 0]]))[1].tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    identity_of(table)
    return torch.nn.functional.one_hot(table, len(table)).mT.to(torch.float64)


# --- characters ------------------------------------------------------------------------------------


def character_table(table: Tensor) -> Tensor:
    """The complex irreps' characters: complex128 (K, K), a row per irrep, a column per conjugacy class.

    The trivial one is first, then by degree. Rows satisfy sum_c |c| chi(c) conj(psi(c)) = G [chi = psi].

    >>> character_table(torch.tensor([[0, 1], [1, 0]])).real.tolist()
    [[1.0, 1.0], [1.0, -1.0]]
    """
    inverse, order = inverses(table), len(table)
    sizes, class_of = class_sizes(table)
    count, root = len(sizes), sizes.sqrt()
    # Class sums act on each other by multiplication and commute: their common eigenvectors, scaled by
    # root, are the characters. Weights with w(g^-1) = conj(w(g)) make the sum of all Hermitian, so that
    # chi and conj(chi) get different real eigenvalues and orthogonality holds to rounding.
    cell = (class_of * count + class_of[table]).flatten()  # y's class and xy's class, for all x, y
    generator = seeded()
    best_gap, vectors = -1.0, root
    for _ in range(8):  # eigenvalues that nearly coincide mix characters: the best separated draw counts
        draw = torch.complex(normal(generator, count), normal(generator, count))
        weight = (draw / root)[class_of]
        weight = weight + weight[inverse].conj()
        product = weight.new_zeros(count * count)
        product.index_add_(0, cell, weight.repeat_interleave(order))
        values, candidate = torch.linalg.eigh(product.view(count, count) / root.outer(root))
        gap = float((values.diff() / values.abs().max()).min()) if count > 1 else 1.0
        if gap > best_gap:
            best_gap, vectors = gap, candidate
    vectors = vectors / vectors[:1].sgn()  # chi(1) > 0
    rows = round_to_halves(vectors.T * math.sqrt(order) / root)

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
    sizes, class_of = class_sizes(table)
    if character.shape != sizes.shape:
        raise ValueError(f"expected one value per class, {len(sizes)}, got shape {tuple(character.shape)}")
    norm = float((sizes * character.abs() ** 2).sum()) / len(table)
    indicator = complex(character[class_of[table.diagonal()]].sum()) / len(table)
    types = {1: SchurType.REAL, 0: SchurType.COMPLEX, -1: SchurType.QUATERNIONIC}
    kind = types.get(round(indicator.real))
    near = abs(norm - 1) < TOLERANCE and abs(indicator - round(indicator.real)) < TOLERANCE
    if kind is None or not near or character[0].real < 0.5:
        raise ValueError(f"not an irreducible character: norm {norm:.6g}, indicator {indicator:.6g}")
    return kind


# --- helpers, also of representations.py -----------------------------------------------------------


def eye(size: int) -> Tensor:
    """On the CPU even inside `with torch.device("meta")`, where models are built without memory."""
    return torch.eye(size, dtype=torch.float64, device="cpu")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, device="cpu", generator=generator)


def matrix_stack(matrices: Tensor, name: str) -> Tensor:
    shape = tuple(matrices.shape)
    if len(shape) != 3 or shape[1] != shape[2] or 0 in shape or matrices.is_complex():
        raise ValueError(f"{name} must be real, square and of one size, got {matrices.dtype} {shape}")
    return matrices.to(torch.float64)


def identity_of(table: Tensor) -> int:
    """The identity's index, after a check that rows and columns are permutations."""
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.dtype != torch.long or not len(table):
        raise ValueError(f"a table is long with shape (|G|, |G|), got {table.dtype} {tuple(table.shape)}")
    every = torch.arange(len(table), device=table.device)
    candidates = ((table == every).all(1) & (table == every[:, None]).all(0)).nonzero()
    latin = (table.sort(0).values == every[:, None]).all() and (table.sort(1).values == every).all()
    if not latin or len(candidates) != 1:
        raise ValueError(f"not the multiplication table of a group: {table.tolist()}")
    return int(candidates[0])


def class_sizes(table: Tensor) -> tuple[Tensor, Tensor]:
    """Sizes of the conjugacy classes (K,), and the class of each element (G,)."""
    class_of = table.new_empty(len(table))
    for index, members in enumerate(conjugacy_classes(table)):
        class_of[list(members)] = index
    return class_of.bincount().to(torch.float64), class_of


def round_to_halves(x: Tensor) -> Tensor:
    """Multiples of 1/2, frequent in characters, made exact. Changes entries by rounding error only."""
    if x.is_complex():
        return torch.complex(round_to_halves(x.real), round_to_halves(x.imag))
    nearest = (2 * x).round() / 2 + 0.0
    return torch.where((x - nearest).abs() < 1e-12, nearest, x)
