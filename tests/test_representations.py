"""Real representation theory on groups that images have, and on some that they haven't."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flopping import representations as rep
from flopping.representations import Decomposition, RealIrrep, SchurType

REAL, COMPLEX, QUATERNIONIC = SchurType


def cycle(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64).roll(1, 0)


def turn(n: int) -> Tensor:
    angle = 2 * math.pi / n
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)


def permutation(*images: int) -> Tensor:
    return torch.eye(len(images), dtype=torch.float64)[:, list(images)]


def quaternion(a: float, b: float, c: float, d: float) -> Tensor:
    """Left multiplication by a + bi + cj + dk."""
    return torch.tensor([[a, -b, -c, -d], [b, a, -d, c], [c, d, a, -b], [d, -c, b, a]], dtype=torch.float64)


MIRROR = torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64)
UNIT_I, UNIT_J = quaternion(0, 1, 0, 0), quaternion(0, 0, 1, 0)

# name: generators, order, (dimension, type) of each real irrep
GROUPS: dict[str, tuple[list[Tensor], int, list[tuple[int, SchurType]]]] = {
    **{
        f"C{n}": ([cycle(n)], n, [(1, REAL)] * (2 - n % 2 if n > 1 else 1) + [(2, COMPLEX)] * ((n - 1) // 2))
        for n in range(1, 9)
    },
    **{
        f"D{n}": ([turn(n), MIRROR], 2 * n, [(1, REAL)] * (4 - 2 * (n % 2)) + [(2, REAL)] * ((n - 1) // 2))
        for n in range(3, 7)
    },
    "C2xC2": ([MIRROR, -MIRROR], 4, [(1, REAL)] * 4),
    "S3": ([permutation(1, 0, 2), permutation(1, 2, 0)], 6, [(1, REAL)] * 2 + [(2, REAL)]),
    "S4": (
        [permutation(1, 0, 2, 3), permutation(1, 2, 3, 0)],
        24,
        [(1, REAL)] * 2 + [(2, REAL)] + [(3, REAL)] * 2,
    ),
    "Q8": ([UNIT_I, UNIT_J], 8, [(1, REAL)] * 4 + [(4, QUATERNIONIC)]),
    # All types at once, and a complex one of more than one component over the complex numbers.
    "SL(2,3)": (
        [UNIT_I, quaternion(-0.5, 0.5, 0.5, 0.5)],
        24,
        [(1, REAL), (2, COMPLEX), (3, REAL), (4, COMPLEX), (4, QUATERNIONIC)],
    ),
}
NAMES = list(GROUPS)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Case:
    """A group with everything the module says about it."""

    def __init__(self, name: str) -> None:
        generators, self.order, self.expected = GROUPS[name]
        self.matrices = rep.close(generators)
        self.table = rep.multiplication_table(self.matrices)
        self.irreps = rep.real_irreps(self.table)
        self.classes = rep.conjugacy_classes(self.table)
        self.sizes = torch.tensor([len(c) for c in self.classes], dtype=torch.float64)
        self.characters = rep.character_table(self.table)


_cases: dict[str, Case] = {}


def case_of(name: str) -> Case:
    if name not in _cases:
        _cases[name] = Case(name)
    return _cases[name]


@pytest.fixture(params=NAMES)
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


def near(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def direct_sum(*parts: Tensor) -> Tensor:
    blocks = zip(*parts, strict=True)
    return torch.stack([torch.block_diag(*matrices) for matrices in blocks])


def tensor_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([torch.kron(x, y) for x, y in zip(a, b, strict=True)])


def copies(irreps: tuple[RealIrrep, ...], multiplicities: list[int]) -> Tensor:
    return direct_sum(*(r.matrices for r, m in zip(irreps, multiplicities, strict=True) for _ in range(m)))


def orthogonal(n: int, seed: int = 0) -> Tensor:
    q: Tensor = torch.linalg.qr(random(n, n, seed=seed))[0]
    return q


def conjugated(rho: Tensor, basis: Tensor) -> Tensor:
    out: Tensor = basis @ rho @ torch.linalg.inv(basis)
    return out


def null_space_dimension(rho_in: Tensor, rho_out: Tensor) -> int:
    """Dimension of {A : A rho_in = rho_out A} by one dense SVD of the equations on vec(A)."""
    n_in, n_out = rho_in.shape[1], rho_out.shape[1]
    equations = torch.cat(
        [
            torch.kron(eye(n_out), a.T.contiguous()) - torch.kron(b, eye(n_in))
            for a, b in zip(rho_in, rho_out, strict=True)
        ]
    )
    return n_in * n_out - int((torch.linalg.svdvals(equations) > 1e-8).sum())


# --- the group -------------------------------------------------------------------------------------


def test_closure_has_the_right_order_and_starts_with_the_identity(case: Case) -> None:
    assert len(case.matrices) == case.order
    assert torch.equal(case.matrices[0], eye(case.matrices.shape[1]))


def test_closure_is_reproducible_and_leaves_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = Case("SL(2,3)"), Case("SL(2,3)")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.matrices, second.matrices)
    assert torch.equal(first.characters, second.characters)
    for a, b in zip(first.irreps, second.irreps, strict=True):
        assert torch.equal(a.matrices, b.matrices)
        assert torch.equal(a.endomorphisms, b.endomorphisms)


def test_max_order_is_inclusive() -> None:
    assert len(rep.close([cycle(8)], max_order=8)) == 8
    with pytest.raises(ValueError, match="larger than max_order=7"):
        rep.close([cycle(8)], max_order=7)


def test_closure_of_a_skewed_group() -> None:
    basis = eye(3) + 5 * random(3, 3).triu(1)
    assert len(rep.close([conjugated(g[None], basis)[0] for g in GROUPS["S3"][0]])) == 6


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ([], r"got shapes \[\]"),
        ([torch.eye(2), torch.eye(3)], r"got shapes \[\(2, 2\), \(3, 3\)\]"),
        ([torch.ones(2, 3)], r"square.*\(1, 2, 3\)"),
        ([torch.eye(2, dtype=torch.complex128)], "complex128"),
        ([turn(7) * 0.5], r"\|det\| = 1, got \[0.25"),
        ([torch.zeros(1, 1)], r"got \[0.0\]: not finite"),
        ([torch.full((1, 1), math.nan)], "nan"),
        ([torch.tensor([[1.0, 1.0], [0.0, 1.0]])], "not finite, or larger than max_order=1024"),
    ],
)
def test_close_refuses(generators: list[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rep.close(generators)


def test_table_multiplies(case: Case) -> None:
    products = case.matrices[:, None] @ case.matrices
    near(products, case.matrices[case.table])
    assert case.table.dtype == torch.long


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        (torch.stack([eye(2), turn(3)]), "not closed: 1 times 1 is"),
        (torch.stack([eye(2), -eye(2), eye(2)]), "matrices 0 and 2 coincide"),
        (torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]), "singular"),
        (torch.eye(2), r"\(2, 2\)"),
        (torch.empty(0, 2, 2), r"\(0, 2, 2\)"),
    ],
)
def test_multiplication_table_refuses(matrices: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rep.multiplication_table(matrices)


def test_inverses(case: Case) -> None:
    inverse = rep.inverses(case.table)
    near(case.matrices @ case.matrices[inverse], eye(case.matrices.shape[1]).expand_as(case.matrices))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.tensor([[0, 1], [1, 1]]), "not the multiplication table of a group"),
        (torch.tensor([[0, 1], [0, 1]]), "not the multiplication table of a group"),
        (torch.tensor([[1, 0, 2], [0, 2, 1], [2, 1, 0]]), "not the multiplication table of a group"),
        (torch.tensor([[0, 1]]), r"\(1, 2\)"),
        (torch.tensor([[0.0]]), "float32"),
        (torch.empty(0, 0, dtype=torch.long), r"\(0, 0\)"),
    ],
)
@pytest.mark.parametrize("function", [rep.inverses, rep.conjugacy_classes, rep.regular, rep.character_table])
def test_tables_that_are_no_group_are_refused(
    function: Callable[[Tensor], object], table: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(table)


def test_conjugacy_classes_partition_the_group(case: Case) -> None:
    assert case.classes[0] == (0,)
    assert sorted(itertools.chain(*case.classes)) == list(range(case.order))
    inverse = rep.inverses(case.table).tolist()
    table = case.table.tolist()
    for members in case.classes:
        for g, h in itertools.product(members, range(case.order)):
            assert table[table[h][g]][inverse[h]] in members
    # Burnside: as many classes as commuting pairs per element.
    assert int((case.table == case.table.T).sum()) == case.order * len(case.classes)


def test_the_identity_may_stand_anywhere() -> None:
    matrices = case_of("S3").matrices.flip(0)
    table = rep.multiplication_table(matrices)
    assert rep.conjugacy_classes(table)[0] == (5,)
    assert torch.equal(table[torch.arange(6), rep.inverses(table)], torch.full((6,), 5))
    irreps = rep.real_irreps(table)
    assert [r.dim for r in irreps] == [1, 1, 2]
    assert rep.decompose(matrices, table, irreps).multiplicities == (1, 0, 1)


def test_regular_representation_moves_the_deltas(case: Case) -> None:
    left = rep.regular(case.table)
    for h, g in itertools.product(range(case.order), repeat=2):
        assert torch.equal(left[h][:, g], eye(case.order)[case.table[h, g]])
    near(left[:, None] @ left, left[case.table])


# --- characters ------------------------------------------------------------------------------------

W = 1j
Representatives = Callable[..., list[Tensor]]
KNOWN_CHARACTERS: dict[
    str, tuple[Representatives, list[list[complex]]]
] = {  # elements that stand for their classes, as products of the generators, and the rows
    "C4": (
        lambda r: [eye(4), r, r @ r, r @ r @ r],
        [[1, 1, 1, 1], [1, -1, 1, -1], [1, W, -1, -W], [1, -W, -1, W]],
    ),
    "S3": (lambda s, r: [eye(3), s, r], [[1, 1, 1], [1, -1, 1], [2, 0, -1]]),
    "D4": (
        lambda r, m: [eye(2), r, r @ r, m, r @ m],
        [[1, 1, 1, 1, 1], [1, 1, 1, -1, -1], [1, -1, 1, 1, -1], [1, -1, 1, -1, 1], [2, 0, -2, 0, 0]],
    ),
    "Q8": (
        lambda i, j: [eye(4), i @ i, i, j, i @ j],
        [[1, 1, 1, 1, 1], [1, 1, 1, -1, -1], [1, 1, -1, 1, -1], [1, 1, -1, -1, 1], [2, -2, 0, 0, 0]],
    ),
}


@pytest.mark.parametrize("name", KNOWN_CHARACTERS)
def test_known_character_tables(name: str) -> None:
    representatives, rows = KNOWN_CHARACTERS[name]
    case = case_of(name)
    columns = []
    for matrix in representatives(*GROUPS[name][0]):
        g = int((case.matrices - matrix).abs().amax((1, 2)).argmin())
        columns.append(next(c for c, members in enumerate(case.classes) if g in members))
    actual = case.characters[:, columns]
    assert sorted(columns) == list(range(len(rows)))
    assert (actual[0] == 1).all()
    assert actual[:, 0].real.tolist() == sorted(actual[:, 0].real.tolist())
    # Integers are exact, so the rows can be compared as sets.
    assert {tuple(row) for row in actual.tolist()} == {tuple(map(complex, row)) for row in rows}


def test_characters_are_orthogonal(case: Case) -> None:
    x, k = case.characters, len(case.classes)
    assert x.shape == (k, k)
    assert x.dtype == torch.complex128
    one = torch.eye(k, dtype=torch.complex128)
    near((x * case.sizes) @ x.mH / case.order, one)
    near(x.mH @ x * (case.sizes / case.order)[:, None], one)


def test_degrees_of_complex_irreps(case: Case) -> None:
    degrees = case.characters[:, 0]
    assert torch.equal(degrees, degrees.real.round() + 0j)
    assert float(degrees.real.square().sum()) == case.order
    assert torch.equal(case.characters[0], torch.ones(len(case.classes), dtype=torch.complex128))


def test_characters_of_a_larger_group() -> None:
    table = rep.multiplication_table(rep.close([turn(30), MIRROR]))
    sizes = torch.tensor([len(c) for c in rep.conjugacy_classes(table)])
    x = rep.character_table(table)
    near((x * sizes) @ x.mH / 60, torch.eye(len(sizes), dtype=torch.complex128))
    assert x[:, 0].real.tolist() == [1.0] * 4 + [2.0] * 14


def test_frobenius_schur_types(case: Case) -> None:
    types = [rep.frobenius_schur(case.table, chi) for chi in case.characters]
    expected = [t for _, t in case.expected for _ in range(2 if t is COMPLEX else 1)]
    assert sorted(types) == sorted(expected)
    for chi, kind in zip(case.characters, types, strict=True):
        assert (kind is COMPLEX) == bool((chi.imag.abs() > 1e-6).any())


def test_frobenius_schur_refuses_what_is_not_irreducible() -> None:
    case = case_of("Q8")
    with pytest.raises(ValueError, match="norm 4, indicator -2"):
        rep.frobenius_schur(case.table, 2 * case.characters[-1])
    pair = case_of("C3").characters[1:].sum(0)
    with pytest.raises(ValueError, match="norm 2, indicator 0"):
        rep.frobenius_schur(case_of("C3").table, pair)
    with pytest.raises(ValueError, match="norm 1, indicator -1"):
        rep.frobenius_schur(case.table, -case.characters[0])
    with pytest.raises(ValueError, match="norm 1, indicator 1"):
        rep.frobenius_schur(case.table, -case.characters[-1])
    with pytest.raises(ValueError, match=r"indicator 0\.6"):
        rep.frobenius_schur(case.table, 0.6 * case.characters[0] + 0.8j * case.characters[1])
    with pytest.raises(ValueError, match=r"one value per class, 5, got shape \(4,\)"):
        rep.frobenius_schur(case.table, case.characters[-1][:4])


# --- real irreps -----------------------------------------------------------------------------------


def test_degree_of_a_type() -> None:
    assert [t.degree for t in (REAL, COMPLEX, QUATERNIONIC)] == [1, 2, 4]
    assert SchurType("quaternionic") is QUATERNIONIC
    assert REAL == "real"


def test_real_irreps_have_the_expected_dimensions_and_types(case: Case) -> None:
    assert sorted((r.dim, r.type) for r in case.irreps) == sorted(case.expected)
    assert [r.dim for r in case.irreps] == sorted(r.dim for r in case.irreps)
    assert torch.equal(case.irreps[0].matrices, torch.ones(case.order, 1, 1, dtype=torch.float64))
    assert sum(r.dim**2 / r.type.degree for r in case.irreps) == case.order


def test_real_irreps_are_orthogonal_homomorphisms(case: Case) -> None:
    for irrep in case.irreps:
        rho = irrep.matrices
        near(rho[:, None] @ rho, rho[case.table])
        near(rho @ rho.mT, eye(irrep.dim).expand_as(rho))


def test_real_irreps_are_pairwise_inequivalent(case: Case) -> None:
    characters = torch.stack([torch.einsum("gaa->g", r.matrices) for r in case.irreps])
    degrees = torch.tensor([float(r.type.degree) for r in case.irreps], dtype=torch.float64)
    near(characters @ characters.T / case.order, torch.diag(degrees))


def test_schur_type_and_endomorphisms_of_given_irreps(case: Case) -> None:
    for seed, irrep in enumerate(case.irreps):
        rho = conjugated(irrep.matrices, orthogonal(irrep.dim, seed))
        assert rep.schur_type(rho) is irrep.type
        for matrices, units in ((rho, rep.endomorphisms(rho)), (irrep.matrices, irrep.endomorphisms)):
            one = eye(irrep.dim)
            assert units.shape == (irrep.type.degree, irrep.dim, irrep.dim)
            near(units[0], one)
            near(units[:, None] @ matrices, matrices @ units[:, None])
            for unit in units[1:]:
                near(unit @ unit, -one)
                near(unit.T, -unit)
            for a, b in itertools.combinations(units[1:], 2):
                near(a @ b, -b @ a)
            if irrep.type is QUATERNIONIC:
                near(units[1] @ units[2], units[3])


def test_endomorphisms_of_found_irreps_are_units_of_the_algebra(case: Case) -> None:
    """unit kron 1: so the first D/E columns of an irrep's matrices are orthogonal functions on the group."""
    for irrep in case.irreps:
        degree, components = irrep.type.degree, irrep.dim // irrep.type.degree
        small = irrep.endomorphisms[:, ::components, ::components]
        for unit, whole in zip(small, irrep.endomorphisms, strict=True):
            assert torch.equal(torch.kron(unit.contiguous(), eye(components)), whole)
        near(small[:, :, 0], eye(degree))
        functions = irrep.matrices[:, :, :components].flatten(1) * math.sqrt(irrep.dim / case.order)
        near(functions.T @ functions, eye(irrep.dim * components))


@pytest.mark.parametrize("name", ["S3", "C4", "Q8"])
def test_schur_type_refuses_reducible_representations(name: str) -> None:
    case = case_of(name)
    with pytest.raises(ValueError, match="not irreducible: a space of dimension 2 commutes"):
        rep.schur_type(direct_sum(case.irreps[0].matrices, case.irreps[1].matrices))
    with pytest.raises(ValueError, match="not irreducible: a space of dimension 4 commutes"):
        rep.endomorphisms(direct_sum(case.irreps[1].matrices, case.irreps[1].matrices))
    with pytest.raises(ValueError, match=rf"not irreducible: a space of dimension {case.order} commutes"):
        rep.schur_type(rep.regular(case.table))


def test_endomorphisms_refuses_skewed_irreps() -> None:
    rho = conjugated(case_of("S3").irreps[-1].matrices, torch.diag(torch.tensor([1.0, 2.0]).double()))
    assert rep.schur_type(rho) is REAL
    with pytest.raises(ValueError, match="must be orthogonal, got"):
        rep.endomorphisms(rho)
    with pytest.raises(ValueError, match="must be orthogonal, got"):
        RealIrrep(rho, REAL, eye(2)[None])


def test_real_irrep_refuses_what_does_not_fit() -> None:
    irrep = case_of("C4").irreps[-1]
    with pytest.raises(ValueError, match=r"of complex type, .*, got real"):
        RealIrrep(irrep.matrices, REAL, irrep.endomorphisms)
    with pytest.raises(ValueError, match=r"\(2, 2, 2\), got complex, endomorphisms \(1, 2, 2\)"):
        RealIrrep(irrep.matrices, COMPLEX, irrep.endomorphisms[:1])
    with pytest.raises(ValueError, match="must commute with the irrep, they are 2 off"):
        RealIrrep(irrep.matrices, COMPLEX, torch.stack([eye(2), MIRROR]))
    with pytest.raises(ValueError, match="not irreducible"):
        RealIrrep(eye(2).expand(4, 2, 2), REAL, eye(2)[None])


def test_models_may_be_built_on_another_device() -> None:
    case = case_of("SL(2,3)")
    rho = conjugated(case.matrices, orthogonal(4))
    with torch.device("meta"):
        irreps = rep.real_irreps(rep.multiplication_table(rep.close(GROUPS["SL(2,3)"][0])))
        maps = rep.intertwiners(rho, rho, case.table)
        parts = rep.decompose(rho, case.table, irreps)
        blocks = parts.blocks([r.matrices for r in irreps])
    assert {t.device.type for t in (maps, blocks, parts.basis, irreps[-1].endomorphisms)} == {"cpu"}


# --- decomposition ---------------------------------------------------------------------------------


def check_decomposition(case: Case, rho: Tensor, parts: Decomposition, orthonormal: bool = True) -> None:
    q = parts.basis
    blocks = parts.blocks([r.matrices for r in case.irreps])
    near(rho @ q, q @ blocks)
    near(q @ blocks @ torch.linalg.inv(q), rho)
    if orthonormal:
        near(q.T @ q, eye(len(q)))


def test_regular_representation_contains_every_irrep(case: Case) -> None:
    rho = rep.regular(case.table)
    parts = rep.decompose(rho, case.table, case.irreps)
    assert parts.multiplicities == tuple(r.dim // r.type.degree for r in case.irreps)
    check_decomposition(case, rho, parts)


def test_defining_representation_without_given_irreps(case: Case) -> None:
    parts = rep.decompose(case.matrices, case.table)
    check_decomposition(case, case.matrices, parts)


def test_tensor_products_and_sums(case: Case) -> None:
    last = case.irreps[-1].matrices
    rho = direct_sum(tensor_product(last, last), case.matrices, rep.regular(case.table))
    check_decomposition(case, rho, rep.decompose(rho, case.table, case.irreps))


def test_known_multiplicities() -> None:
    s4 = case_of("S4")
    points = rep.decompose(s4.matrices, s4.table, s4.irreps).multiplicities
    assert points[0] == 1
    assert sum(points[3:]) == 1
    assert sum(points) == 2
    q8 = case_of("Q8")
    last = q8.irreps[-1].matrices
    square = tensor_product(last, last)
    assert rep.decompose(square, q8.table, q8.irreps).multiplicities == (4, 4, 4, 4, 0)


def test_copies_run_fastest() -> None:
    case = case_of("S3")
    parts = Decomposition(eye(6), (2, 0, 2))
    blocks = parts.blocks([r.matrices for r in case.irreps])
    two = case.irreps[2].matrices
    near(blocks[:, 2::2, 2::2], two)
    near(blocks[:, 3::2, 3::2], two)
    assert not blocks[:, 2::2, 3::2].any()
    assert not blocks[:, :2, 2:].any()


@given(data=st.data(), name=st.sampled_from(NAMES), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_random_multiplicities_in_a_random_basis(data: st.DataObject, name: str, seed: int) -> None:
    case = case_of(name)
    k = len(case.irreps)
    multiplicities = data.draw(st.lists(st.integers(0, 3), min_size=k, max_size=k).filter(any))
    rho = copies(case.irreps, multiplicities)
    n = rho.shape[1]
    for basis, orthonormal in (
        (orthogonal(n, seed), True),
        (orthogonal(n, seed) @ torch.linspace(0.3, 3, n).double().diag() @ orthogonal(n, seed + 1), False),
    ):
        given_rho = conjugated(rho, basis)
        parts = rep.decompose(given_rho, case.table, case.irreps)
        assert parts.multiplicities == tuple(multiplicities)
        check_decomposition(case, given_rho, parts, orthonormal)


@pytest.mark.parametrize("name", ["S4", "Q8", "SL(2,3)"])
def test_decomposition_stays_accurate_in_sixty_dimensions(name: str) -> None:
    case = case_of(name)
    rho = direct_sum(*[case.matrices] * 15)
    rho = conjugated(rho, orthogonal(60))
    check_decomposition(case, rho, rep.decompose(rho, case.table, case.irreps))


def test_decompose_refuses_what_is_no_representation() -> None:
    case = case_of("S3")
    rho = case.matrices.clone()
    rho[2] = rho[2] + 0.01 * eye(3)
    with pytest.raises(ValueError, match=r"rho is no representation: \(\d\)\(\d\) is 0.0\d+ off \(\d\)"):
        rep.decompose(rho, case.table)
    with pytest.raises(ValueError, match="rho has 2 matrices, the group 6 elements"):
        rep.decompose(rho[:2], case.table)
    with pytest.raises(ValueError, match="the identity is 1 off"):
        rep.decompose(torch.zeros(6, 2, 2), case.table)
    with pytest.raises(ValueError, match=r"rho must be real.*\(6, 3\)"):
        rep.decompose(rho[0].expand(2, 3, 3).flatten(0, 1), case.table)
    with pytest.raises(ValueError, match="rho is no representation"):
        rep.decompose(torch.full((6, 1, 1), math.nan), case.table)


def test_the_pair_that_fails_is_named() -> None:
    table = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match=r"rho is no representation: \(1\)\(1\) is 3 off \(0\)"):
        rep.decompose(torch.tensor([[[1.0]], [[2.0]]]), table)


def test_decompose_refuses_unsuitable_irreps() -> None:
    case = case_of("C2")
    rho = rep.regular(case.table)
    even, odd = case.irreps
    for irreps in ([], [even], [even, even], [even, odd, odd]):
        with pytest.raises(ValueError, match="irreps missing or repeated"):
            rep.decompose(rho, case.table, irreps)
    with pytest.raises(ValueError, match=r"irreps\[0\] has 4 matrices, the group 2 elements"):
        rep.decompose(rho, case.table, case_of("C4").irreps)
    klein = case_of("C2xC2")
    with pytest.raises(ValueError, match=r"irreps\[\d\] is no representation"):
        rep.decompose(rep.regular(klein.table), klein.table, case_of("C4").irreps)


def test_blocks_refuses_other_irreps() -> None:
    parts = Decomposition(eye(3), (1, 0, 1))
    one, two = torch.ones(6, 1, 1), torch.ones(6, 2, 2)
    with pytest.raises(ValueError, match=r"dimensions \[1, 1\] do not fill 3 with \(1, 0, 1\) copies"):
        parts.blocks([one, one])
    with pytest.raises(ValueError, match=r"dimensions \[1, 2, 1\]"):
        parts.blocks([one, two, one])
    with pytest.raises(ValueError, match=r"dimensions \[1, 1, 2, 1\] do not fill"):
        parts.blocks([one, one, two, one])


# --- intertwiners ----------------------------------------------------------------------------------


def check_intertwiners(case: Case, rho_in: Tensor, rho_out: Tensor) -> Tensor:
    maps = rep.intertwiners(rho_in, rho_out, case.table, case.irreps)
    m_in = rep.decompose(rho_in, case.table, case.irreps).multiplicities
    m_out = rep.decompose(rho_out, case.table, case.irreps).multiplicities
    count = sum(r.type.degree * m * n for r, m, n in zip(case.irreps, m_in, m_out, strict=True))
    assert maps.shape == (count, rho_out.shape[1], rho_in.shape[1])
    near(maps[:, None] @ rho_in, rho_out @ maps[:, None])
    assert count == null_space_dimension(rho_in, rho_out)
    if count:
        assert int(torch.linalg.matrix_rank(maps.flatten(1))) == count
    return maps


def test_intertwiners_between_orthogonal_representations_are_orthonormal(case: Case) -> None:
    last = case.irreps[-1].matrices
    rho_in = conjugated(direct_sum(case.matrices, last), orthogonal(case.matrices.shape[1] + last.shape[1]))
    maps = check_intertwiners(case, rho_in, direct_sum(last, case.irreps[0].matrices, last)).flatten(1)
    near(maps @ maps.T, eye(len(maps)))


def test_intertwiners_of_skewed_representations(case: Case) -> None:
    last = case.irreps[-1].matrices
    n = case.matrices.shape[1]
    rho_in = conjugated(case.matrices, orthogonal(n) @ torch.linspace(0.5, 2, n).double().diag())
    rho_out = direct_sum(last, last)
    rho_out = conjugated(rho_out, orthogonal(rho_out.shape[1], 1) + 0.3 * eye(rho_out.shape[1]))
    check_intertwiners(case, rho_in, rho_out)


@pytest.mark.parametrize("name", ["C2xC2", "C4", "S3", "Q8"])
def test_commutant_of_the_regular_representation_is_the_group(name: str) -> None:
    case = case_of(name)
    rho = rep.regular(case.table)
    maps = rep.intertwiners(rho, rho, case.table)
    assert len(maps) == case.order
    # Right translations commute with left ones, so they lie in the span of the maps.
    right = torch.nn.functional.one_hot(case.table.T, case.order).mT.double().flatten(1)
    near(right @ maps.flatten(1).T @ maps.flatten(1), right)


def test_different_irreps_have_no_intertwiner() -> None:
    case = case_of("C2")
    even, odd = (r.matrices for r in case.irreps)
    assert check_intertwiners(case, even, odd).shape == (0, 1, 1)


def test_intertwiners_refuses_what_is_no_representation() -> None:
    case = case_of("S3")
    with pytest.raises(ValueError, match="is no representation"):
        rep.intertwiners(case.matrices, 2 * case.matrices, case.table, case.irreps)


# --- cost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("C1", 1),
        ("C2", 1 / 2),
        ("C2xC2", 1 / 4),
        ("C4", 3 / 8),
        ("D4", 3 / 16),
        ("S3", 10 / 36),
        ("Q8", 5 / 16),
    ],
)
@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 3), (2, 5)])
def test_ratio_of_regular_features(name: str, ratio: float, a: int, b: int) -> None:
    irreps = case_of(name).irreps
    m = [r.dim // r.type.degree for r in irreps]
    found = rep.cost([r.dim for r in irreps], [r.type for r in irreps], [a * x for x in m], [b * x for x in m])
    order = case_of(name).order
    assert found.ratio == ratio
    assert found.dense_multiply_adds == a * b * order**2
    assert found.parameters == a * b * order


def test_cost_counts_parameters_and_nonzero_entries(case: Case) -> None:
    """In the basis of the irreps the general equivariant matrix has `multiply_adds` entries."""
    multiplicities = [1 + i % 2 for i in range(len(case.irreps))]
    blocks = [torch.kron(r.matrices, eye(m)[None]) for r, m in zip(case.irreps, multiplicities, strict=True)]
    rho = direct_sum(*blocks)
    maps = rep.intertwiners(rho, rho, case.table, case.irreps)
    found = rep.cost([r.dim for r in case.irreps], [r.type for r in case.irreps], multiplicities, multiplicities)
    assert found.parameters == len(maps)
    general = torch.einsum("k,kyx->yx", random(len(maps)), maps)
    assert found.multiply_adds == int((general.abs() > 1e-9).sum())
    assert found.dense_multiply_adds == general.numel()
    assert [b.dim for b in found.blocks] == [r.dim for r in case.irreps]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 1], [REAL], [1, 1], [1, 1]), r"dims=\[1, 1\], types=\['real'\], m_in=\[1, 1\]"),
        (([1], [REAL], [1, 2], [1]), r"m_in=\[1, 2\], m_out=\[1\]"),
        (([3], [COMPLEX], [1], [1]), "a complex irrep has a multiple of 2 dimensions, got 3"),
        (([2], [QUATERNIONIC], [1], [1]), "a quaternionic irrep has a multiple of 4 dimensions, got 2"),
        (([0], [REAL], [1], [1]), "got 0"),
        (([1, 1], [REAL] * 2, [2, -1], [1, 1]), r"m_in needs multiplicities >= 0.*got \[2, -1\]"),
        (([1, 1], [REAL] * 2, [2, 1], [0, 0]), r"m_out needs.*got \[0, 0\]"),
        (([], [], [], []), r"m_in needs.*got \[\]"),
    ],
)
def test_cost_refuses(arguments: tuple[list[int], list[SchurType], list[int], list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rep.cost(*arguments)
