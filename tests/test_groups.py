"""The seven groups of the pixel grid: elements and what they do, irreps, subgroups."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from finite_groups import COMPLEX, REAL, direct_sum, eye, near, numbers, random, table_of
from torch import Tensor

from flopping import flip, flipflop, flop, octic, rot90, rot180, trivial
from flopping.characters import SchurType, regular
from flopping.groups import GRID_NAMES, Group, Symmetry, grid_groups
from flopping.representations import real_irreps
from flopping.sums import combine

GROUPS = list(grid_groups().values())
NAMES = ["trivial", "flop", "flip", "rot180", "flipflop", "rot90", "octic"]
each_group = pytest.mark.parametrize("group", GROUPS, ids=str)

PICTURES: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda f: f,
    "rot90": lambda f: torch.rot90(f, 1, (-2, -1)),
    "rot180": lambda f: torch.rot90(f, 2, (-2, -1)),
    "rot270": lambda f: torch.rot90(f, 3, (-2, -1)),
    "flop": lambda f: torch.flip(f, (-1,)),
    "flip": lambda f: torch.flip(f, (-2,)),
    "transpose": lambda f: torch.transpose(f, -2, -1),
    "antitranspose": lambda f: torch.rot90(torch.transpose(f, -2, -1), 2, (-2, -1)),
}

SIGNS = [("even", 1, REAL), ("odd", 1, REAL)]
IRREPS: dict[str, list[tuple[str, int, SchurType]]] = {
    "trivial": [("even", 1, REAL)],
    "flop": SIGNS,
    "flip": SIGNS,
    "rot180": SIGNS,
    "flipflop": [(name, 1, REAL) for name in ("even_even", "odd_even", "even_odd", "odd_odd")],
    "rot90": [("A", 1, REAL), ("B", 1, REAL), ("E", 2, COMPLEX)],
    "octic": [("A1", 1, REAL), ("A2", 1, REAL), ("B1", 1, REAL), ("B2", 1, REAL), ("E", 2, REAL)],
}


def is_subgroup(small: Group, large: Group) -> bool:
    return set(small.elements) <= set(large.elements)


# --- elements and their action ---------------------------------------------------------------------


def test_there_are_seven_grid_groups_smallest_first() -> None:
    assert list(grid_groups()) == NAMES
    assert [trivial, flop, flip, rot180, flipflop, rot90, octic] == GROUPS
    assert [group.order for group in GROUPS] == [1, 2, 2, 2, 4, 4, 8]
    assert [group.swaps_axes for group in GROUPS] == [False] * 5 + [True] * 2
    assert [group.signs_only for group in GROUPS] == [True] * 5 + [False] * 2
    assert ", ".join(NAMES) == GRID_NAMES


@each_group
@pytest.mark.parametrize("size", [(4, 4), (3, 5), (4, 3)], ids=str)
def test_elements_look_like_their_names(group: Group, size: tuple[int, int]) -> None:
    image = random(2, 3, *size)
    for g, name in enumerate(group.elements):
        expected = PICTURES[name](image)
        assert torch.equal(group.act(g, image), expected)
        assert torch.equal(group.act(g, image.movedim(1, -1), (1, 2)), expected.movedim(1, -1))


@each_group
@pytest.mark.parametrize("size", [(3, 3), (2, 3)], ids=str)
def test_the_action_is_from_the_left_on_centred_coordinates(group: Group, size: tuple[int, int]) -> None:
    """(g f)(g p) = f(p), with coordinates measured from the middle of the image."""
    image = random(*size)
    for g, symmetry in enumerate(group.symmetries):
        moved = group.act(g, image)
        for place in itertools.product(*map(range, size)):
            centred = [2 * p - n + 1 for p, n in zip(place, size, strict=True)]
            target = [sum(m * c for m, c in zip(row, centred, strict=True)) for row in symmetry.matrix]
            row, column = ((t + n - 1) // 2 for t, n in zip(target, moved.shape, strict=True))
            assert moved[row, column] == image[place]


@each_group
@pytest.mark.parametrize("size", [(3, 3), (2, 5)], ids=str)
def test_the_table_multiplies_actions(group: Group, size: tuple[int, int]) -> None:
    image = random(2, *size)  # no two elements do the same to it, so one result fits
    orbit = [group.act(g, image) for g in range(group.order)]
    for g, h in itertools.product(range(group.order), repeat=2):
        result = group.act(g, orbit[h])
        assert [k for k, other in enumerate(orbit) if torch.equal(result, other)] == [group.product(g, h)]


@each_group
def test_inverses_undo(group: Group) -> None:
    image = random(3, 4)
    for g in range(group.order):
        assert torch.equal(group.act(group.inverse(g), group.act(g, image)), image)
        assert torch.equal(group.act(g, group.act(group.inverse(g), image)), image)


def test_a_symmetry_tells_how_it_moves() -> None:
    turn = Symmetry(((0, -1), (1, 0)))
    assert turn == rot90.symmetries[1]
    assert (turn.transposes, turn.flipped_axes) == (True, (0,))
    assert [s.flipped_axes for s in flipflop.symmetries] == [(), (1,), (0,), (0, 1)]
    assert torch.equal(turn(torch.eye(2)[None], (1, 2)), torch.eye(2).flip(0)[None])


# --- irreps ----------------------------------------------------------------------------------------


@each_group
def test_names_dimensions_and_types(group: Group) -> None:
    assert [(irrep.name, irrep.dim, irrep.type) for irrep in group.irreps] == IRREPS[group.name]
    assert sum(irrep.dim * irrep.regular_multiplicity for irrep in group.irreps) == group.order


@each_group
def test_irreps_are_orthogonal_homomorphisms_and_the_first_is_trivial(group: Group) -> None:
    assert torch.equal(group.irreps[0].tensor, torch.ones(group.order, 1, 1, dtype=torch.float64))
    for irrep in group.irreps:
        rho = irrep.tensor
        assert rho.dtype == torch.float64
        assert torch.equal(rho, numbers(irrep.matrices))
        assert torch.equal(rho[:, None] @ rho, rho[table_of(group)])
        assert torch.equal(rho @ rho.mT, eye(irrep.dim).expand_as(rho))


@each_group
def test_irreps_agree_with_the_numerical_theory(group: Group) -> None:
    def facts(matrices: Tensor, kind: SchurType) -> tuple[int, str, tuple[float, ...]]:
        character = torch.einsum("gaa->g", matrices).round(decimals=9) + 0.0
        return matrices.shape[-1], kind.value, tuple(character.tolist())

    found = [facts(irrep.matrices, irrep.type) for irrep in real_irreps(table_of(group))]
    assert sorted(facts(irrep.tensor, irrep.type) for irrep in group.irreps) == sorted(found)


@each_group
def test_endomorphisms_commute_with_their_irrep(group: Group) -> None:
    for irrep in group.irreps:
        units = irrep.endomorphisms
        assert units.shape == (irrep.type.degree, irrep.dim, irrep.dim)
        assert torch.equal(units[0], eye(irrep.dim))
        near(units[:, None] @ irrep.tensor, irrep.tensor @ units[:, None])
        near(torch.einsum("iab,jab->ij", units, units), irrep.dim * eye(len(units)))
        assert torch.equal(numbers(irrep.endomorphism_rows), units)


@each_group
def test_fourier_matrix_block_diagonalises_the_regular_representation(group: Group) -> None:
    fourier = group.fourier
    near(fourier @ fourier.T, eye(group.order))
    for sums, matrix in ((group.to_irreps, fourier), (group.from_irreps, fourier.T)):
        near(torch.stack(combine(eye(group.order), sums)), matrix)
    blocks = [torch.kron(irrep.tensor, eye(irrep.regular_multiplicity)[None]) for irrep in group.irreps]
    near(fourier @ regular(table_of(group)) @ fourier.T, direct_sum(*blocks))


def test_fourier_matrix_of_mirrors() -> None:
    near(flop.fourier * math.sqrt(2), numbers([[1, 1], [1, -1]]))
    near(flipflop.fourier * 2, numbers([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]))


def test_products_of_signs() -> None:
    assert [[flipflop.irrep_product(i, j) for j in range(4)] for i in range(4)] == [
        [0, 1, 2, 3],
        [1, 0, 3, 2],
        [2, 3, 0, 1],
        [3, 2, 1, 0],
    ]
    assert octic.irrep_product(1, 2) == 3
    assert flop.irreps[1].signs == (1, -1)
    for call in (lambda: rot90.irreps[2].signs, lambda: rot90.irrep_product(0, 2)):
        with pytest.raises(ValueError, match=r"1-dimensional irreps, got Irrep\('E', dim=2, type=complex\)"):
            call()


# --- subgroups -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("large", "small"), list(itertools.product(GROUPS, repeat=2)), ids=str)
def test_restriction_to_every_subgroup(large: Group, small: Group) -> None:
    if not is_subgroup(small, large):
        missing = ", ".join(name for name in small.elements if name not in large.elements)
        with pytest.raises(ValueError, match=f"^{small} is not a subgroup of {large}: {large} has no {missing}$"):
            large.restriction(small)
        return
    embedding = large.embedding(small)
    assert [large.elements[g] for g in embedding] == list(small.elements)
    for irrep, (multiplicities, rows) in zip(large.irreps, large.restriction(small), strict=True):
        basis = numbers(rows)
        near(basis.T @ basis, eye(irrep.dim))
        blocks = [torch.kron(sigma.tensor, eye(m)[None]) for sigma, m in zip(small.irreps, multiplicities, strict=True)]
        near(basis @ direct_sum(*blocks) @ basis.T, irrep.tensor[list(embedding)])


@pytest.mark.parametrize(
    ("large", "small", "expected"),
    [
        (octic, flop, [(1, 0), (0, 1), (1, 0), (0, 1), (1, 1)]),
        (octic, rot90, [(1, 0, 0), (1, 0, 0), (0, 1, 0), (0, 1, 0), (0, 0, 1)]),
        (octic, rot180, [(1, 0), (1, 0), (1, 0), (1, 0), (0, 2)]),
        (octic, flipflop, [(1, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (0, 0, 0, 1), (0, 1, 1, 0)]),
        (rot90, rot180, [(1, 0), (1, 0), (0, 2)]),
        (flipflop, flip, [(1, 0), (1, 0), (0, 1), (0, 1)]),
        (flop, trivial, [(1,), (1,)]),
    ],
    ids=str,
)
def test_known_restrictions(large: Group, small: Group, expected: list[tuple[int, ...]]) -> None:
    assert [multiplicities for multiplicities, _ in large.restriction(small)] == expected
