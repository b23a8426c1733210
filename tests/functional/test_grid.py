"""Functions on a grid: the fold into irreps, and functions of one irrep given by their free values."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.finite_groups import abstract, eye, near, random
from torch import Tensor

from flopping import Group, flipflop, flop, octic, rot180
from flopping.functional.grid import Fold, Grid, Symmetric, basis_of, check_square, symmetric_functions
from flopping.groups import GRID_NAMES, grid_groups

GROUPS = list(grid_groups().values())
each_group = pytest.mark.parametrize("group", GROUPS, ids=str)


def grids(group: Group) -> list[Grid]:
    """All sizes up to 5 x 5, squares only for a group that swaps rows and columns."""
    sizes = itertools.product(range(1, 6), repeat=2)
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
def test_the_basis_is_orthonormal_and_its_sizes_follow_from_fixed_points(group: Group) -> None:
    for grid in grids(group):
        bases = basis_of(group, grid)
        assert [len(basis) for basis in bases] == [irrep.dim for irrep in group.irreps]
        whole = torch.cat([basis.flatten(0, 1) for basis in bases])
        near(whole @ whole.T, eye(grid[0] * grid[1]))
        expected = [n / irrep.type.degree for n, irrep in zip(occurrences(group, grid), group.irreps, strict=True)]
        layout = Fold(group, grid, dim=-2).layout
        assert list(layout.multiplicities) == expected
        assert layout.dim == grid[0] * grid[1]


@each_group
def test_folding_is_the_product_with_the_basis_and_commutes_with_the_group(group: Group) -> None:
    for grid in grids(group):
        fold, x = Fold(group, grid, dim=-2), random(3, *grid)
        folded = [torch.stack(components) for components in fold(x)]
        for components, basis in zip(folded, basis_of(group, grid), strict=True):
            near(components, torch.einsum("dnp,bp->dbn", basis, x.flatten(1)))
        for g in range(group.order):
            moved = fold(group.act(g, x))
            for irrep, components, before in zip(group.irreps, moved, folded, strict=True):
                near(torch.stack(components), torch.einsum("ab,b...->a...", irrep.tensor[g], before))


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


@each_group
@pytest.mark.parametrize("after", [(), (3,), (2, 3)], ids=str)
def test_the_inverse_of_a_fold(group: Group, after: tuple[int, ...]) -> None:
    for grid in grids(group):
        fold, x = Fold(group, grid, dim=-2 - len(after)), random(2, *grid, *after)
        parts = fold(x)
        near(fold.inverse(parts), x)
        others = [[random(*c.shape, seed=i) for c in components] for i, components in enumerate(parts)]
        for part, again in zip(others, fold(fold.inverse(others)), strict=True):
            near(torch.stack(again), torch.stack(part))


@each_group
def test_bases_built_inside_a_device_context_are_usable(group: Group) -> None:
    basis_of.cache_clear()
    symmetric_functions.cache_clear()
    with torch.device("meta"):
        constants = [*basis_of(group, (11, 11)), *(s.matrix for s in symmetric_of(group, (11, 11)))]
    assert {constant.device.type for constant in constants} == {"cpu"}


# --- functions of one irrep ------------------------------------------------------------------------


def symmetric_of(group: Group, grid: Grid) -> list[Symmetric]:
    return [Symmetric(group, grid, i) for i in range(len(group.irreps))]


def build(symmetric: Symmetric, values: Tensor) -> Tensor:
    """Functions `(places, d, m)`; mirror images are what the product with the matrix gives."""
    by_matrix = symmetric.build(values, symmetric.matrix.to(values))
    if symmetric.group.mirrors_only:
        assert torch.equal(symmetric.build(values), by_matrix)
        assert torch.equal(symmetric.build(values.T, dim=1), by_matrix.T)
    elif symmetric.dim == 1:
        assert torch.equal(symmetric.build(values.T, symmetric.matrix.to(values), dim=1), by_matrix.T)
    dims = [symmetric.dim] if symmetric.dim > 1 else []
    assert by_matrix.shape == (math.prod(symmetric.grid), *dims, values.shape[1])
    return by_matrix.view(-1, symmetric.dim, values.shape[1])


@each_group
def test_functions_of_an_irrep(group: Group) -> None:
    """They follow it, there are as many as there can be, and their free values are found again."""
    for grid in grids(group):
        places, found = moved_places(group, grid), symmetric_of(group, grid)
        assert [s.free for s in found] == occurrences(group, grid)
        for i, symmetric in enumerate(found):
            if not symmetric.free:
                continue
            values = random(symmetric.free, 3, seed=i)
            table = build(symmetric, values)
            for g, rho in enumerate(group.irreps[i].tensor):
                near(table[places[g]], rho @ table)
            near(symmetric.fit(table), values)
            each = build(symmetric, eye(symmetric.free))
            assert int(torch.linalg.matrix_rank(each.flatten(0, 1))) == symmetric.free
            size = each.norm(dim=1)
            near(size, size.round())
            assert bool((size.round().amax(0) == 1).all()), "a free value has its own size where it is seen"


@each_group
def test_fit_gives_the_nearest_function(group: Group) -> None:
    """What is left over is orthogonal to all functions of the irrep."""
    for symmetric in symmetric_of(group, (4, 4)):
        table = random(16, symmetric.dim, 3, seed=9)
        rest = table - build(symmetric, symmetric.fit(table))
        near(symmetric.fit(rest), torch.zeros(symmetric.free, 3, dtype=torch.float64))


def test_functions_on_odd_grids() -> None:
    def values_of(symmetric: Symmetric, *values: float) -> list[float]:
        table: list[float] = symmetric.build(torch.tensor(values)[:, None]).flatten().tolist()
        return table

    even, odd = symmetric_of(rot180, (3, 3))
    assert values_of(even, 1, 2, 3, 4, 5) == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    assert values_of(odd, 1, 2, 3, 4) == [1, 2, 3, 4, 0, -4, -3, -2, -1]
    even_even, odd_even, even_odd, odd_odd = symmetric_of(flipflop, (3, 3))
    assert values_of(even_even, 1, 2, 3, 4) == [1, 2, 1, 3, 4, 3, 1, 2, 1]
    assert values_of(odd_even, 1, 2) == [1, 0, -1, 2, 0, -2, 1, 0, -1]
    assert values_of(even_odd, 1, 2) == [1, 2, 1, 0, 0, 0, -1, -2, -1]
    assert values_of(odd_odd, 1) == [1, 0, -1, 0, 0, 0, -1, 0, 1]


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
    torch.testing.assert_close(bare.inverse(bare(x)), x * group.order)


# --- errors ----------------------------------------------------------------------------------------

REFUSED = {
    r"^PosEmbed: .* got \(2, 3\)$": lambda: check_square(octic, (2, 3), "PosEmbed"),
    "got -1$": lambda: Fold(flop, (2, 3), -1),
    rf"\({GRID_NAMES}\), got S3$": lambda: Fold(abstract("S3"), (2, 2), dim=-2),
    "got octic$": lambda: Fold(octic, (2, 2), dim=-2, scaled=False),
    r"\(1, 3\) at axis -2, got shape \(1, 5\)": lambda: Fold(flop, (1, 3), dim=-2)(torch.zeros(1, 5)),
    r"\(2, m\), got shape \(3, 4\)": lambda: Symmetric(flop, (1, 3), 0).build(torch.zeros(3, 4)),
}


@pytest.mark.parametrize("got", REFUSED)
def test_refused(got: str) -> None:
    with pytest.raises(ValueError, match=got):
        REFUSED[got]()
