"""What is no irrep or no group is refused."""

import re

import pytest
import torch
from finite_groups import eye, numbers
from torch import Tensor

from flopping import Layout, flipflop, flop, get_group, octic, rot90
from flopping.groups import GRID_NAMES, Group, Irrep

EVEN, ODD = flop.irreps


def signs(name: str, text: str) -> Irrep:
    return Irrep(name, tuple(((float(f"{sign}1"),),) for sign in text))


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        (torch.stack([eye(2), numbers([[1, 0], [0, -1]])]), "not irreducible: .* dimension 2"),
        (eye(2).expand(4, 2, 2), "not irreducible: a space of dimension 4 commutes"),
        (2 * eye(1).expand(2, 1, 1), "not irreducible"),
        (octic.irreps[-1].tensor @ numbers([[1, 0.1], [0, 1]]), "not irreducible"),
        (
            numbers([[1], [2]]) * octic.irreps[-1].tensor / numbers([1, 2]),
            r"matrices must be orthogonal, got \|R R\^T - 1\| up to 3",
        ),
    ],
)
def test_matrices_that_are_no_irrep_are_refused(matrices: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Irrep("bad", tuple(tuple(map(tuple, matrix.tolist())) for matrix in matrices))


@pytest.mark.parametrize(
    ("irreps", "message"),
    [
        ((ODD, EVEN), r"first irrep must be the trivial one, got Irrep\('odd', dim=1, type=real\)"),
        ((EVEN,), r"irreps \[Irrep\('even', .*\)\] fill 1 of the 2 dimensions"),
        ((EVEN, ODD, signs("again", "+-")), "fill 3 of the 2 dimensions .* missing, repeated or not irreducible"),
        (
            (EVEN, signs("again", "++")),
            r"two of the irreps \[Irrep\('even', .*\), Irrep\('again', .*\)\] are equivalent",
        ),
        ((EVEN, signs("even", "+-")), r"irreps need names of their own, got \['even', 'even'\]"),
        ((), r"irreps need names of their own, got \[\]"),
        ((EVEN, rot90.irreps[1]), r"Irrep\('B', dim=1, type=real\) has 4 matrices for 2 elements"),
        (
            (EVEN, signs("minus", "--")),
            r"Irrep\('minus', .*does not follow the group's multiplication, by 2\.0e\+00",
        ),
    ],
)
def test_irreps_that_do_not_fit_the_table_are_refused(irreps: tuple[Irrep, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"^group bad: .*{message}"):
        Group("bad", flop.elements, flop.table, irreps)


def test_a_homomorphism_of_another_table_is_refused() -> None:
    klein = signs("klein", "++--")
    assert Group("klein", flipflop.elements, flipflop.table, (*flipflop.irreps[:2], klein, flipflop.irreps[3]))
    with pytest.raises(ValueError, match=r"group cyclic: Irrep\('klein', .*does not follow"):
        Group("cyclic", rot90.elements, rot90.table, (rot90.irreps[0], klein, rot90.irreps[2]))


@pytest.mark.parametrize(
    "table",
    [
        ((0, 1), (0, 1)),
        ((0, 1), (1, 1)),
        ((1, 0), (0, 1)),
        ((0, 1, 2), (1, 2, 0), (2, 0, 1)),
        ((0, 1),),
        ((0, 2), (2, 0)),
    ],
    ids=str,
)
def test_a_table_that_is_no_group_is_refused(table: tuple[tuple[int, ...], ...]) -> None:
    message = f"group bad: not a multiplication table with the identity first: {re.escape(str(table))}"
    with pytest.raises(ValueError, match=message):
        Group("bad", flop.elements, table, flop.irreps)


def test_a_table_that_is_not_associative_has_no_irreps_to_fill_it() -> None:
    loop = ((0, 1, 2, 3, 4), (1, 0, 3, 4, 2), (2, 4, 0, 1, 3), (3, 2, 4, 0, 1), (4, 3, 1, 2, 0))
    with pytest.raises(ValueError, match="fill 1 of the 5 dimensions"):
        Group("loop", ("identity", "a", "b", "c", "d"), loop, (signs("even", "+++++"),))


def test_symmetries_must_be_complete() -> None:
    with pytest.raises(ValueError, match="group bad: 1 symmetries for 2 elements"):
        Group("bad", flop.elements, flop.table, flop.irreps, flop.symmetries[:1])


@pytest.mark.parametrize("name", ["mirror", "Flop", ""])
def test_an_unknown_name_lists_the_possible_ones(name: str) -> None:
    for call in (lambda: get_group(name), lambda: Layout.regular(name, 8)):
        with pytest.raises(ValueError, match=f"^unknown group '{name}'; .* {GRID_NAMES}$"):
            call()


def test_symmetries_must_follow_the_table() -> None:
    with pytest.raises(ValueError, match="the symmetries of identity and identity do not multiply as the table says"):
        Group("bad", flop.elements, flop.table, flop.irreps, flop.symmetries[::-1])
    with pytest.raises(ValueError, match="3 symmetries for 2 elements"):
        Group("bad", flop.elements, flop.table, flop.irreps, (*flop.symmetries, flop.symmetries[0]))
