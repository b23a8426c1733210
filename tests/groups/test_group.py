"""Groups as values: the seven of the pixel grid, groups made of any matrices, and what is no group."""

import copy
import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from support.finite_groups import (
    ABSTRACT,
    COMPLEX,
    REAL,
    Case,
    abstract,
    case_of,
    direct_sum,
    eye,
    near,
    numbers,
    random,
    table_of,
)
from torch import Tensor

from flopping import Layout, flip, flipflop, flop, get_group, octic, rot90, rot180, trivial
from flopping import nn as fnn
from flopping.errors import UsageError
from flopping.groups import GRID_NAMES, Group, Irrep, Symmetry, grid_groups
from flopping.groups.characters import SchurType, regular
from flopping.groups.representations import real_irreps
from flopping.groups.sums import combine
from flopping.testing import assert_equivariant, randomize_

GROUPS = list(grid_groups().values())
each_group = pytest.mark.parametrize("group", GROUPS, ids=str)
each_abstract = pytest.mark.parametrize("name", ABSTRACT)
each_of_all = pytest.mark.parametrize("group", [*GROUPS, *map(abstract, ABSTRACT)], ids=str)

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


# --- elements and their action ---------------------------------------------------------------------


def test_there_are_seven_grid_groups_smallest_first() -> None:
    assert [trivial, flop, flip, rot180, flipflop, rot90, octic] == GROUPS
    assert list(grid_groups()) == list(IRREPS) == GRID_NAMES.split(", ")
    assert [group.order for group in GROUPS] == [1, 2, 2, 2, 4, 4, 8]
    assert [group.swaps_axes for group in GROUPS] == [False] * 5 + [True] * 2
    assert [group.signs_only for group in GROUPS] == [True] * 5 + [False] * 2


@each_group
@pytest.mark.parametrize("size", [(4, 4), (3, 5)], ids=str)
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
def test_the_table_multiplies_actions(group: Group) -> None:
    image = random(2, 2, 5)  # no two elements do the same to it, so one result fits
    orbit = [group.act(g, image) for g in range(group.order)]
    for g, h in itertools.product(range(group.order), repeat=2):
        result = group.act(g, orbit[h])
        assert [k for k, other in enumerate(orbit) if torch.equal(result, other)] == [group.product(g, h)]
        assert (group.inverse(g) == h) == torch.equal(result, image)


# --- irreps ----------------------------------------------------------------------------------------


@each_group
def test_irreps_have_names_and_agree_with_the_numerical_theory(group: Group) -> None:
    assert [(irrep.name, irrep.dim, irrep.type) for irrep in group.irreps] == IRREPS[group.name]

    def facts(matrices: Tensor, kind: SchurType) -> tuple[int, str, tuple[float, ...]]:
        character = torch.einsum("gaa->g", matrices).round(decimals=9) + 0.0
        return matrices.shape[-1], kind.value, tuple(character.tolist())

    found = [facts(irrep.matrices, irrep.type) for irrep in real_irreps(table_of(group))]
    assert sorted(facts(irrep.tensor, irrep.type) for irrep in group.irreps) == sorted(found)


@each_of_all
def test_fourier_matrix_block_diagonalises_the_regular_representation(group: Group) -> None:
    fourier = group.fourier
    near(fourier @ fourier.T, eye(group.order))
    for sums, matrix in ((group.to_irreps, fourier), (group.from_irreps, fourier.T)):
        near(torch.stack(combine(eye(group.order), sums)), matrix)
    blocks = [torch.kron(irrep.tensor, eye(irrep.regular_multiplicity)[None]) for irrep in group.irreps]
    near(fourier @ regular(table_of(group)) @ fourier.T, direct_sum(*blocks))


def test_products_of_signs() -> None:
    # even and odd in two axes: the number of a product is the exclusive or of the numbers
    assert all(flipflop.irrep_product(i, j) == i ^ j for i, j in itertools.product(range(4), repeat=2))
    assert octic.irrep_product(1, 2) == 3
    assert flop.irreps[1].signs == (1, -1)
    flipflop.require_signs("TokenMix")


@each_of_all
def test_tensor_products_fall_apart_into_irreps(group: Group) -> None:
    for (i, left), (j, right) in itertools.product(enumerate(group.irreps), repeat=2):
        counts, basis = group.tensor_product(i, j)
        q = torch.tensor(basis, dtype=torch.float64)
        near(q @ q.T, eye(left.dim * right.dim))
        for g in range(group.order):
            near(torch.kron(left.tensor[g], right.tensor[g]), q @ Layout(group, counts).matrix(g) @ q.T)


@pytest.mark.parametrize(("large", "small"), list(itertools.product(GROUPS, repeat=2)), ids=str)
def test_restriction_to_every_subgroup(large: Group, small: Group) -> None:
    missing = ", ".join(name for name in small.elements if name not in large.elements)
    if missing:
        with pytest.raises(ValueError, match=f"^{small} is not a subgroup of {large}: .* {missing}$"):
            large.restriction(small)
        return
    embedding = large.embedding(small)
    assert [large.elements[g] for g in embedding] == list(small.elements)
    for irrep, (multiplicities, rows) in zip(large.irreps, large.restriction(small), strict=True):
        basis = numbers(rows)
        near(basis.T @ basis, eye(irrep.dim))
        blocks = [torch.kron(sigma.tensor, eye(m)[None]) for sigma, m in zip(small.irreps, multiplicities, strict=True)]
        near(basis @ direct_sum(*blocks) @ basis.T, irrep.tensor[list(embedding)])


# --- groups made of matrices -----------------------------------------------------------------------


@each_abstract
def test_a_group_made_of_matrices(name: str) -> None:
    group, case = abstract(name), case_of(name)
    assert (group.name, group.order, group.elements[:2]) == (name, case.order, ("identity", "g1"))
    assert group.table == tuple(map(tuple, case.table.tolist()))
    assert [(irrep.dim, irrep.type) for irrep in group.irreps] == case.expected
    assert group.symmetries == ()


@each_abstract
@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("layer", ["Linear", "Activation", "LayerNorm"])
def test_layers_on_channels_take_any_group(name: str, layer: str, extra: int) -> None:
    group = abstract(name)
    layout = Layout.regular(group, 2 * group.order + extra, extra=extra)
    arguments = (layout, layout * 2) if layer == "Linear" else (layout,)
    module = randomize_(getattr(fnn, layer)(*arguments).double())
    x = layout.random(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_equivariant(module, x)
    if layer == "Linear":
        near((layout * 2).merge(module(x)), module.to_dense()(layout.merge(x)))


def test_irreps_may_come_in_any_basis() -> None:
    """The Fourier matrix is orthonormal also where an irrep of complex type is turned by an orthogonal matrix."""
    abelian = abstract("C3")
    turn = torch.linalg.qr(random(2, 2)).Q
    turned = Irrep("turned", tuple(tuple(map(tuple, m.tolist())) for m in turn @ abelian.irreps[1].tensor @ turn.T))
    other = Group("turned", abelian.elements, abelian.table, (abelian.irreps[0], turned))
    near(other.fourier @ other.fourier.T, eye(3))
    layout = Layout.regular(other, 6)
    assert_equivariant(fnn.Activation(layout, torch.tanh), layout.random(4, dtype=torch.float64))


# --- values ----------------------------------------------------------------------------------------


@each_of_all
def test_copies_are_the_group_itself_or_equal(group: Group) -> None:
    assert copy.deepcopy(group) is get_group(group) is group
    same = pickle.loads(pickle.dumps(group))
    assert (same, hash(same)) == (group, hash(group))
    assert torch.equal(same.irreps[-1].endomorphisms, group.irreps[-1].endomorphisms)
    layout = Layout.regular(group, group.order)
    assert copy.deepcopy(layout).group is group
    assert pickle.loads(pickle.dumps(layout)) == layout
    if group in GROUPS:
        assert same is copy.copy(group) is get_group(group.name) is group
    else:
        assert Group.from_matrices(group.name, case_of(group.name).generators) == group


def test_different_groups_are_not_equal() -> None:
    for a, b in itertools.product([*GROUPS, *map(abstract, ABSTRACT)], repeat=2):
        assert (a == b) == (a is b)
    pretender = Group("flop", flip.elements, flip.table, flip.irreps, flip.symmetries)
    assert pretender != flop
    assert pickle.loads(pickle.dumps(pretender)) == pretender
    assert Group("flop", flop.elements, flop.table, flop.irreps, flop.symmetries) == flop


def test_values_built_inside_a_device_context_stay_on_the_cpu() -> None:
    generators = Case("Q8").generators
    with torch.device("meta"):
        q8 = Group.from_matrices("Q8", generators)
        irreps = tuple(Irrep(irrep.name, irrep.matrices) for irrep in octic.irreps)
        square = Group("square", octic.elements, octic.table, irreps, octic.symmetries)
        restriction = square.restriction(rot90)
        layouts = [Layout.regular(group, group.order) for group in (q8, square)]
        tensors = [t for irrep in (*q8.irreps, *irreps) for t in (irrep.tensor, irrep.endomorphisms)]
        tensors += [tensor for layout in layouts for tensor in (layout.group.fourier, layout.matrix(1))]
    assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert q8 == abstract("Q8")
    assert restriction == octic.restriction(rot90)


@pytest.mark.long  # a process of its own; values built inside a device context are tested above
def test_package_can_be_imported_under_another_default_device() -> None:
    script = (
        "import torch\nwith torch.device('meta'):\n    import flopping\nprint(flopping.octic.irreps[-1].tensor.device)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "cpu"


# --- errors ----------------------------------------------------------------------------------------

EVEN, ODD = flop.irreps
Q8 = abstract("Q8")
LOOP = ((0, 1, 2, 3, 4), (1, 0, 3, 4, 2), (2, 4, 0, 1, 3), (3, 2, 4, 0, 1), (4, 3, 1, 2, 0))  # not associative


def irrep(matrices: Tensor) -> Irrep:
    return Irrep("bad", tuple(tuple(map(tuple, matrix.tolist())) for matrix in matrices))


def signs(name: str, text: str) -> Irrep:
    return Irrep(name, tuple(((float(f"{sign}1"),),) for sign in text))


def with_irreps(*irreps: Irrep) -> Group:
    return Group("bad", flop.elements, flop.table, irreps)


def with_table(*table: tuple[int, ...]) -> Group:
    return Group("bad", flop.elements, table, flop.irreps)


def with_symmetries(*symmetries: Symmetry) -> Group:
    return Group("bad", flop.elements, flop.table, flop.irreps, symmetries)


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: rot90.irreps[2].signs, r"'E', dim=2, type=complex"),
    (lambda: rot90.irrep_product(0, 2), r"'E', dim=2, type=complex"),
    (lambda: irrep(torch.stack([eye(2), numbers([[1, 0], [0, -1]])])), "not irreducible: .* dimension 2"),
    (lambda: irrep(2 * eye(1).expand(2, 1, 1)), "not irreducible"),
    (lambda: irrep(numbers([[1], [2]]) * octic.irreps[-1].tensor / numbers([1, 2])), r"orthogonal, got .* up to 3"),
    (lambda: with_irreps(ODD, EVEN), r"trivial one, got Irrep\('odd'"),
    (lambda: with_irreps(EVEN), "1 of the 2 dimensions"),
    (lambda: with_irreps(EVEN, ODD, signs("again", "+-")), "3 of the 2 dimensions"),
    (lambda: with_irreps(EVEN, signs("again", "++")), r"Irrep\('again', .*\)\] are equivalent"),
    (lambda: with_irreps(EVEN, signs("even", "+-")), r"got \['even', 'even'\]"),
    (lambda: with_irreps(), r"got \[\]"),
    (lambda: with_irreps(EVEN, rot90.irreps[1]), r"'B', .* 4 matrices for 2 elements"),
    (lambda: with_irreps(EVEN, signs("minus", "--")), r"'minus', .* by 2\.0e\+00"),
    (lambda: with_table((0, 1), (0, 1)), "group bad: not a multiplication table"),
    (lambda: with_table((0, 1), (1, 1)), "group bad: not a multiplication table"),
    (lambda: with_table((1, 0), (0, 1)), "identity first"),
    (lambda: with_table((0, 1)), "group bad: not a multiplication table"),
    (lambda: Group("loop", tuple("1abcd"), LOOP, (signs("even", "+++++"),)), "1 of the 5 dimensions"),
    (lambda: with_symmetries(*flop.symmetries[::-1]), "symmetries of identity and identity"),
    (lambda: with_symmetries(*flop.symmetries, flop.symmetries[0]), "3 symmetries for 2 elements"),
    (lambda: get_group("Flop"), f"'Flop'; .* {GRID_NAMES}$"),
    (
        lambda: fnn.PatchEmbed(Layout.regular(Q8, 8), img_size=8, patch_size=4),
        rf"^PatchEmbed .*{GRID_NAMES}\), got Q8$",
    ),
    (lambda: Q8.act(1, torch.ones(2, 2)), "got Q8$"),
    (lambda: Q8.embedding(trivial), "got Q8$"),
    (lambda: octic.require_signs("TokenMix"), "^TokenMix .*, got octic with E$"),
    (lambda: Q8.require_signs("TokenMix"), "^TokenMix .*, got Q8 with irrep4$"),
]


@pytest.mark.parametrize(("call", "got"), REFUSED)
def test_refused(call: Callable[[], object], got: str) -> None:
    with pytest.raises(ValueError, match=got):
        call()


def test_an_unknown_name_is_an_error_of_the_user() -> None:
    with pytest.raises(UsageError, match="'Flop'"):
        Layout.regular("Flop", 8)
