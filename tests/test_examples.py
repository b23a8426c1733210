"""The worked examples run, learn, and keep what they promise."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flopping.testing import randomize_, relative_error, run

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def segmentation() -> ModuleType:
    return load("segmentation")


@pytest.fixture(scope="module")
def reports(segmentation: ModuleType) -> dict[str, Any]:
    result: dict[str, Any] = segmentation.main(steps=40, batch=8, held_out=16)
    return result


def test_segmentation_learns(segmentation: ModuleType, reports: dict[str, Any]) -> None:
    """The baseline is a mask that says water everywhere, the commonest class."""
    _, masks = segmentation.fish(64, torch.Generator().manual_seed(1))
    baseline = segmentation.mean_iou(torch.zeros_like(masks), masks)
    assert baseline < 1 / 3
    for report in reports.values():
        assert report.before < baseline
        assert report.after > baseline + 0.25


def test_segmentation_mask_flops(reports: dict[str, Any]) -> None:
    report = reports["equivariant"]
    assert report.mask_flops
    assert report.mirror_error < 1e-5
    assert report.mirrored == pytest.approx(report.after, abs=1e-3)


def test_an_ordinary_head_breaks_it(reports: dict[str, Any]) -> None:
    report = reports["ordinary"]
    assert not report.mask_flops
    assert report.mirror_error > 0.1
    assert report.mirrored < report.after - 0.1


@pytest.mark.parametrize("size", [(64, 64), (48, 80), (80, 48)], ids=str)
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
