"""Networks with batch norms through the trainer: timm's weights as a start, and running statistics that are kept."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from support.training_runs import call, command, recipe_file
from timm.models.resnet import Bottleneck, ResNet

from flopping.testing import randomize_, relative_error
from flopping.training.checkpoint import WEIGHTS
from flopping.training.networks import find_checkpoint, load_checkpoint

WIDTHS = [8, 16]
FIELDS = {"img_size": 33, "epochs": 1, "batch_size": 12, "optimizer": "sgd", "warmup_epochs": 0, "min_lr": 0.0}


def train(folder: Path, images: Path, group: str, lr: float, *more: str) -> Path:
    args = {"depths": [1, 1], "widths": WIDTHS, "stem_width": 64, "group": group}
    recipe = recipe_file(folder / f"{group}.yaml", "ViT", **FIELDS, lr=lr, model_args=args)
    ended = call(*command(recipe, images, folder / group, "resnet_flop_test", "--workers", "0", *more))
    assert ended.code == 0, ended.err
    return find_checkpoint(folder / group)


def test_fine_tuning_from_timms_weights(images: Path, tmp_path: Path) -> None:
    """The file of an ordinary network of timm, into ours with the trivial group; the classifier is new."""
    theirs = randomize_(ResNet(Bottleneck, [1, 1], channels=WIDTHS, num_classes=7))
    save_file(theirs.state_dict(), tmp_path / "timm.safetensors")
    start = ["--init", str(tmp_path / "timm.safetensors"), "--new-head"]
    found = load_file(train(tmp_path, images, "trivial", 1e-12, *start) / WEIGHTS)
    for name, value in theirs.state_dict().items():
        ours = name.replace("layer1.", "layer1.blocks.").replace("layer2.", "layer2.blocks.")
        keys = [key for key in found if key.replace(".even", "") == ours]
        assert len(keys) == 1, name
        if "running" in name or "tracked" in name:
            assert not torch.equal(found[keys[0]], value), name
        elif not name.startswith("fc."):
            torch.testing.assert_close(found[keys[0]], value, rtol=1e-4, atol=1e-6)


def test_running_statistics_are_part_of_a_checkpoint(images: Path, tmp_path: Path) -> None:
    """They moved from their start, came back, and the network that they belong to ignores mirroring."""
    checkpoint = train(tmp_path, images, "flop", 1e-2)
    weights = load_file(checkpoint / WEIGHTS)
    assert {"bn1.running_mean", "bn1.running_var.even", "bn1.running_var.odd"} <= set(weights)
    start = {"running_mean": 0.0, "running_var": 1.0}
    for name, value in weights.items():
        for kind, number in start.items():
            assert kind not in name or (value != number).any(), name
    assert weights["bn1.num_batches_tracked"] == 4
    model, _ = load_checkpoint(checkpoint)
    x = torch.randn(2, 3, 33, 33)
    with torch.no_grad():
        assert relative_error(model.eval()(x.flip(-1)), model(x)) < 1e-5
