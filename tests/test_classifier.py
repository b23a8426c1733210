"""Networks ready for images: from runs, saved folders, names and code, each with its classes and its preprocessing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from odd_photos import scene
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_data_config
from timm.models._hub import save_for_hf
from torch import nn

from flopping.classifier import Classifier, open_classifier
from flopping.models.zoo import ZOO
from flopping.testing import randomize_
from flopping.training.checkpoint import AVERAGE, CONFIG, WEIGHTS
from flopping.training.trained import load_checkpoint

TINY = "deit3_flop_test_patch16_64"
CODE = """
from torch import nn
from flopping import Layout, flop, nn as fnn

def small():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 7))

def ours():
    width = Layout.regular(flop, 8)
    return fnn.Sequential(
        fnn.PatchEmbed(width, img_size=(32, 48), patch_size=16),
        fnn.LayerNorm(width, invariant_only=True),
        fnn.InvariantHead(width.invariant_part, num_classes=5),
    )

def picky():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 20, 4))

def dense():
    return nn.Conv2d(3, 4, 1)

def layer():
    return fnn.Linear(Layout.regular(flop, 8), Layout.regular(flop, 8))
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code") / "my_nets.py"
    path.write_text(CODE)
    return path


def saved(folder: Path, name: str = TINY, labels: list[str] | None = None, **more: Any) -> tuple[Path, nn.Module]:
    """A folder as timm's models save, and the network in it."""
    model = randomize_(timm.create_model(name, **more))
    config = {} if labels is None else {"label_names": labels}
    save_for_hf(model, folder, model_config=config, safe_serialization=True)
    return folder, model.eval()


def refused(target: str | Path, **more: Any) -> str:
    with pytest.raises(ValueError, match=r"\w") as error:
        open_classifier(str(target), **more)
    return str(error.value)


def test_a_run(small_run: Path) -> None:
    """It has the names of its classes, and images fit as in its tests."""
    found = open_classifier(str(small_run))
    assert found.name == TINY
    assert found.labels == ("class-0", "class-1", "class-2")
    assert found.input_size == (3, 32, 32)
    assert found.trained
    assert found.folder == (small_run / "best").resolve()
    assert not found.model.training
    cfg = found.model.pretrained_cfg
    assert (cfg["crop_pct"], cfg["interpolation"]) == (0.8, "bilinear")  # type: ignore[index]
    assert open_classifier(f"local-dir:{small_run / 'last'}").folder == (small_run / "last").resolve()


def test_averaged_weights(small_run: Path) -> None:
    plain, averaged = (open_classifier(str(small_run / "last"), average=average) for average in (False, True))
    assert not torch.equal(plain.model.head.weight, averaged.model.head.weight)  # type: ignore[union-attr, arg-type]
    wanted, _ = load_checkpoint((small_run / "last").resolve(), average=True)
    assert torch.equal(wanted.head.weight, averaged.model.head.weight)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"crop_pct": 0.5, "interpolation": "bilinear"},
        {"crop_mode": "squash", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)},
        {"crop_mode": "border", "mean": (0.1, 0.5, 0.9)},
        {"input_size": (3, 48, 80)},
    ],
)
def test_preprocessing_is_that_of_timm(more: dict[str, Any], tmp_path: Path) -> None:
    """As timm itself would prepare an image for the network in the folder."""
    size = more.get("input_size", (3, 64, 64))
    saved(tmp_path, "convnext_flop_test", num_classes=3, pretrained_cfg_overlay={**more, "input_size": size})
    found = open_classifier(str(tmp_path))
    wanted = create_transform(**resolve_data_config({}, model=found.model))
    image = scene().resize((150, 90))
    assert found.input_size == size
    torch.testing.assert_close(found.prepare([image]), wanted(image)[None], rtol=0, atol=1e-5)


def test_all_images_of_a_batch_are_prepared_alike() -> None:
    found = open_classifier(TINY)
    pictures = [scene(), scene().convert("L"), Image.new("RGB", (7, 300), "green")]
    batch = found.prepare(pictures)
    assert batch.shape == (3, 3, 64, 64)
    for picture, row in zip(pictures, batch, strict=True):
        assert torch.equal(found.prepare([picture])[0], row)


def test_grey_networks(tmp_path: Path) -> None:
    saved(tmp_path, in_chans=1, num_classes=2, pretrained_cfg_overlay={"input_size": (1, 64, 64)})
    found = open_classifier(str(tmp_path))
    assert found.prepare([scene()]).shape == (1, 1, 64, 64)


def test_networks_by_name_are_the_same_every_time() -> None:
    """Without trained weights they are made from one seed, and nobody's randomness changes."""
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    one, other = open_classifier(TINY), open_classifier(TINY)
    assert torch.equal(torch.rand(1), wanted)
    assert not one.trained
    x = torch.randn(2, *one.input_size)
    assert torch.equal(one.model(x), other.model(x))
    assert len(one.labels) == 1000
    assert one.labels[0] == "tench, Tinca tinca"


def test_the_papers_names() -> None:
    found = open_classifier("e(convnext-s iso)", img_size=64)
    assert (found.name, found.input_size) == ("convnext_flop_iso_small", (3, 64, 64))


@pytest.mark.parametrize("name", [TINY, "convnext_flop_test"])
def test_other_sizes(name: str) -> None:
    """Whether the network is made for one size, or takes any."""
    found = open_classifier(name, img_size=96)
    assert found.input_size == (3, 96, 96)
    assert found.model(found.prepare([scene()])).shape == (1, 1000)


def test_networks_of_ones_own(code: Path) -> None:
    small, ours = open_classifier(f"{code}:small"), open_classifier(f"{code}:ours")
    assert small.labels == tuple("0123456")
    assert small.trained is None  # its code may have loaded weights, or not
    assert small.model(small.prepare([scene()])).shape == (1, 7)
    assert ours.input_size == (3, 32, 48)
    assert ours.model(ours.prepare([scene()])).shape == (1, 5)
    picky = open_classifier(f"{code}:picky", img_size=20)
    assert picky.model(picky.prepare([scene()])).shape == (1, 4)


def test_what_is_no_classifier(code: Path) -> None:
    assert "is no classifier: for one image it gives a tensor of (1, 4, 64, 64)" in refused(f"{code}:dense")
    assert "takes features, not images" in refused(f"{code}:layer")
    assert "refuses an image of 3 x 64 x 64 (--img-size names another size)" in refused(f"{code}:picky")
    assert refused(
        code
    ) == f"{str(code)!r} is a file: write {code}:ATTRIBUTE for a module in it, or a function that" + (
        " makes one; it defines small, ours, picky, dense, layer"
    )
    assert "has no 'smal'; it has small" in refused(f"{code}:smal")
    assert "no file 'gone.py'" in refused("gone.py:net")


def test_no_classes(tmp_path: Path) -> None:
    saved(tmp_path, num_classes=0)
    assert refused(tmp_path) == f"{TINY!r} is no classifier: it has no classes, only features"


def test_names_of_classes(tmp_path: Path) -> None:
    saved(tmp_path / "named", num_classes=2, labels=["cat", "dög [red]"])
    saved(tmp_path / "unnamed", num_classes=2)
    saved(tmp_path / "wrong", num_classes=2, labels=["cat"])
    assert open_classifier(str(tmp_path / "named")).labels == ("cat", "dög [red]")
    assert open_classifier(str(tmp_path / "unnamed")).labels == ("0", "1")
    assert refused(tmp_path / "wrong") == f"{TINY!r} has 2 classes, and label_names in its config.json has 1"


def test_nothing_of_this_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused("E(ViT-X)") == (
        "no model is called 'E(ViT-X)'; the closest are E(ViT-S), E(ViT-L), E(ViT-H);"
        " and there is no folder of this name"
    )
    assert refused("runs/none").startswith("no folder 'runs/none': a run, one of its checkpoints, or a saved model")
    assert refused("local-dir:none").startswith("no folder 'none'")
    (tmp_path / "empty").mkdir()
    assert refused("empty") == "'empty' holds no checkpoint: neither config.json nor best/ or last/ with it"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "net")
    assert "model.safetensors' is a file: name the folder of a run" in refused(folder / WEIGHTS)


def test_weights_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = refused("vit_tiny_patch16_224.augreg_in21k")
    assert said.startswith("the weights of 'vit_tiny_patch16_224.augreg_in21k' can't be had (")
    assert said.endswith("connect to the network once, or name a checkpoint of yours")


def test_averages_that_are_not_there(small_run: Path, tmp_path: Path, code: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(small_run / "last", copy)
    (copy / AVERAGE).unlink()
    (copy / "manifest.json").unlink()
    assert "has no averaged weights: its recipe has no ema" in refused(copy, average=True)
    for target in (TINY, f"{code}:small"):
        assert refused(target, average=True).startswith("--average takes the averaged weights of a checkpoint, and ")


def test_sizes_of_what_is_trained(small_run: Path) -> None:
    assert refused(small_run, img_size=64).endswith(
        "takes images of the size it was trained for: --img-size has no meaning"
    )


def broken(folder: Path, what: str) -> str:
    """What is said of a saved network in which something is broken."""
    saved(folder)
    config = json.loads((folder / CONFIG).read_text())
    if what == "no weights":
        (folder / WEIGHTS).unlink()
    elif what == "cut off":
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:1000])
    elif what == "other weights":
        save_file({"a": torch.zeros(1)}, folder / WEIGHTS)
    elif what == "unknown":
        (folder / CONFIG).write_text(json.dumps({**config, "architecture": "nothing_like_it"}))
    else:
        (folder / CONFIG).write_text({"no json": "{", "a list": "[]", "no name": "{}"}[what])
    return refused(folder)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("no weights", "in '{}' can't be loaded"),
        ("cut off", f"the network '{TINY}' in '{{}}' can't be loaded"),
        ("other weights", "blocks.0.attn.qkv.even.bias, ...) and have also 1 key (a)"),
        ("unknown", "the network 'nothing_like_it' in '{}' can't be loaded"),
        ("no json", "config.json' can't be read"),
        ("a list", "config.json' names no architecture"),
        ("no name", "config.json' names no architecture"),
    ],
)
def test_broken_folders(what: str, said: str, tmp_path: Path) -> None:
    found = broken(tmp_path, what)
    assert said.replace("{}", str(tmp_path)) in found
    assert len(found) < 700


def test_it_stays_as_it_is() -> None:
    found = open_classifier(TINY)
    assert isinstance(found, Classifier)
    assert found.name in ZOO
    with pytest.raises(AttributeError):
        found.name = "other"  # type: ignore[misc]
