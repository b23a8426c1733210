"""The worked example learns, and its mask moves with the image."""

from types import ModuleType

import pytest
import torch
from support.scripts import load

from flopping.testing import randomize_, relative_error, run


@pytest.fixture(scope="module")
def segmentation() -> ModuleType:
    return load("segmentation")


def test_segmentation_learns_and_only_an_equivariant_head_knows_mirrored_fish(segmentation: ModuleType) -> None:
    """The baseline is a mask that says water everywhere, the commonest class."""
    reports = segmentation.main(steps=40, batch=8, held_out=16)
    _, masks = segmentation.fish(64, torch.Generator().manual_seed(1))
    baseline = segmentation.mean_iou(torch.zeros_like(masks), masks)
    assert baseline < 1 / 3
    for report in reports.values():
        assert report.before < baseline
        assert report.after > baseline + 0.25
    equivariant, ordinary = reports["equivariant"], reports["ordinary"]
    assert equivariant.mask_flops
    assert equivariant.mirror_error < 1e-5
    assert equivariant.mirrored == pytest.approx(equivariant.after, abs=1e-3)
    assert not ordinary.mask_flops
    assert ordinary.mirror_error > 0.1
    assert ordinary.mirrored < ordinary.after - 0.1


@pytest.mark.parametrize("size", [(64, 64), (48, 80)], ids=str)
def test_segmentation_of_any_weights_and_sizes(segmentation: ModuleType, size: tuple[int, int]) -> None:
    """Maps of even and odd widths; zero biases at the start can't hide an error."""
    image = torch.randn(2, 3, *size, dtype=torch.float64)
    errors = {}
    for equivariant in (True, False):
        model = randomize_(segmentation.Segmenter(equivariant)).double()
        errors[equivariant] = relative_error(run(model, image.flip(-1)), run(model, image).flip(-1))
    assert run(model, image).shape == (2, 3, *size)
    assert errors[True] < 1e-10
    assert errors[False] > 0.1


def test_fish_swim_to_the_left(segmentation: ModuleType) -> None:
    """Only then is a fish that swims to the right something new."""
    images, masks = segmentation.fish(64, torch.Generator().manual_seed(0))
    assert images.shape == (64, 3, 64, 64)
    columns = torch.arange(64.0)
    for mask in masks:
        body, tail = (((mask == c) * columns).sum() / (mask == c).sum() for c in (1, 2))
        assert body < tail
