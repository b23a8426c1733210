"""Functions on a grid: the fold into irreps, and functions of one irrep given by their free values."""

import itertools
import math

import pytest
import torch
from finite_groups import case_of, eye, near, random
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flopping import Group, Layout, flip, flipflop, flop, octic, rot90, rot180, trivial
from flopping.grid import Fold, Grid, Symmetric, basis_of, check_square
from flopping.groups import GRID_NAMES, grid_groups

GROUPS = list(grid_groups().values())
SIGN_GROUPS = [trivial, flop, flip, rot180, flipflop]
each_group = pytest.mark.parametrize("group", GROUPS, ids=str)
each_sign_group = pytest.mark.parametrize("group", SIGN_GROUPS, ids=str)


def grids(group: Group) -> list[Grid]:
    """All sizes up to 7 x 7, squares only for a group that swaps rows and columns."""
    sizes = itertools.product(range(1, 8), repeat=2)
    return [(h, w) for h, w in sizes if h == w or not group.swaps_axes]


def moved_places(group: Group, grid: Grid) -> Tensor:
    """[g, p] -> g p: where an element takes each place, read row by row."""
    index = torch.arange(grid[0] * grid[1]).view(grid)
    sources = torch.stack([group.act(g, index).flatten() for g in range(group.order)])  # (g f)(p) = f(g^-1 p)
    return sources.argsort(1)


def occurrences(group: Group, grid: Grid) -> list[float]:
    """mean_g chi(g) fix(g) for each irrep: its multiplicity times the dimension of what commutes with it."""
    fixed = (moved_places(group, grid) == torch.arange(grid[0] * grid[1])).sum(1).double()
    return [float(torch.einsum("gaa,g->", irrep.tensor, fixed)) / group.order for irrep in group.irreps]


# --- the fold --------------------------------------------------------------------------------------


@each_group
def test_the_basis_is_orthonormal(group: Group) -> None:
    for grid in grids(group):
        bases = basis_of(group, grid)
        assert [len(basis) for basis in bases] == [irrep.dim for irrep in group.irreps]
        whole = torch.cat([basis.flatten(0, 1) for basis in bases])
        near(whole @ whole.T, eye(grid[0] * grid[1]))


@each_group
def test_multiplicities_follow_from_fixed_points(group: Group) -> None:
    for grid in grids(group):
        expected = [n / irrep.type.degree for n, irrep in zip(occurrences(group, grid), group.irreps, strict=True)]
        layout = Fold(group, grid, dim=-2).layout
        assert list(layout.multiplicities) == expected
        assert layout.dim == grid[0] * grid[1]


@each_group
def test_folding_commutes_with_the_group(group: Group) -> None:
    for grid in grids(group):
        fold, x = Fold(group, grid, dim=-2), random(3, *grid)
        folded = [torch.stack(components) for components in fold(x)]
        for g in range(group.order):
            moved = fold(group.act(g, x))
            for irrep, components, before in zip(group.irreps, moved, folded, strict=True):
                near(torch.stack(components), torch.einsum("ab,b...->a...", irrep.tensor[g], before))


@each_group
def test_folding_is_the_product_with_the_basis(group: Group) -> None:
    for grid in grids(group):
        x = random(2, *grid)
        for components, basis in zip(Fold(group, grid, dim=-2)(x), basis_of(group, grid), strict=True):
            near(torch.stack(components), torch.einsum("dnp,bp->dbn", basis, x.flatten(1)))


@pytest.mark.parametrize(
    ("group", "grid", "multiplicities"),
    [
        (flop, (7, 7), (28, 21)),
        (flop, (2, 3), (4, 2)),
        (flip, (2, 3), (3, 3)),
        (flip, (3, 2), (4, 2)),
        (flop, (3, 1), (3, 0)),
        (rot180, (3, 3), (5, 4)),
        (rot180, (3, 5), (8, 7)),
        (rot180, (2, 3), (3, 3)),
        (flipflop, (3, 3), (4, 2, 2, 1)),
        (flipflop, (3, 4), (4, 4, 2, 2)),
        (flipflop, (1, 5), (3, 2, 0, 0)),
        (rot90, (2, 2), (1, 1, 1)),
        (rot90, (3, 3), (3, 2, 2)),
        (octic, (1, 1), (1, 0, 0, 0, 0)),
        (octic, (2, 2), (1, 0, 0, 1, 1)),
        (octic, (3, 3), (3, 0, 1, 1, 2)),
        (octic, (16, 16), (36, 28, 28, 36, 64)),
    ],
    ids=str,
)
def test_known_multiplicities(group: Group, grid: Grid, multiplicities: tuple[int, ...]) -> None:
    assert Fold(group, grid, dim=-2).layout == Layout(group, multiplicities)


def test_folds_of_symmetric_grids() -> None:
    """The even part is sqrt(orbit) times the value, the middle stays; odd parts vanish."""
    two = math.sqrt(2)
    mirrored = torch.tensor([[1.0, 5.0, 1.0], [2.0, 6.0, 2.0], [1.0, 5.0, 1.0]], dtype=torch.float64)
    turned = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 4.0], [3.0, 2.0, 1.0]], dtype=torch.float64)
    for group, image, expected in [
        (flop, mirrored, [two, 5, 2 * two, 6, two, 5]),
        (flip, mirrored, [two, 5 * two, two, 2, 6, 2]),
        (flipflop, mirrored, [2, 5 * two, 2 * two, 6]),
        (rot180, turned, [two, 2 * two, 3 * two, 4 * two, 5]),
    ]:
        (even,), *others = Fold(group, (3, 3), dim=-2)(image)
        near(even, torch.tensor(expected, dtype=torch.float64))
        rest = torch.cat([part for (part,) in others])
        near(rest, torch.zeros_like(rest))


@given(
    group=st.sampled_from(GROUPS),
    grid=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    before=st.lists(st.integers(0, 3), max_size=2),
    after=st.lists(st.integers(0, 3), max_size=2),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_two_axes_may_stand_anywhere(group: Group, grid: Grid, before: list[int], after: list[int]) -> None:
    grid = (grid[0], grid[0]) if group.swaps_axes else grid
    x, dim = random(*before, *grid, *after), -2 - len(after)
    last = x.flatten(dim, dim + 1).movedim(dim + 1, -1).unflatten(-1, grid)
    for components, expected in zip(Fold(group, grid, dim)(x), Fold(group, grid, -2)(last), strict=True):
        for component, wanted in zip(components, expected, strict=True):
            near(component.movedim(dim + 1, -1), wanted)


@each_sign_group
@pytest.mark.parametrize("after", [(), (3,), (2, 3)], ids=str)
def test_the_inverse_of_a_fold_of_mirrors(group: Group, after: tuple[int, ...]) -> None:
    for grid in grids(group):
        fold, x = Fold(group, grid, dim=-2 - len(after)), random(2, *grid, *after)
        parts = [part for (part,) in fold(x)]
        near(fold.inverse(parts), x)
        others = [random(*part.shape, seed=i) for i, part in enumerate(parts)]
        for part, (again,) in zip(others, fold(fold.inverse(others)), strict=True):
            near(again, part)


@each_group
def test_a_fold_has_no_state_and_keeps_the_precision(group: Group) -> None:
    fold = Fold(group, (3, 3), dim=-2)
    assert not fold.state_dict()
    for dtype in (torch.float32, torch.bfloat16):
        assert {component.dtype for part in fold(torch.ones(3, 3, dtype=dtype)) for component in part} == {dtype}
    assert repr(fold) == f"Fold({group}, grid=(3, 3), dim=-2)"


@each_group
def test_bases_built_inside_a_device_context_are_usable(group: Group) -> None:
    grid = (11, 11)
    basis_of.cache_clear()
    with torch.device("meta"):
        bases = basis_of(group, grid)
        layout = Fold(group, grid, dim=-2).layout
        symmetric = [Symmetric(group, grid, i) for i in range(len(group.irreps))]
    assert {basis.device.type for basis in bases} == {"cpu"}
    assert [s.free for s in symmetric] == [
        m * irrep.type.degree for m, irrep in zip(layout.multiplicities, group.irreps, strict=True)
    ]


@each_group
def test_constants_can_be_filled_in_after_a_start_without_memory(group: Group) -> None:
    def build() -> tuple[Fold, list[Symmetric]]:
        return Fold(group, (4, 4), dim=-2), [Symmetric(group, (4, 4), i) for i in range(len(group.irreps))]

    with torch.device("meta"):
        fold, symmetric = build()
    modules: list[Fold | Symmetric] = [fold, *symmetric]
    for module in modules:
        module.to_empty(device="cpu")
        for buffer in module.buffers():
            buffer.zero_()
        module.init_non_persistent_buffers()
    wanted_fold, wanted = build()
    x = random(4, 4)
    for components, expected in zip(fold(x), wanted_fold(x), strict=True):
        assert torch.equal(torch.stack(components), torch.stack(expected))
    for a, b in zip(symmetric, wanted, strict=True):
        values = torch.eye(a.free)
        assert torch.equal(a(values), b(values))


# --- functions of one irrep ------------------------------------------------------------------------


def functions(group: Group, grid: Grid) -> list[tuple[int, Symmetric, Tensor, Tensor]]:
    """For each irrep of the grid: its index, the module, random free values, and the functions `(places, d, m)`."""
    found = []
    for i, irrep in enumerate(group.irreps):
        symmetric = Symmetric(group, grid, i, dtype=torch.float64)
        if not symmetric.free:
            continue
        values = random(symmetric.free, 3, seed=i)
        table = symmetric(values)
        assert table.shape == (grid[0] * grid[1], *([irrep.dim] if irrep.dim > 1 else []), 3)
        found.append((i, symmetric, values, table.view(-1, irrep.dim, 3)))
    return found


@each_group
def test_functions_follow_their_irrep(group: Group) -> None:
    for grid in grids(group):
        places = moved_places(group, grid)
        for i, _, _, table in functions(group, grid):
            for g, rho in enumerate(group.irreps[i].tensor):
                near(table[places[g]], rho @ table)


@each_group
def test_free_values_are_as_many_as_there_are_functions(group: Group) -> None:
    for grid in grids(group):
        free = [Symmetric(group, grid, i).free for i in range(len(group.irreps))]
        assert free == occurrences(group, grid)
        for _, symmetric, _, _ in functions(group, grid):
            table = symmetric(eye(symmetric.free)).flatten(0, -2)
            assert int(torch.linalg.matrix_rank(table)) == symmetric.free


@each_group
def test_a_free_value_has_its_own_size_where_it_is_seen(group: Group) -> None:
    for grid in grids(group):
        for i, symmetric, _, _ in functions(group, grid):
            size = symmetric(eye(symmetric.free)).view(-1, group.irreps[i].dim, symmetric.free).norm(dim=1)
            near(size, size.round())
            assert bool((size.round().amax(0) == 1).all())


@each_group
def test_fit_finds_the_free_values(group: Group) -> None:
    for grid in grids(group):
        for _, symmetric, values, _ in functions(group, grid):
            near(symmetric.fit(symmetric(values)), values)


@each_group
def test_fit_gives_the_nearest_function(group: Group) -> None:
    """What is left over is orthogonal to all functions of the irrep."""
    for grid in grids(group):
        for _, symmetric, _, table in functions(group, grid):
            given_table = random(*table.shape, seed=9).squeeze(1)
            rest = given_table - symmetric(symmetric.fit(given_table))
            near(symmetric.fit(rest), torch.zeros(symmetric.free, 3, dtype=torch.float64))


def values_of(symmetric: Symmetric, *values: float) -> list[float]:
    table: list[float] = symmetric(torch.tensor(values)[:, None]).flatten().tolist()
    return table


def test_functions_on_odd_grids() -> None:
    even, odd = (Symmetric(rot180, (3, 3), i) for i in (0, 1))
    assert values_of(even, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert values_of(odd, 1, 2, 3, 4) == [1, 2, 3, 4, 0, -4, -3, -2, -1]
    even_even, odd_even, even_odd, odd_odd = (Symmetric(flipflop, (3, 3), i) for i in range(4))
    assert values_of(even_even, 1, 2, 3, 4) == [1, 2, 1, 3, 4, 3, 1, 2, 1]
    assert values_of(odd_even, 1, 2) == [1, 0, -1, 2, 0, -2, 1, 0, -1]
    assert values_of(even_odd, 1, 2) == [1, 2, 1, 0, 0, 0, -1, -2, -1]
    assert values_of(odd_odd, 1) == [1, 0, -1, 0, 0, 0, -1, 0, 1]


@pytest.mark.parametrize(
    ("group", "grid", "irrep"),
    [
        pytest.param(flop, (2, 1), 1),
        pytest.param(octic, (2, 2), 1),
        (octic, (1, 1), 4),
    ],
    ids=str,
)
def test_an_irrep_that_the_grid_lacks_gives_zeros(group: Group, grid: Grid, irrep: int) -> None:
    symmetric = Symmetric(group, grid, irrep)
    assert symmetric.free == 0
    components = group.irreps[irrep].dim
    expected = torch.zeros(grid[0] * grid[1], *([components] if components > 1 else []), 5)
    assert torch.equal(symmetric(torch.ones(0, 5)), expected)
    assert symmetric.fit(expected).shape == (0, 5)


@each_group
def test_functions_have_no_state_and_follow_dtype_and_device(group: Group) -> None:
    for i, irrep in enumerate(group.irreps):
        symmetric = Symmetric(group, (3, 3), i, dtype=torch.float64)
        assert not symmetric.state_dict()
        assert {b.dtype for b in symmetric.buffers() if b.is_floating_point()} == {torch.float64}
        elsewhere = Symmetric(group, (3, 3), i, device="meta")
        assert {buffer.device.type for buffer in elsewhere.buffers()} == {"meta"}
        assert repr(symmetric) == f"Symmetric({irrep.name}, grid=(3, 3), free={symmetric.free})"


def test_gradients_reach_every_free_value() -> None:
    for group in GROUPS:
        for i in range(len(group.irreps)):
            symmetric = Symmetric(group, (4, 4), i)  # large enough for every irrep
            values = torch.ones(symmetric.free, 2, requires_grad=True)
            symmetric(values).square().sum().backward()
            assert values.grad is not None
            assert bool((values.grad != 0).all())


# --- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [rot90, octic], ids=str)
def test_rectangles_are_refused_where_rows_become_columns(group: Group) -> None:
    message = rf": {group} turns rows into columns and needs a square grid, got \(2, 3\)$"
    with pytest.raises(ValueError, match=message):
        Fold(group, (2, 3), dim=-2)
    with pytest.raises(ValueError, match=message):
        basis_of(group, (2, 3))
    with pytest.raises(ValueError, match=f"^PosEmbed{message}"):
        check_square(group, (2, 3), "PosEmbed")
    check_square(group, (3, 3), "PosEmbed")
    check_square(flipflop, (2, 3), "PosEmbed")


@pytest.mark.parametrize("group", [rot90, octic], ids=str)
def test_functions_on_rectangles_are_refused_where_rows_become_columns(group: Group) -> None:
    with pytest.raises(ValueError, match=rf"{group} turns rows into columns .* got \(2, 3\)$"):
        Symmetric(group, (2, 3), 0)


@pytest.mark.parametrize("dim", [-1, 0, 2])
def test_axes_count_from_the_end(dim: int) -> None:
    with pytest.raises(ValueError, match=f"-2 or less, got {dim}$"):
        Fold(flop, (2, 3), dim)


def test_a_group_without_an_action_is_refused() -> None:
    group = Group.from_matrices("S3", case_of("S3").generators)
    for call in (lambda: Fold(group, (2, 2), dim=-2), lambda: Symmetric(group, (2, 2), 0)):
        with pytest.raises(ValueError, match=rf" needs a group that acts on the pixel grid \({GRID_NAMES}\), got S3$"):
            call()


@pytest.mark.parametrize("group", [rot90, octic], ids=str)
def test_only_mirrors_have_an_inverse(group: Group) -> None:
    fold = Fold(group, (2, 2), dim=-2)
    message = rf"the inverse of a fold needs a group of mirrors, got {group}$"
    with pytest.raises(ValueError, match=message):
        fold.inverse([component for part in fold(torch.ones(2, 2)) for component in part])


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a grid \(1, 3\) at axis -2, got shape \(1, 5\)"):
        Fold(flop, (1, 3), dim=-2)(torch.zeros(1, 5))
    with pytest.raises(ValueError, match=r"expected free values \(2, m\), got shape \(3, 4\)"):
        Symmetric(flop, (1, 3), irrep=0)(torch.zeros(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_symmetric_grid_has_no_odd_part_at_all(dtype: torch.dtype) -> None:
    half = torch.randn(50, 3, 4).to(dtype)
    _, (odd,) = Fold(flop, (3, 8), dim=-2)(torch.cat([half, half.flip(-1)], -1))
    assert not odd.any()


@pytest.mark.parametrize("grid", [(2, 4), (3, 5), (4, 3), (1, 1)])
@pytest.mark.parametrize("group", [group for group in GROUPS if group.mirrors_only], ids=str)
def test_fold_without_scales(group: Group, grid: Grid) -> None:
    """It is the root of the group's order times the orthonormal fold, and its inverse likewise."""
    x = torch.randn(2, *grid, 3, dtype=torch.float64)
    plain, bare = Fold(group, grid, dim=-3), Fold(group, grid, dim=-3, scaled=False)
    for (a,), (b,) in zip(plain(x), bare(x), strict=True):
        torch.testing.assert_close(a * group.order**0.5, b)
    torch.testing.assert_close(bare.inverse([part for (part,) in bare(x)]), x * group.order)


def test_fold_without_scales_needs_mirrors() -> None:
    with pytest.raises(ValueError, match="a fold without scales needs a group of mirrors, got octic"):
        Fold(octic, (4, 4), dim=-2, scaled=False)
