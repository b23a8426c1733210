"""The seven groups of the pixel grid, and groups made of any matrices."""

import copy
import itertools
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from finite_groups import COMPLEX, QUATERNIONIC, REAL, Case, case_of, eye, near, random
from torch import Tensor, nn

from flopping import Layout, flip, flipflop, flop, get_group, octic, rot90, rot180, trivial
from flopping import nn as fnn
from flopping.characters import SchurType, regular
from flopping.groups import GRID_NAMES, Group, Irrep, Symmetry, grid_groups
from flopping.representations import intertwiners, real_irreps
from flopping.sums import combine
from flopping.testing import assert_equivariant, randomize_

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


def table_of(group: Group) -> Tensor:
    return torch.tensor(group.table)


def numbers(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def block_diagonal(parts: list[Tensor]) -> Tensor:
    """One block-diagonal matrix per element, of stacks (|G|, n, n)."""
    return torch.stack([torch.block_diag(*blocks) for blocks in zip(*parts, strict=True)])


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
        near(torch.stack([combine(eye(group.order), row) for row in sums]), matrix)
    blocks = [torch.kron(irrep.tensor, eye(irrep.regular_multiplicity)[None]) for irrep in group.irreps]
    near(fourier @ regular(table_of(group)) @ fourier.T, block_diagonal(blocks))


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
        near(basis @ block_diagonal(blocks) @ basis.T, irrep.tensor[list(embedding)])


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


# --- groups made of matrices -----------------------------------------------------------------------

ABSTRACT = {
    "C3": [(1, REAL), (2, COMPLEX)],
    "S3": [(1, REAL), (1, REAL), (2, REAL)],
    "Q8": [(1, REAL)] * 4 + [(4, QUATERNIONIC)],
}
each_abstract = pytest.mark.parametrize("name", ABSTRACT)


def abstract(name: str) -> Group:
    return Group.from_matrices(name, case_of(name).generators)


@each_abstract
def test_a_group_made_of_matrices(name: str) -> None:
    group, case = abstract(name), case_of(name)
    assert (group.name, group.order, group.elements[:2]) == (name, case.order, ("identity", "g1"))
    assert group.table == tuple(map(tuple, case.table.tolist()))
    assert [(irrep.dim, irrep.type) for irrep in group.irreps] == ABSTRACT[name]
    assert group.symmetries == ()
    near(group.fourier @ group.fourier.T, eye(group.order))
    blocks = [torch.kron(irrep.tensor, eye(irrep.regular_multiplicity)[None]) for irrep in group.irreps]
    near(group.fourier @ regular(case.table) @ group.fourier.T, block_diagonal(blocks))


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


@each_abstract
def test_a_linear_layer_holds_all_intertwiners(name: str) -> None:
    group = abstract(name)
    source, target = Layout.regular(group, group.order), Layout.regular(group, group.order + 1, extra=1)
    layer = fnn.Linear(source, target, bias=False).double()
    parameters = torch.nn.utils.parameters_to_vector(layer.parameters())
    maps = []
    for unit in eye(len(parameters)):
        torch.nn.utils.vector_to_parameters(unit, layer.parameters())
        maps.append(layer.to_dense().weight.detach().flatten())
    rho_in, rho_out = (torch.stack([x.matrix(g) for g in range(group.order)]) for x in (source, target))
    basis = intertwiners(rho_in, rho_out, table_of(group)).flatten(1)
    assert len(maps) == len(basis) == group.order + 1
    found = torch.stack(maps)
    near(found @ basis.T @ basis, found)
    assert int(torch.linalg.matrix_rank(found)) == len(basis)


@each_abstract
def test_a_linear_layer_equals_its_dense_one(name: str) -> None:
    group = abstract(name)
    source, target = Layout.regular(group, 2 * group.order), Layout.regular(group, group.order + 1, extra=1)
    layer = fnn.Linear(source, target).double()
    randomize_(layer)
    packed = random(5, source.dim)
    near(target.merge(layer(source.split(packed))), layer.to_dense()(packed))


@each_abstract
def test_an_ordinary_layer_fails_the_check(name: str) -> None:
    layout = Layout.regular(abstract(name), case_of(name).order)
    ordinary = randomize_(nn.Linear(layout.dim, layout.dim).double())
    with pytest.raises(AssertionError, match="Linear is not equivariant under g1"):
        assert_equivariant(ordinary, random(5, layout.dim), in_layout=layout, out_layout=layout)


@each_abstract
def test_layers_on_the_grid_refuse_a_group_without_an_action(name: str) -> None:
    group = abstract(name)
    layout = Layout.regular(group, group.order)
    got = rf"needs a group that acts on the pixel grid \({GRID_NAMES}\), got {name}$"
    with pytest.raises(ValueError, match=f"^PatchEmbed {got}"):
        fnn.PatchEmbed(layout, img_size=8, patch_size=4)
    with pytest.raises(ValueError, match=f"^acting on an image {got}"):
        group.act(1, torch.ones(2, 2))
    with pytest.raises(ValueError, match=f"^finding a subgroup {got}"):
        group.embedding(trivial)


def test_layers_for_signs_refuse_larger_irreps() -> None:
    message = r"^TokenMix .*1-dimensional \(trivial, flop, flip, rot180, flipflop\), got octic with E$"
    with pytest.raises(ValueError, match=message):
        octic.require_signs("TokenMix")
    with pytest.raises(ValueError, match=r"got Q8 with irrep4$"):
        abstract("Q8").require_signs("TokenMix")
    flipflop.require_signs("TokenMix")


# --- values ----------------------------------------------------------------------------------------


@each_group
def test_copies_of_a_grid_group_are_the_group_itself(group: Group) -> None:
    for same in (pickle.loads(pickle.dumps(group)), copy.deepcopy(group), copy.copy(group), get_group(group.name)):
        assert same is group
    layout = Layout.regular(group, 8)
    assert copy.deepcopy(layout).group is group
    assert pickle.loads(pickle.dumps(layout)) == layout


@each_abstract
def test_copies_of_another_group_are_equal(name: str) -> None:
    group = abstract(name)
    assert get_group(group) is group
    assert copy.deepcopy(group) is group
    for same in (pickle.loads(pickle.dumps(group)), abstract(name)):
        assert same == group
        assert hash(same) == hash(group)
        assert torch.equal(same.irreps[-1].endomorphisms, group.irreps[-1].endomorphisms)


def test_different_groups_are_not_equal() -> None:
    everything = [*GROUPS, *map(abstract, ABSTRACT)]
    for a, b in itertools.product(everything, repeat=2):
        assert (a == b) == (a is b)
    pretender = Group("flop", flip.elements, flip.table, flip.irreps, flip.symmetries)
    assert pretender != flop
    assert pickle.loads(pickle.dumps(pretender)) == pretender
    assert Group("flop", flop.elements, flop.table, flop.irreps, flop.symmetries) == flop


def test_values_show_themselves() -> None:
    assert list(map(repr, GROUPS)) == NAMES
    assert repr(rot90.irreps) == (
        "(Irrep('A', dim=1, type=real), Irrep('B', dim=1, type=real), Irrep('E', dim=2, type=complex))"
    )


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
    for layout in layouts:
        assert_equivariant(randomize_(fnn.Linear(layout, layout).double()), layout.random(3, dtype=torch.float64))


# --- errors ----------------------------------------------------------------------------------------

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
        with pytest.raises(ValueError, match=f"^unknown group '{name}'; .* {', '.join(NAMES)}$"):
            call()


def test_symmetries_must_follow_the_table() -> None:
    with pytest.raises(ValueError, match="the symmetries of identity and identity do not multiply as the table says"):
        Group("bad", flop.elements, flop.table, flop.irreps, flop.symmetries[::-1])
    with pytest.raises(ValueError, match="3 symmetries for 2 elements"):
        Group("bad", flop.elements, flop.table, flop.irreps, (*flop.symmetries, flop.symmetries[0]))


def test_an_abstract_group_is_no_subgroup() -> None:
    with pytest.raises(ValueError, match=r"finding a subgroup needs a group that acts on the pixel grid .*got S3"):
        octic.embedding(abstract("S3"))


def test_package_can_be_imported_under_another_default_device() -> None:
    script = (
        "import torch\nwith torch.device('meta'):\n    import flopping\nprint(flopping.octic.irreps[-1].tensor.device)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "cpu"


def test_irreps_may_come_in_any_basis() -> None:
    """The Fourier matrix is orthonormal also where an irrep of complex type is turned by an orthogonal matrix."""
    abelian = abstract("C3")
    turn = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    turned = Irrep("turned", tuple(tuple(map(tuple, m.tolist())) for m in turn @ abelian.irreps[1].tensor @ turn.T))
    other = Group("turned", abelian.elements, abelian.table, (abelian.irreps[0], turned))
    near(other.fourier @ other.fourier.T, eye(3))
    layout = Layout.regular(other, 6)
    assert_equivariant(fnn.Activation(layout, torch.tanh), layout.random(4, dtype=torch.float64))
