"""Groups are values: they compare, copy, pickle and stay on the CPU."""

import copy
import itertools
import pickle
import subprocess
import sys

import pytest
import torch
from finite_groups import ABSTRACT, Case, abstract, case_of

from flopping import Layout, flip, flop, get_group, octic, rot90
from flopping import nn as fnn
from flopping.groups import GRID_NAMES, Group, Irrep, grid_groups
from flopping.testing import assert_equivariant, randomize_

GROUPS = list(grid_groups().values())
each_group = pytest.mark.parametrize("group", GROUPS, ids=str)
each_abstract = pytest.mark.parametrize("name", ABSTRACT)


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
    for same in (pickle.loads(pickle.dumps(group)), Group.from_matrices(name, case_of(name).generators)):
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
    assert ", ".join(map(repr, GROUPS)) == GRID_NAMES
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


def test_package_can_be_imported_under_another_default_device() -> None:
    script = (
        "import torch\nwith torch.device('meta'):\n    import flopping\nprint(flopping.octic.irreps[-1].tensor.device)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "cpu"
