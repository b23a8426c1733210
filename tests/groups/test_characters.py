"""Multiplication tables and characters of groups that images have, and of some that they haven't."""

import itertools
from collections.abc import Callable

import pytest
import torch
from support.finite_groups import COMPLEX, GROUPS, MIRROR, Case, case_of, cycle, eye, near, turn
from torch import Tensor

from flopping.groups import characters as ch

# --- the group -------------------------------------------------------------------------------------


def test_closure_has_the_right_order_and_starts_with_the_identity(case: Case) -> None:
    assert len(case.matrices) == case.order
    assert torch.equal(case.matrices[0], eye(case.matrices.shape[1]))


def test_max_order_is_inclusive() -> None:
    assert len(ch.close([cycle(8)], max_order=8)) == 8
    with pytest.raises(ValueError, match="larger than max_order=7"):
        ch.close([cycle(8)], max_order=7)


@pytest.mark.parametrize(
    ("generators", "message"),
    [
        ([], r"got shapes \[\]"),
        ([torch.ones(2, 3)], r"square.*\(1, 2, 3\)"),
        ([torch.eye(2, dtype=torch.complex128)], "complex128"),
        ([turn(7) * 0.5], r"\|det\| = 1, got \[0.25"),
        ([torch.tensor([[1.0, 1.0], [0.0, 1.0]])], "not finite, or larger than max_order=1024"),
    ],
)
def test_close_refuses(generators: list[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ch.close(generators)


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
        (torch.empty(0, 2, 2), r"\(0, 2, 2\)"),
    ],
)
def test_multiplication_table_refuses(matrices: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ch.multiplication_table(matrices)


def test_inverses(case: Case) -> None:
    inverse = ch.inverses(case.table)
    near(case.matrices @ case.matrices[inverse], eye(case.matrices.shape[1]).expand_as(case.matrices))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (torch.tensor([[0, 1], [0, 1]]), "not the multiplication table of a group"),
        (torch.tensor([[1, 0, 2], [0, 2, 1], [2, 1, 0]]), "not the multiplication table of a group"),
        (torch.tensor([[0, 1]]), r"\(1, 2\)"),
        (torch.tensor([[0.0]]), "float32"),
    ],
)
@pytest.mark.parametrize("function", [ch.inverses, ch.conjugacy_classes, ch.regular, ch.character_table])
def test_tables_that_are_no_group_are_refused(
    function: Callable[[Tensor], object], table: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(table)


def test_conjugacy_classes_partition_the_group(case: Case) -> None:
    assert case.classes[0] == (0,)
    assert sorted(itertools.chain(*case.classes)) == list(range(case.order))
    inverse = ch.inverses(case.table).tolist()
    table = case.table.tolist()
    for members in case.classes:
        for g, h in itertools.product(members, range(case.order)):
            assert table[table[h][g]][inverse[h]] in members
    # Burnside: as many classes as commuting pairs per element.
    assert int((case.table == case.table.T).sum()) == case.order * len(case.classes)


def test_regular_representation_moves_the_deltas(case: Case) -> None:
    left = ch.regular(case.table)
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


def test_characters_of_a_larger_group() -> None:
    table = ch.multiplication_table(ch.close([turn(30), MIRROR]))
    sizes = torch.tensor([len(c) for c in ch.conjugacy_classes(table)])
    x = ch.character_table(table)
    near((x * sizes) @ x.mH / 60, torch.eye(len(sizes), dtype=torch.complex128))
    assert x[:, 0].real.tolist() == [1.0] * 4 + [2.0] * 14


def test_frobenius_schur_types(case: Case) -> None:
    types = [ch.frobenius_schur(case.table, chi) for chi in case.characters]
    expected = [t for _, t in case.expected for _ in range(2 if t is COMPLEX else 1)]
    assert sorted(types) == sorted(expected)
    for chi, kind in zip(case.characters, types, strict=True):
        assert (kind is COMPLEX) == bool((chi.imag.abs() > 1e-6).any())


def test_frobenius_schur_refuses_what_is_not_irreducible() -> None:
    q8, c3 = case_of("Q8"), case_of("C3")
    for case, character, message in (
        (q8, 2 * q8.characters[-1], "norm 4, indicator -2"),
        (c3, c3.characters[1:].sum(0), "norm 2, indicator 0"),
        (q8, -q8.characters[-1], "norm 1, indicator 1"),
        (q8, 0.6 * q8.characters[0] + 0.8j * q8.characters[1], r"indicator 0\.6"),
        (q8, q8.characters[-1][:4], r"one value per class, 5, got shape \(4,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            ch.frobenius_schur(case.table, character)
