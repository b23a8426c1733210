"""What is dropped together, and that drops follow the group."""

from collections.abc import Callable

import pytest
import torch
from support.oracles import GROUPS

from flopping import Layout, octic
from flopping import nn as fnn
from flopping.groups import Group
from flopping.testing import relative_error


def test_what_is_dropped_together() -> None:
    """Whole samples by DropPath; all components of a copy by Dropout."""
    layout = Layout.regular(octic, 16)
    torch.manual_seed(0)
    ones = tuple(torch.ones_like(part) for part in layout.random(400, 3))
    kept = [part.flatten(1) for part in fnn.DropPath(layout, 0.25)(ones)]
    assert all((part == part[:, :1]).all() and (part[:, 0] == kept[0][:, 0]).all() for part in kept)
    assert kept[0].unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.65 < (kept[0][:, 0] > 0).float().mean() < 0.85
    *_, plane = fnn.Dropout(layout, 0.5)(ones)
    assert (plane[..., 0, :] == plane[..., 1, :]).all()
    assert set(plane.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_drops_in_training_follow_the_action_on_channels(group: Group) -> None:
    """With the same random numbers; places are not moved, because masks don't move with them."""
    layout = Layout.regular(group, 4 * group.order)
    x = layout.random(6, 5, dtype=torch.float64)

    def dropped(layer: Callable[..., tuple[torch.Tensor, ...]], value: object) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        return layer(value)

    for layer in (fnn.Dropout(layout, 0.4), fnn.DropPath(layout, 0.4)):
        assert any((part == 0).any() for part in dropped(layer, x))
        for element in range(group.order):
            expected = layout.act(element, dropped(layer, x))
            assert relative_error(dropped(layer, layout.act(element, x)), expected) < 1e-12
