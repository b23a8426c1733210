"""Real irreps, decompositions, intertwiners and their cost, for groups with an action on images and without."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.finite_groups import (
    COMPLEX,
    MIRROR,
    NAMES,
    QUATERNIONIC,
    REAL,
    Case,
    case_of,
    conjugated,
    direct_sum,
    eye,
    near,
    orthogonal,
    random,
)
from torch import Tensor

from flopping.groups import characters as ch
from flopping.groups import representations as rep
from flopping.groups.characters import SchurType
from flopping.groups.representations import Decomposition, RealIrrep


def tensor_product(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([torch.kron(x, y) for x, y in zip(a, b, strict=True)])


def copies(irreps: tuple[RealIrrep, ...], multiplicities: list[int]) -> Tensor:
    return direct_sum(*(r.matrices for r, m in zip(irreps, multiplicities, strict=True) for _ in range(m)))


# --- real irreps -----------------------------------------------------------------------------------


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


def test_characters_and_irreps_are_reproducible_and_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    first, second = Case("SL(2,3)"), Case("SL(2,3)")
    assert torch.equal(first.characters, second.characters)
    for a, b in zip(first.irreps, second.irreps, strict=True):
        assert torch.equal(a.matrices, b.matrices)
        assert torch.equal(a.endomorphisms, b.endomorphisms)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_identity_may_stand_anywhere() -> None:
    matrices = case_of("S3").matrices.flip(0)
    table = ch.multiplication_table(matrices)
    irreps = rep.real_irreps(table)
    assert [r.dim for r in irreps] == [1, 1, 2]
    assert rep.decompose(matrices, table, irreps).multiplicities == (1, 0, 1)


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


def test_reducible_representations_are_refused() -> None:
    case = case_of("C4")
    one, two, *_ = (r.matrices for r in case.irreps)
    with pytest.raises(ValueError, match="not irreducible: a space of dimension 2 commutes"):
        rep.schur_type(direct_sum(one, two))
    with pytest.raises(ValueError, match="not irreducible: a space of dimension 4 commutes"):
        rep.endomorphisms(direct_sum(two, two))


def test_skewed_irreps_are_refused() -> None:
    rho = conjugated(case_of("S3").irreps[-1].matrices, torch.diag(torch.tensor([1.0, 2.0]).double()))
    assert rep.schur_type(rho) is REAL
    for call in (lambda: rep.endomorphisms(rho), lambda: RealIrrep(rho, REAL, eye(2)[None])):
        with pytest.raises(ValueError, match="must be orthogonal, got"):
            call()


def test_real_irrep_refuses_what_does_not_fit() -> None:
    irrep = case_of("C4").irreps[-1]
    for kind, units, message in (
        (REAL, irrep.endomorphisms, r"of complex type, .*, got real"),
        (COMPLEX, irrep.endomorphisms[:1], r"\(2, 2, 2\), got complex, endomorphisms \(1, 2, 2\)"),
        (COMPLEX, torch.stack([eye(2), MIRROR]), "must commute with the irrep, they are 2 off"),
    ):
        with pytest.raises(ValueError, match=message):
            RealIrrep(irrep.matrices, kind, units)


# --- decomposition ---------------------------------------------------------------------------------


def check_decomposition(case: Case, rho: Tensor, parts: Decomposition, orthonormal: bool = True) -> None:
    q = parts.basis
    blocks = parts.blocks([r.matrices for r in case.irreps])
    near(rho @ q, q @ blocks)
    near(q @ blocks @ torch.linalg.inv(q), rho)
    if orthonormal:
        near(q.T @ q, eye(len(q)))


def test_regular_representation_contains_every_irrep(case: Case) -> None:
    rho = ch.regular(case.table)
    parts = rep.decompose(rho, case.table, case.irreps)
    assert parts.multiplicities == tuple(r.dim // r.type.degree for r in case.irreps)
    check_decomposition(case, rho, parts)


def test_defining_representation_without_given_irreps(case: Case) -> None:
    parts = rep.decompose(case.matrices, case.table)
    check_decomposition(case, case.matrices, parts)


def test_tensor_products_and_sums(case: Case) -> None:
    last = case.irreps[-1].matrices
    rho = direct_sum(tensor_product(last, last), case.matrices, ch.regular(case.table))
    check_decomposition(case, rho, rep.decompose(rho, case.table, case.irreps))


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
@settings(max_examples=8, deadline=None, derandomize=True)
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


def test_decomposition_stays_accurate_in_sixty_dimensions() -> None:
    case = case_of("SL(2,3)")
    rho = direct_sum(*[case.matrices] * 15)
    rho = conjugated(rho, orthogonal(60))
    check_decomposition(case, rho, rep.decompose(rho, case.table, case.irreps))


def test_decompose_refuses_what_is_no_representation() -> None:
    case = case_of("S3")
    rho = case.matrices.clone()
    rho[2] += 0.01 * eye(3)
    for wrong, message in (
        (rho, r"rho is no representation: \(\d\)\(\d\) is 0.0\d+ off \(\d\)"),
        (rho[:2], "rho has 2 matrices, the group 6 elements"),
        (torch.zeros(6, 2, 2), "the identity is 1 off"),
        (rho[:, 0], r"rho must be real.*\(6, 3\)"),
        (torch.full((6, 1, 1), math.nan), "rho is no representation"),
    ):
        with pytest.raises(ValueError, match=message):
            rep.decompose(wrong, case.table)
        with pytest.raises(ValueError, match=message):
            rep.intertwiners(wrong, case.matrices, case.table)


def test_decompose_refuses_unsuitable_irreps() -> None:
    case, klein, four = case_of("C2"), case_of("C2xC2"), case_of("C4").irreps
    rho = ch.regular(case.table)
    even, odd = case.irreps
    for irreps in ([], [even], [even, odd, odd]):
        with pytest.raises(ValueError, match="irreps missing or repeated"):
            rep.decompose(rho, case.table, irreps)
    with pytest.raises(ValueError, match=r"irreps\[0\] has 4 matrices, the group 2 elements"):
        rep.decompose(rho, case.table, four)
    with pytest.raises(ValueError, match=r"irreps\[\d\] is no representation"):
        rep.decompose(ch.regular(klein.table), klein.table, four)


def test_blocks_refuses_other_irreps() -> None:
    one, two = torch.ones(6, 1, 1), torch.ones(6, 2, 2)
    for wrong in ([one, one], [one, two, one], [one, one, two, one]):
        with pytest.raises(ValueError, match=r"do not fill 3 with \(1, 0, 1\) copies"):
            Decomposition(eye(3), (1, 0, 1)).blocks(wrong)


# --- intertwiners ----------------------------------------------------------------------------------


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
    rho = ch.regular(case.table)
    maps = rep.intertwiners(rho, rho, case.table)
    assert len(maps) == case.order
    # Right translations commute with left ones, so they lie in the span of the maps.
    right = torch.nn.functional.one_hot(case.table.T, case.order).mT.double().flatten(1)
    near(right @ maps.flatten(1).T @ maps.flatten(1), right)


def test_different_irreps_have_no_intertwiner() -> None:
    case = case_of("C2")
    assert len(check_intertwiners(case, *(r.matrices for r in case.irreps))) == 0


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
        (([3], [COMPLEX], [1], [1]), "a complex irrep has a multiple of 2 dimensions, got 3"),
        (([1, 1], [REAL] * 2, [2, -1], [1, 1]), r"m_in needs multiplicities >= 0.*got \[2, -1\]"),
        (([1, 1], [REAL] * 2, [2, 1], [0, 0]), r"m_out needs.*got \[0, 0\]"),
    ],
)
def test_cost_refuses(arguments: tuple[list[int], list[SchurType], list[int], list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rep.cost(*arguments)
