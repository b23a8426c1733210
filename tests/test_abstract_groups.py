"""Groups made of any matrices, and the layers that take them."""

import pytest
import torch
from finite_groups import ABSTRACT, abstract, case_of, direct_sum, eye, near, random, table_of
from torch import nn

from flopping import Layout, flipflop, octic, trivial
from flopping import nn as fnn
from flopping.characters import regular
from flopping.groups import GRID_NAMES, Group, Irrep
from flopping.representations import intertwiners
from flopping.testing import assert_equivariant, randomize_

each_abstract = pytest.mark.parametrize("name", ABSTRACT)


@each_abstract
def test_a_group_made_of_matrices(name: str) -> None:
    group, case = abstract(name), case_of(name)
    assert (group.name, group.order, group.elements[:2]) == (name, case.order, ("identity", "g1"))
    assert group.table == tuple(map(tuple, case.table.tolist()))
    assert [(irrep.dim, irrep.type) for irrep in group.irreps] == case.expected
    assert group.symmetries == ()
    near(group.fourier @ group.fourier.T, eye(group.order))
    blocks = [torch.kron(irrep.tensor, eye(irrep.regular_multiplicity)[None]) for irrep in group.irreps]
    near(group.fourier @ regular(case.table) @ group.fourier.T, direct_sum(*blocks))


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


def test_an_abstract_group_is_no_subgroup() -> None:
    with pytest.raises(ValueError, match=r"finding a subgroup needs a group that acts on the pixel grid .*got S3"):
        octic.embedding(abstract("S3"))


def test_irreps_may_come_in_any_basis() -> None:
    """The Fourier matrix is orthonormal also where an irrep of complex type is turned by an orthogonal matrix."""
    abelian = abstract("C3")
    turn = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    turned = Irrep("turned", tuple(tuple(map(tuple, m.tolist())) for m in turn @ abelian.irreps[1].tensor @ turn.T))
    other = Group("turned", abelian.elements, abelian.table, (abelian.irreps[0], turned))
    near(other.fourier @ other.fourier.T, eye(3))
    layout = Layout.regular(other, 6)
    assert_equivariant(fnn.Activation(layout, torch.tanh), layout.random(4, dtype=torch.float64))
