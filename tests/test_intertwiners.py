"""Linear maps that commute with a group, of groups that images have and some that they haven't, and their cost."""

import pytest
import torch
from finite_groups import (
    COMPLEX,
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

from flopping import characters as ch
from flopping import representations as rep
from flopping.characters import SchurType


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
    rho = ch.regular(case.table)
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
