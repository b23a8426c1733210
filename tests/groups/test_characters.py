"""Multiplication tables and characters of groups that images have, and of some that they haven't."""

import itertools
from collections.abc import Callable

import pytest
import torch
from support.finite_groups import COMPLEX, GROUPS, MIRROR, Case, case_of, cycle, eye, near, turn
from torch import Tensor

from flopping.groups import characters as ch


def test_elements_and_their_table(case: Case) -> None:
    matrices, table = case.matrices, case.table
    one = eye(matrices.shape[1])
    assert len(matrices) == case.order
    assert torch.equal(matrices[0], one)
    assert table.dtype == torch.long
    near(matrices[:, None] @ matrices, matrices[table])
    near(matrices @ matrices[ch.inverses(table)], one.expand_as(matrices))
    left = ch.regular(table)  # R(h) delta_g = delta_hg
    near(left[:, None] @ left, left[table])
    assert torch.equal(left.argmax(1), table)


def test_conjugacy_classes_partition_the_group(case: Case) -> None:
    assert case.classes[0] == (0,)
    assert sorted(itertools.chain(*case.classes)) == list(range(case.order))
    inverse, table = ch.inverses(case.table).tolist(), case.table.tolist()
    for members in case.classes:
        for g, h in itertools.product(members, range(case.order)):
            assert table[table[h][g]][inverse[h]] in members
    # Burnside: as many classes as commuting pairs per element.
    assert int((case.table == case.table.T).sum()) == case.order * len(case.classes)


W = 1j
Representatives = Callable[..., list[Tensor]]
# elements that stand for their classes, as products of the generators, and the rows
KNOWN_CHARACTERS: dict[str, tuple[Representatives, list[list[complex]]]] = {
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


def test_characters_are_orthogonal_and_have_the_right_types(case: Case) -> None:
    x, one = case.characters, torch.eye(len(case.classes), dtype=torch.complex128)
    near((x * case.sizes) @ x.mH / case.order, one)
    near(x.mH @ x * (case.sizes / case.order)[:, None], one)
    types = [ch.frobenius_schur(case.table, chi) for chi in x]
    assert sorted(types) == sorted(t for _, t in case.expected for _ in range(2 if t is COMPLEX else 1))
    assert [kind is COMPLEX for kind in types] == [bool((chi.imag.abs() > 1e-6).any()) for chi in x]


def test_characters_of_a_larger_group() -> None:
    table = ch.multiplication_table(ch.close([turn(30), MIRROR]))
    sizes = torch.tensor([len(c) for c in ch.conjugacy_classes(table)])
    x = ch.character_table(table)
    near((x * sizes) @ x.mH / 60, torch.eye(len(sizes), dtype=torch.complex128))
    assert x[:, 0].real.tolist() == [1.0] * 4 + [2.0] * 14


# --- errors ----------------------------------------------------------------------------------------

Q8, C3 = case_of("Q8"), case_of("C3")
GENERATORS = {
    r"\[\]": [],
    r"\(1, 2, 3\)": [torch.ones(2, 3)],
    "complex128": [torch.eye(2, dtype=torch.complex128)],
    r"\[0.25": [turn(7) * 0.5],
    "max_order=1024": [torch.tensor([[1.0, 1.0], [0.0, 1.0]])],
}
MATRICES = {
    "1 times 1": torch.stack([eye(2), turn(3)]),
    "0 and 2": torch.stack([eye(2), -eye(2), eye(2)]),
    "singular": torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]),
    r"\(0, 2, 2\)": torch.empty(0, 2, 2),
}
TABLES = {
    r"\[\[0, 1\], \[0, 1\]\]": torch.tensor([[0, 1], [0, 1]]),
    r"\[\[1, 0, 2\]": torch.tensor([[1, 0, 2], [0, 2, 1], [2, 1, 0]]),
    r"\(1, 2\)": torch.tensor([[0, 1]]),
    "float32": torch.tensor([[0.0]]),
}
CHARACTERS = {
    "norm 4, indicator -2": (Q8, 2 * Q8.characters[-1]),
    "norm 2, indicator 0": (C3, C3.characters[1:].sum(0)),
    "norm 1, indicator 1": (Q8, -Q8.characters[-1]),
    r"indicator 0\.6": (Q8, 0.6 * Q8.characters[0] + 0.8j * Q8.characters[1]),
    r"\(4,\)": (Q8, Q8.characters[-1][:4]),
}
OF_TABLES = (ch.inverses, ch.conjugacy_classes, ch.regular, ch.character_table)
REFUSED: list[tuple[Callable[..., object], tuple[object, ...], str]] = [
    (ch.close, ([cycle(8)], 7), "max_order=7"),
    *((ch.close, (value,), got) for got, value in GENERATORS.items()),
    *((ch.multiplication_table, (value,), got) for got, value in MATRICES.items()),
    *((function, (value,), got) for function in OF_TABLES for got, value in TABLES.items()),
    *((ch.frobenius_schur, (case.table, value), got) for got, (case, value) in CHARACTERS.items()),
]


@pytest.mark.parametrize(("function", "arguments", "got"), REFUSED)
def test_refused(function: Callable[..., object], arguments: tuple[object, ...], got: str) -> None:
    with pytest.raises(ValueError, match=got):
        function(*arguments)


def test_max_order_is_inclusive() -> None:
    assert len(ch.close([cycle(8)], max_order=8)) == 8
