"""Real irreps, decompositions, intertwiners and their cost, for groups with an action on images and without."""

import itertools
import math
from collections.abc import Callable

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
from flopping.groups.representations import Decomposition, RealIrrep

# --- real irreps -----------------------------------------------------------------------------------


def test_real_irreps_are_the_expected_ones(case: Case) -> None:
    """Orthogonal, homomorphisms, pairwise inequivalent, and complete: squares of dimensions add up to the order."""
    assert sorted((r.dim, r.type) for r in case.irreps) == sorted(case.expected)
    assert [r.dim for r in case.irreps] == sorted(r.dim for r in case.irreps)
    assert torch.equal(case.irreps[0].matrices, torch.ones(case.order, 1, 1, dtype=torch.float64))
    assert sum(r.dim**2 / r.type.degree for r in case.irreps) == case.order
    for rho in (r.matrices for r in case.irreps):
        near(rho[:, None] @ rho, rho[case.table])
        near(rho @ rho.mT, eye(rho.shape[1]).expand_as(rho))
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


def test_schur_type_and_endomorphisms(case: Case) -> None:
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


# --- decomposition ---------------------------------------------------------------------------------


def check_decomposition(case: Case, rho: Tensor, parts: Decomposition, orthonormal: bool = True) -> None:
    q = parts.basis
    blocks = parts.blocks([r.matrices for r in case.irreps])
    near(rho @ q, q @ blocks)
    near(q @ blocks @ torch.linalg.inv(q), rho)
    if orthonormal:
        near(q.T @ q, eye(len(q)))


def test_decomposition(case: Case) -> None:
    """The regular representation has every irrep; the group's own matrices; tensor products; sums of them."""
    regular, last = ch.regular(case.table), case.irreps[-1].matrices
    found = rep.decompose(regular, case.table, case.irreps).multiplicities
    assert found == tuple(r.dim // r.type.degree for r in case.irreps)
    product = torch.stack([torch.kron(x, x) for x in last])
    for rho in (regular, case.matrices, direct_sum(product, case.matrices, regular)):
        check_decomposition(case, rho, rep.decompose(rho, case.table))


def test_copies_run_fastest() -> None:
    case = case_of("S3")
    blocks = Decomposition(eye(6), (2, 0, 2)).blocks([r.matrices for r in case.irreps])
    near(blocks[:, 2:, 2:], torch.kron(case.irreps[2].matrices, eye(2)[None]))
    assert not blocks[:, :2, 2:].any()


@given(data=st.data(), name=st.sampled_from(NAMES), seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_random_multiplicities_in_a_random_basis(data: st.DataObject, name: str, seed: int) -> None:
    case = case_of(name)
    k = len(case.irreps)
    counts = data.draw(st.lists(st.integers(0, 3), min_size=k, max_size=k).filter(any))
    rho = direct_sum(*(r.matrices for r, m in zip(case.irreps, counts, strict=True) for _ in range(m)))
    n = rho.shape[1]
    for basis, orthonormal in (
        (orthogonal(n, seed), True),
        (orthogonal(n, seed) @ torch.linspace(0.3, 3, n).double().diag() @ orthogonal(n, seed + 1), False),
    ):
        given_rho = conjugated(rho, basis)
        parts = rep.decompose(given_rho, case.table, case.irreps)
        assert parts.multiplicities == tuple(counts)
        check_decomposition(case, given_rho, parts, orthonormal)


def test_decomposition_stays_accurate_in_sixty_dimensions() -> None:
    case = case_of("SL(2,3)")
    rho = conjugated(direct_sum(*[case.matrices] * 15), orthogonal(60))
    check_decomposition(case, rho, rep.decompose(rho, case.table, case.irreps))


# --- intertwiners ----------------------------------------------------------------------------------


def null_space_dimension(rho_in: Tensor, rho_out: Tensor) -> int:
    """Dimension of {A : A rho_in = rho_out A} by one dense SVD of the equations on vec(A)."""
    n_in, n_out = rho_in.shape[1], rho_out.shape[1]
    pairs = zip(rho_in, rho_out, strict=True)
    equations = [torch.kron(eye(n_out), a.T.contiguous()) - torch.kron(b, eye(n_in)) for a, b in pairs]
    return n_in * n_out - int((torch.linalg.svdvals(torch.cat(equations)) > 1e-8).sum())


def check_intertwiners(case: Case, rho_in: Tensor, rho_out: Tensor) -> Tensor:
    maps = rep.intertwiners(rho_in, rho_out, case.table, case.irreps)
    assert maps.shape == (null_space_dimension(rho_in, rho_out), rho_out.shape[1], rho_in.shape[1])
    near(maps[:, None] @ rho_in, rho_out @ maps[:, None])
    assert not len(maps) or int(torch.linalg.matrix_rank(maps.flatten(1))) == len(maps)
    return maps.flatten(1)


def test_intertwiners(case: Case) -> None:
    """Orthonormal between orthogonal representations, complete between skewed ones and where there are none."""
    first, last = case.irreps[0].matrices, case.irreps[-1].matrices
    n = case.matrices.shape[1]
    rho_in = conjugated(direct_sum(case.matrices, last), orthogonal(n + last.shape[1]))
    maps = check_intertwiners(case, rho_in, direct_sum(last, first, last))
    near(maps @ maps.T, eye(len(maps)))
    twice = direct_sum(last, last)
    basis = orthogonal(twice.shape[1], 1) + 0.3 * eye(twice.shape[1])
    skewed = conjugated(case.matrices, orthogonal(n) @ torch.linspace(0.5, 2, n).double().diag())
    check_intertwiners(case, skewed, conjugated(twice, basis))
    if len(case.irreps) > 1:
        assert len(check_intertwiners(case, first, last)) == 0


@pytest.mark.parametrize("name", ["C2xC2", "C4", "S3", "Q8"])
def test_commutant_of_the_regular_representation_is_the_group(name: str) -> None:
    """Right translations commute with left ones, so they lie in the span of the maps."""
    case = case_of(name)
    rho = ch.regular(case.table)
    maps = rep.intertwiners(rho, rho, case.table).flatten(1)
    assert len(maps) == case.order
    right = torch.nn.functional.one_hot(case.table.T, case.order).mT.double().flatten(1)
    near(right @ maps.T @ maps, right)


def test_cost_counts_parameters_and_nonzero_entries(case: Case) -> None:
    """In the basis of the irreps the general equivariant matrix has `multiply_adds` entries."""
    counts = [1 + i % 2 for i in range(len(case.irreps))]
    rho = direct_sum(*(torch.kron(r.matrices, eye(m)[None]) for r, m in zip(case.irreps, counts, strict=True)))
    maps = rep.intertwiners(rho, rho, case.table, case.irreps)
    found = rep.cost([r.dim for r in case.irreps], [r.type for r in case.irreps], counts, counts)
    general = torch.einsum("k,kyx->yx", random(len(maps)), maps)
    assert found.parameters == len(maps)
    assert found.multiply_adds == int((general.abs() > 1e-9).sum())
    assert found.dense_multiply_adds == general.numel()
    assert [b.dim for b in found.blocks] == [r.dim for r in case.irreps]


# --- errors ----------------------------------------------------------------------------------------

S3, C2, C4, KLEIN = (case_of(name) for name in ("S3", "C2", "C4", "C2xC2"))
EVEN, ODD = C2.irreps
BENT = S3.matrices + 0.01 * eye(3) * (torch.arange(6) == 2)[:, None, None]
SKEWED = conjugated(S3.irreps[-1].matrices, torch.diag(torch.tensor([1.0, 2.0]).double()))
ONE, TWO = C4.irreps[0].matrices, C4.irreps[1].matrices
TURN = C4.irreps[-1]
UNSUITABLE: dict[str, Tensor] = {
    r"\(\d\)\(\d\) is 0.0\d+ off": BENT,
    "2 matrices": BENT[:2],
    "the identity is 1 off": torch.zeros(6, 2, 2),
    r"\(6, 3\)": BENT[:, 0],
    "rho is no representation": torch.full((6, 1, 1), math.nan),
}
REFUSED: list[tuple[Callable[..., object], tuple[object, ...], str]] = [
    (rep.schur_type, (direct_sum(ONE, TWO),), "dimension 2"),
    (rep.endomorphisms, (direct_sum(TWO, TWO),), "dimension 4"),
    (rep.endomorphisms, (SKEWED,), "orthogonal"),
    (RealIrrep, (SKEWED, REAL, eye(2)[None]), "orthogonal"),
    (RealIrrep, (TURN.matrices, REAL, TURN.endomorphisms), "got real"),
    (RealIrrep, (TURN.matrices, COMPLEX, TURN.endomorphisms[:1]), r"got complex, endomorphisms \(1, 2, 2\)"),
    (RealIrrep, (TURN.matrices, COMPLEX, torch.stack([eye(2), MIRROR])), "commute with the irrep, they are 2 off"),
    *((rep.decompose, (rho, S3.table), got) for got, rho in UNSUITABLE.items()),
    *((rep.intertwiners, (rho, S3.matrices, S3.table), got) for got, rho in UNSUITABLE.items()),
    *((rep.decompose, (ch.regular(C2.table), C2.table, r), "missing or repeated") for r in ([EVEN], [EVEN, ODD, ODD])),
    (rep.decompose, (ch.regular(C2.table), C2.table, C4.irreps), r"irreps\[0\] has 4 matrices"),
    (rep.decompose, (ch.regular(KLEIN.table), KLEIN.table, C4.irreps), r"irreps\[\d\] is no representation"),
    (Decomposition(eye(3), (1, 0, 1)).blocks, ([ONE, TWO, ONE],), r"\(1, 0, 1\) copies"),
    (Decomposition(eye(3), (1, 0, 1)).blocks, ([ONE, ONE],), r"\(1, 0, 1\) copies"),
    (rep.cost, ([1, 1], [REAL], [1, 1], [1, 1]), r"types=\['real'\]"),
    (rep.cost, ([3], [COMPLEX], [1], [1]), "got 3"),
    (rep.cost, ([1, 1], [REAL] * 2, [2, -1], [1, 1]), r"m_in .*got \[2, -1\]"),
    (rep.cost, ([1, 1], [REAL] * 2, [2, 1], [0, 0]), r"m_out .*got \[0, 0\]"),
]


@pytest.mark.parametrize(("function", "arguments", "got"), REFUSED)
def test_refused(function: Callable[..., object], arguments: tuple[object, ...], got: str) -> None:
    with pytest.raises(ValueError, match=got):
        function(*arguments)


def test_a_skewed_irrep_has_a_type() -> None:
    assert rep.schur_type(SKEWED) is REAL
