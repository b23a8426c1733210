"""Real irreps and decompositions, of groups that images have and of some that they haven't."""

import itertools
import math

import pytest
import torch
from finite_groups import (
    COMPLEX,
    GROUPS,
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
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flopping import characters as ch
from flopping import representations as rep
from flopping.representations import Decomposition, RealIrrep


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


def test_real_irreps_are_reproducible_and_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    for a, b in zip(Case("SL(2,3)").irreps, Case("SL(2,3)").irreps, strict=True):
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


@pytest.mark.parametrize("name", ["S3", "C4", "Q8"])
def test_schur_type_refuses_reducible_representations(name: str) -> None:
    case = case_of(name)
    with pytest.raises(ValueError, match="not irreducible: a space of dimension 2 commutes"):
        rep.schur_type(direct_sum(case.irreps[0].matrices, case.irreps[1].matrices))
    with pytest.raises(ValueError, match="not irreducible: a space of dimension 4 commutes"):
        rep.endomorphisms(direct_sum(case.irreps[1].matrices, case.irreps[1].matrices))
    with pytest.raises(ValueError, match=rf"not irreducible: a space of dimension {case.order} commutes"):
        rep.schur_type(ch.regular(case.table))


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
        irreps = rep.real_irreps(ch.multiplication_table(ch.close(GROUPS["SL(2,3)"][0])))
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
    rho = ch.regular(case.table)
    even, odd = case.irreps
    for irreps in ([], [even], [even, even], [even, odd, odd]):
        with pytest.raises(ValueError, match="irreps missing or repeated"):
            rep.decompose(rho, case.table, irreps)
    with pytest.raises(ValueError, match=r"irreps\[0\] has 4 matrices, the group 2 elements"):
        rep.decompose(rho, case.table, case_of("C4").irreps)
    klein = case_of("C2xC2")
    with pytest.raises(ValueError, match=r"irreps\[\d\] is no representation"):
        rep.decompose(ch.regular(klein.table), klein.table, case_of("C4").irreps)


def test_blocks_refuses_other_irreps() -> None:
    parts = Decomposition(eye(3), (1, 0, 1))
    one, two = torch.ones(6, 1, 1), torch.ones(6, 2, 2)
    with pytest.raises(ValueError, match=r"dimensions \[1, 1\] do not fill 3 with \(1, 0, 1\) copies"):
        parts.blocks([one, one])
    with pytest.raises(ValueError, match=r"dimensions \[1, 2, 1\]"):
        parts.blocks([one, two, one])
    with pytest.raises(ValueError, match=r"dimensions \[1, 1, 2, 1\] do not fill"):
        parts.blocks([one, one, two, one])
