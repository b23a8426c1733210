"""Where training starts: from weights of other networks, and with networks of one's own code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from support.training_runs import Ended, assert_same, call, image_folder
from timm.models.resnet import BasicBlock
from timm.models.resnet import ResNet as TimmResNet

from flopping.checkpoints import write_weights
from flopping.data.batches import read_sample
from flopping.data.datasets import open_dataset
from flopping.data.fashion import CLASSES, read_subset
from flopping.errors import UsageError
from flopping.models.weights import fit_weights
from flopping.testing import randomize_
from flopping.training import initial_weights
from flopping.training.learner import create_optimizer
from flopping.training.networks import build
from flopping.training.preprocessing import Preprocessing, whiten_stem
from flopping.training.recipe import load
from flopping.training.run_log import LOG, read_log

SMALL = {"embed_dim": 64, "depth": 4, "num_heads": 2, "patch_size": 7}
TO_SMALL = [f"model_args.{name}={value}" for name, value in SMALL.items()] + [
    "img_size=28",
    "in_chans=1",
    "mean=[0.286]",
]
TO_SMALL += ["std=[0.353]", "crop_scale=0.8"]
SHOES, OTHERS = (5, 7, 9), (0, 1, 3, 8)
OPTIONS = ("--device", "cpu", "--workers", "0", "--no-compile")


def fashion_folder(root: Path, labels: tuple[int, ...], each: int) -> Path:
    """So many training images of some classes of Fashion-MNIST, and all of their test images."""
    for split in ("train", "val"):
        images, classes = read_subset(split == "train")
        for label in labels:
            folder = root / split / CLASSES[label].replace("/", "-")
            folder.mkdir(parents=True)
            found = images[classes == label]
            for number, pixels in enumerate(found[:each] if split == "train" else found):
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def shoes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 images of sandals, sneakers and ankle boots."""
    return fashion_folder(tmp_path_factory.mktemp("shoes"), SHOES, 80)


def train(recipe: str, data: Path, run: Path, *more: str) -> Ended:
    ended = call("train", recipe, *more, "--model", "E(ViT-S)", "--data", str(data), "-o", str(run), "--json", *OPTIONS)
    assert ended.code == 0, ended.err
    return ended


@pytest.mark.long
def test_a_few_hundred_images(shoes: Path, tmp_path: Path) -> None:
    """The accuracies that the headers of the two recipes state, from random weights and from those of other clothes."""
    scratch = train("small_data", shoes, tmp_path / "scratch", *TO_SMALL)
    assert scratch.result["top1"] >= 80
    others = fashion_folder(tmp_path / "others", OTHERS, 400)
    train("small_data", others, tmp_path / "others-run", *TO_SMALL, "epochs=10")
    tuned = train("finetune", shoes, tmp_path / "tuned", *TO_SMALL, "--init", str(tmp_path / "others-run"))
    assert tuned.result["top1"] >= 83
    assert "head.weight (4, 32) left out" in tuned.err


@pytest.mark.parametrize("name", ["deit3_flop_test_patch16_64", "convnext_flop_iso_test", "test_vit"])
def test_weights_of_another_size_and_of_other_classes_and_channels(name: str) -> None:
    """What can be taken over is, for ours and for timm's own networks, and the rest is named."""
    small = {"img_size": 32} if "vit" in name or "deit" in name else {}
    source = randomize_(timm.create_model(name, num_classes=7, in_chans=3))
    target = timm.create_model(name, num_classes=5, in_chans=1, **small)
    notes = fit_weights(target, source.state_dict())
    kept, own = source.state_dict(), target.state_dict()
    head = target.pretrained_cfg["classifier"]
    same = [key for key, value in own.items() if kept[key].shape == value.shape]
    assert len(same) > 0.8 * len(own)
    assert all(torch.equal(kept[key], own[key]) for key in same if not key.startswith(head))
    different = [key for key in own if kept[key].shape != own[key].shape]
    assert sorted(note.split()[0] for note in notes) == sorted(different)
    assert {f"{head}.weight", f"{head}.bias"} <= set(different)
    image = torch.randn(2, 3, 32, 32)
    assert target(image[:, :1]).shape == (2, 5)


def test_a_new_classifier_for_as_many_classes() -> None:
    source, target = (timm.create_model("deit3_flop_test_patch16_64", num_classes=5) for _ in range(2))
    before = target.head.weight.clone()
    assert fit_weights(target, source.state_dict(), new_head=True) == [
        "head.weight (5, 32) left out",
        "head.bias (5,) left out",
    ]
    assert torch.equal(target.head.weight, before)
    assert torch.equal(target.blocks[0].mlp.fc1.even.weight, source.blocks[0].mlp.fc1.even.weight)


def test_other_classes_of_the_same_number_get_a_new_classifier(shoes: Path, tmp_path: Path) -> None:
    small = (*TO_SMALL, "epochs=1", "warmup_epochs=0")
    train("small_data", shoes, tmp_path / "shoes", *small)
    others = fashion_folder(tmp_path / "others", OTHERS[:3], 20)
    for data, left_out in ((others, True), (shoes, False)):
        ended = train("finetune", data, tmp_path / f"from-{left_out}", *small, "--init", str(tmp_path / "shoes"))
        assert ("head.weight (3, 32) left out" in ended.err) == left_out


def test_weights_of_a_timm_resnet_are_trained_on(tmp_path: Path) -> None:
    """All of them but the classifier; with hardly any learning rate they stay as they are."""
    source = randomize_(TimmResNet(BasicBlock, [1, 1, 1, 1], num_classes=1000))
    write_weights(source.state_dict(), tmp_path / "timm.safetensors")
    network = ("model_args.depths=[1,1,1,1]", "model_args.group=trivial", "img_size=32", "batch_size=4")
    short = ("epochs=1", "warmup_epochs=0", "lr=1e-12", "layer_decay=null", "warmup_lr=1e-12", "min_lr=0")
    data = image_folder(tmp_path / "data", 2, 1, size=32)
    common = ("--model", "resnet_flop_18", "--data", str(data), "-o", str(tmp_path / "run"), *OPTIONS)
    ended = call("train", "finetune", *network, *short, *common, "--init", str(tmp_path / "timm.safetensors"))
    assert ended.code == 0, ended.err
    assert "fc.weight (1000, 512) left out" in ended.err
    trained = load_file(tmp_path / "run" / "last" / "model.safetensors")
    found = [value for name, value in trained.items() if name.startswith("layer4") and "conv" in name]
    expected = [value for name, value in source.state_dict().items() if name.startswith("layer4") and "conv" in name]
    assert len(found) == 2
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_weights_of_another_network_are_refused(tmp_path: Path, shoes: Path) -> None:
    wider = timm.create_model("deit3_flop_test_patch16_64", embed_dim=64, mlp_ratio=3)
    with pytest.raises(UsageError, match="sizes differ"):
        fit_weights(timm.create_model("deit3_flop_test_patch16_64"), wider.state_dict())
    write_weights(wider.state_dict(), tmp_path / "wider.safetensors")
    common = ("--model", "deit3_flop_test_patch16_64", "--data", str(shoes), "-o", str(tmp_path / "run"), *OPTIONS)
    ended = call("train", "finetune", "img_size=64", *common, "--init", str(tmp_path / "wider.safetensors"))
    assert ended.code == 2
    assert "wider.safetensors" in ended.err
    assert not (tmp_path / "run").exists()


def test_layer_decay_slows_layers_near_the_image() -> None:
    """A factor for every block, counted from the head."""
    recipe = load("finetune").override(["layer_decay=0.5", "img_size=64"])
    model = build(recipe, "deit3_flop_test_patch16_64", 3)
    scales = {}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for group in create_optimizer(model, recipe).param_groups:
        for parameter in group["params"]:
            scales[names[parameter]] = group["lr_scale"]
            spared = sum(size > 1 for size in parameter.shape) < 2 or "pos_embed" in names[parameter]
            assert (group["weight_decay"] == 0) == spared
    assert scales["head.weight"] == 1.0
    first, second = scales["blocks.0.mlp.fc1.odd.weight"], scales["blocks.1.mlp.fc1.odd.weight"]
    assert first == second / 2
    assert scales["patch_embed.proj.even.weight"] == first / 2


@pytest.mark.parametrize(
    "name", ["deit3_flop_test_patch16_64", "resmlp_flop_test_64", "convnext_flop_test", "resmlp_12_224"]
)
def test_layer_scales_start_where_the_recipe_says(name: str) -> None:
    recipe = load("small_data").override(["layer_scale=0.3", "img_size=224" if "224" in name else "img_size=64"])
    model = build(recipe, name, 3)
    found = [p for key, p in model.named_parameters() if ".gamma" in key or key.endswith((".ls1", ".ls2"))]
    assert found
    assert all(bool((p == 0.3).all()) for p in found)


def test_the_stem_starts_whitened(tmp_path: Path) -> None:
    data = open_dataset(str(image_folder(tmp_path / "data", 8, 1)), "train")
    recipe = load("cifar10_resnet")
    model = build(recipe, "resnet_flop_8_32", 3)
    whiten_stem(model, recipe, data)
    images = read_sample(data, Preprocessing(recipe, model, torch.device("cpu"), torch.float32).for_testing(), 1000)
    even = model.conv1(images)[0][..., :4].flatten(0, 2)
    torch.testing.assert_close(even.T.cov(correction=0), torch.eye(4), rtol=0, atol=0.02)
    with pytest.raises(UsageError, match="VisionTransformer"):
        whiten_stem(build(recipe, "deit3_flop_test_patch16_64", 3), recipe, data)


def test_only_random_weights_are_whitened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of a checkpoint, and not those of --init, which the run says once."""
    whitened: list[bool] = []
    monkeypatch.setattr(initial_weights, "whiten_stem", lambda *_: whitened.append(True))
    data, run = image_folder(tmp_path / "data", 2, 1, size=32), tmp_path / "run"
    short = ("train", "cifar10_resnet", "epochs=1", "warmup_epochs=0", "batch_size=4", "lr=1e-3", "--data", str(data))
    said = []
    for folder, more in ((run, ()), (run, ("--resume",)), (tmp_path / "tuned", ("--init", str(run)))):
        ended = call(*short, "-o", str(folder), *OPTIONS, *more)
        assert ended.code == 0, ended.err
        said.append(ended.err.count("whiten_stem is left out: the weights come from --init."))
        assert whitened == [True]
        (folder / LOG).unlink()  # without a result the next one tests again
    assert said == [0, 0, 1]


OWN = """
from torch import nn

def build(num_classes, width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, width), nn.ReLU(), nn.Linear(width, num_classes))
"""


def own_run(code: Path, data: Path, run: Path, *more: str) -> Ended:
    changes = (
        "model_args.width=12",
        "img_size=28",
        "in_chans=1",
        "mean=[0.286]",
        "std=[0.353]",
        "epochs=2",
        "warmup_epochs=1",
    )
    common = ("--model", f"{code}:build", "--data", str(data), "-o", str(run), "--json", "--log-steps", "1", *OPTIONS)
    return call("train", "small_data", "ema=0.9", *changes, *common, *more)


def test_a_network_of_ones_own_code(shoes: Path, tmp_path: Path) -> None:
    """It is trained, resumed, tested, used and exported; its code runs only where it is named, and only as it was."""
    code = tmp_path / "my_net.py"
    code.write_text(OWN)
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert own_run(code, shoes, whole).code == 0
    assert read_log(whole)[-1]["kind"] == "end"
    assert own_run(code, shoes, run).code == 0
    assert_same(run, whole)
    config = json.loads((run / "last" / "config.json").read_text())
    assert config["model_args"] == {"width": 12}

    moved = tmp_path / "elsewhere.py"
    moved.write_text(OWN)
    again = own_run(moved, shoes, run, "--resume")
    assert again.code == 0, again.err
    tested = call("eval", str(run), "--data", str(shoes), "--code", f"{moved}:build", "--json", *OPTIONS[:4])
    assert tested.code == 0, tested.err
    assert np.isclose(tested.result["top1"], max(e["top1"] for e in read_log(run) if e["kind"] == "epoch"))

    photo = str(next((shoes / "val" / "Sneaker").iterdir()))
    classified = call("predict", str(run), photo, "--code", f"{moved}:build", "--json")
    assert classified.code == 0, classified.err
    assert "Sneaker" in classified.out
    exported = call("export", str(run), "-o", str(tmp_path / "mine.pt2"), "--code", f"{moved}:build", "--json")
    assert exported.code == 0, exported.err

    code.write_text(OWN.replace("28 * 28", "784"))
    for more, named in ((("--code", f"{code}:build"), "my_net.py:build"), ((), f"--code {code}:build")):
        refused = call("eval", str(run), "--data", str(shoes), *more)
        assert refused.code == 2
        assert named in refused.err
    assert own_run(code, shoes, run, "--resume").code == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (OWN.replace("num_classes)", "4)"), "(1, 4)"),
        (OWN.replace("width=8", "size=8").replace("width", "size"), "width"),
        ("build = 3", "is no function"),
        (OWN.replace("num_classes))", "num_classes)).requires_grad_(False)"), "no free parameter"),
        ("def build(:", "invalid syntax (my_net.py, line 1)"),
        ("1 / 0", "ZeroDivisionError: division by zero (line 1 of"),
        (OWN.replace("nn.Flatten()", "None"), "refuses an image of (1, 28, 28): TypeError: 'NoneType'"),
        ("def build(width):\n    return shape()\n\ndef shape():\n    1 / 0", "line 2, in build return shape()"),
    ],
    ids=["classes", "arguments", "no module", "frozen", "no Python", "raises", "refuses", "traceback"],
)
def test_code_that_gives_no_classifier_is_refused(shoes: Path, tmp_path: Path, text: str, value: str) -> None:
    code = tmp_path / "my_net.py"
    code.write_text(text)
    refused = own_run(code, shoes, tmp_path / "run")
    assert refused.code == 2
    assert value in refused.err
    assert "my_net.py" in refused.err
    assert not (tmp_path / "run").exists()
