"""Random drops: what shares its fate, and that they follow the group's action on channels."""

import pytest
import torch
from support.oracles import GROUPS

from flopping import Layout, octic
from flopping import nn as fnn
from flopping.groups import Group
from flopping.testing import relative_error

LAYOUT = Layout.regular(octic, 16)


def ones(*leading: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.ones_like(part) for part in LAYOUT.random(*leading))


def test_drop_path_drops_whole_samples() -> None:
    torch.manual_seed(0)
    kept = [part.flatten(1) for part in fnn.DropPath(LAYOUT, 0.25)(ones(400, 3))]
    assert all((part == part[:, :1]).all() and (part[:, 0] == kept[0][:, 0]).all() for part in kept)
    assert kept[0].unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.65 < (kept[0][:, 0] > 0).float().mean() < 0.85


def test_dropout_spares_no_component() -> None:
    *_, plane = fnn.Dropout(LAYOUT, 0.5)(ones(50))
    assert (plane[:, 0] == plane[:, 1]).all()
    assert set(plane.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_drops_in_training_follow_the_action_on_channels(group: Group) -> None:
    """With the same random numbers; places are not moved, because masks don't move with them."""
    layout = Layout.regular(group, 4 * group.order)
    x = layout.random(6, 5, dtype=torch.float64)
    for layer in (fnn.Dropout(layout, 0.4), fnn.DropPath(layout, 0.4)):
        for element in range(group.order):
            results = []
            for value in (x, layout.act(element, x)):
                torch.manual_seed(3)
                results.append(layer(value))
            assert relative_error(results[1], layout.act(element, results[0])) < 1e-12
            assert any((part == 0).any() for part in results[0])
