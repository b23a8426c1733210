"""Accuracy on images that are moved by the elements of a group: which group, and the counts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from support.image_files import image_folder
from support.saved_networks import TINY, save_network
from support.training_runs import call
from torch import Tensor, nn

from flopping.data.batches import PADDING, Batch
from flopping.errors import UsageError
from flopping.groups import flop, octic
from flopping.training.distributed import World
from flopping.training.evaluate import Accuracy, MovedAccuracy, accuracy
from flopping.training.networks import create_config, group_to_test, ignores
from flopping.training.preprocessing import Preprocessing, preparation_of
from flopping.training.recipe import load

CPU = torch.device("cpu")
HERE = ("--device", "cpu", "--workers", "0", "--json")


def brightest_corner(x: Tensor) -> Tensor:
    """A network with four classes, which sees every element but one of each pair."""
    return x[:, 0, [0, 0, -1, -1], [0, -1, 0, -1]]


def test_answers_are_counted_for_every_element() -> None:
    """Images that only fill a batch count for nothing."""
    x = torch.zeros(4, 1, 6, 6)
    for image, (row, column) in enumerate([(0, 0), (0, 5), (5, 5), (0, 5)]):
        x[image, 0, row, column] = 1.0
    labels = torch.tensor([0, 1, 0, PADDING])
    batches = [Batch(x, labels, []), Batch(x[:1], torch.tensor([0]), [])]
    found = accuracy(brightest_corner, batches, World(CPU), nullcontext, group=octic)
    assert (found.images, found.top1, found.changed) == (4, 75.0, 4)
    assert [*found.moved] == [*octic.elements[1:]]
    for element, name in enumerate(octic.elements[1:], 1):
        answers = brightest_corner(octic.act(element, x))[[0, 1, 2, 0]].argmax(1)
        right, changed = (answers == torch.tensor([0, 1, 0, 0])).sum(), (answers != torch.tensor([0, 1, 3, 0])).sum()
        assert found.moved[name] == MovedAccuracy(25.0 * int(right), int(changed)), name
    assert found.moved["transpose"].changed == 1  # it keeps two corners
    assert Accuracy.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_results_of_older_versions_are_read() -> None:
    old = {"images": 5, "top1": 80.0, "loss": 1.0, "mirrored_top1": 60.0, "changed": 1}
    assert Accuracy.from_dict(old) == Accuracy(5, 80.0, 1.0, None, 1, {"flop": MovedAccuracy(60.0, 1)})


def test_the_group_of_a_test() -> None:
    """A hybrid's is that of its first blocks, and an ordinary network is mirrored."""
    hybrid = timm.create_model(TINY, group="octic", depth=2, handoffs={1: "hybrid"})
    networks = [(nn.Identity(), flop), (timm.create_model(TINY), flop), (hybrid, octic)]
    assert [group_to_test(network, None, (64, 64)) for network, _ in networks] == [group for _, group in networks]
    assert group_to_test(networks[0][0], "octic", (64, 64)) is octic
    assert not ignores(hybrid, octic)
    assert not ignores(timm.create_model(TINY), octic)
    assert ignores(timm.create_model(TINY, group="octic"), flop)
    with pytest.raises(UsageError, match="64 x 32"):
        group_to_test(networks[0][0], "octic", (64, 32))
    assert group_to_test(networks[0][0], "flipflop", (64, 32)).name == "flipflop"


def test_eval_reports_all_elements(tmp_path: Path) -> None:
    data = image_folder(tmp_path / "data", {"val": {"cat": 5, "dog": 4}})
    network = tmp_path / "network"
    save_network(network, TINY, ["cat", "dog"], group="octic", depth=1)
    words = ("eval", str(network), "--data", str(data))
    ended = call(*words, *HERE)
    assert ended.code == 0, ended.err
    printed = json.loads(ended.out)
    assert printed.pop("weights") == "saved"
    found = Accuracy.from_dict({k: v for k, v in printed.items() if k not in ("checkpoint", "model")})
    assert found.changed == 0
    assert found.moved == dict.fromkeys(octic.elements[1:], MovedAccuracy(found.top1, 0))
    lines = call(*words, *HERE[:-1], "--group", "rot90").out.splitlines()
    assert [line.split(":")[0] for line in lines[2:5]] == ["  rot90", "  rot180", "  rot270"]
    assert lines[5] == "  0 images get another class from at least one element"
    for option in ("--no-move", "--no-mirror"):  # the second is its older name
        still = call(*words, *HERE, option)
        assert (still.code, "moved" in still.out) == (0, False), still.err
    refused = call(*words, *HERE, "--no-move", "--group", "octic")
    assert (refused.code, "--no-move" in refused.err) == (2, True)


def test_a_finished_run_prepares_images_as_its_own_tests_did() -> None:
    """Whatever mode of cropping the network was registered with: an image that is not square shows the difference."""
    model = timm.create_model(TINY, num_classes=2, pretrained_cfg_overlay={"crop_mode": "squash"})
    recipe = load("deit3_small").override(["img_size=64", "test_crop=0.5"])
    during = Preprocessing(recipe, model, CPU, torch.float32)
    create_config(model, TINY, recipe, during.normalisation, ["cat", "dog"])
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8))
    first, second = (each.transform(image) for each in (during.for_testing(), preparation_of(model, CPU)))
    assert torch.equal(torch.as_tensor(np.array(first)), torch.as_tensor(np.array(second)))
