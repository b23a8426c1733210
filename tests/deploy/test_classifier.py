"""Networks ready for images: from runs, saved folders, names and code, each with its classes and its preprocessing."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.odd_photos import scene
from support.saved_networks import TINY, edit_config, save_network
from timm.data import create_transform, resolve_data_config

from flopping.deploy import open_classifier
from flopping.errors import UsageError
from flopping.models import VisionTransformer, targets
from flopping.training.checkpoint import AVERAGE

WEIGHTS = "model.safetensors"
CODE = """
import torch
from torch import nn
from flopping import Layout, flop, nn as fnn

def small():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 7))

def ours():
    width = Layout.regular(flop, 8)
    return fnn.Sequential(
        fnn.PatchEmbed(width, img_size=(32, 48), patch_size=16),
        fnn.LayerNorm(width),
        fnn.InvariantHead(width, num_classes=5),
    )

def picky():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 20 * 20, 4))

def dense():
    return nn.Conv2d(3, 4, 1)

def layer():
    return fnn.Linear(Layout.regular(flop, 8), Layout.regular(flop, 8))

def broken():
    return {}["width"]

class Raises(nn.Module):
    def forward(self, x):
        return x / (1 // 0)

class Waves(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x.mean((2, 3)))

def described():
    net = Waves()
    net.default_cfg = {"input_size": 3}
    return net
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "my_nets.py"
    path.write_text(CODE)
    return path


def refuse(target: str | Path, **more: Any) -> str:
    """The message of a classifier that is refused."""
    with pytest.raises(UsageError) as error:
        open_classifier(str(target), **more)
    return str(error.value)


def test_a_run(small_run: Path) -> None:
    """It has the names of its classes, and images are fitted as in its tests."""
    found = open_classifier(str(small_run))
    assert (found.name, found.input_size, found.trained) == (TINY, (3, 32, 32), True)
    assert found.labels == ("class-0", "class-1", "class-2")
    assert found.folder == (small_run / "best").resolve()
    assert not found.model.training
    cfg = found.model.pretrained_cfg
    assert (cfg["crop_pct"], cfg["interpolation"]) == (0.8, "bilinear")  # type: ignore[index]
    assert open_classifier(f"local-dir:{small_run / 'last'}").folder == (small_run / "last").resolve()


def test_averaged_weights(small_run: Path, tmp_path: Path, code: Path) -> None:
    last = str(small_run / "last")
    plain, averaged = (open_classifier(last, average=average).model.state_dict() for average in (False, True))
    assert not torch.equal(plain["head.weight"], averaged["head.weight"])
    shutil.copytree(small_run / "last", tmp_path / "run")
    for name in (AVERAGE, "manifest.json"):
        (tmp_path / "run" / name).unlink()
    assert "averaged weights" in refuse(tmp_path / "run", average=True)
    for target in (TINY, f"{code}:small"):
        assert target in refuse(target, average=True)


@pytest.mark.parametrize(
    "more",
    [
        {"crop_pct": 0.5, "interpolation": "bilinear"},
        {"crop_mode": "squash", "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)},
        {"input_size": (3, 48, 80)},
    ],
)
def test_preprocessing_is_that_of_timm(more: dict[str, Any], tmp_path: Path) -> None:
    """As timm itself would prepare an image for the network in the folder."""
    size = more.get("input_size", (3, 64, 64))
    save_network(tmp_path, "convnext_flop_iso_test", cfg={**more, "input_size": size}, num_classes=3, depths=[1])
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
    cfg = {"input_size": (1, 64, 64), "mean": (0.5,), "std": (0.2,)}
    save_network(tmp_path, cfg=cfg, in_chans=1, num_classes=2)
    assert open_classifier(str(tmp_path)).prepare([scene()]).shape == (1, 1, 64, 64)


def test_a_checkpoint_without_its_optimiser_state(small_run: Path, tmp_path: Path) -> None:
    """Weights are verified as before; `training.pt` is needed only to go on with the run."""
    shutil.copytree(small_run / "last", tmp_path / "run")
    (tmp_path / "run" / "training.pt").unlink()
    for average in (False, True):
        open_classifier(str(tmp_path / "run"), average=average)
    weights = tmp_path / "run" / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert WEIGHTS in refuse(tmp_path / "run")


def test_networks_by_name_are_the_same_every_time() -> None:
    """Without trained weights they are made from one seed, and the caller's random numbers don't change."""
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    one, other = open_classifier(TINY), open_classifier(TINY)
    assert torch.equal(torch.rand(1), wanted)
    assert one.trained is False
    x = torch.randn(2, *one.input_size)
    assert torch.equal(one.model(x), other.model(x))
    assert (len(one.labels), one.labels[0]) == (1000, "tench, Tinca tinca")


@pytest.mark.parametrize("name", [TINY, "convnext_flop_test"])
def test_other_sizes(name: str) -> None:
    """Whether the network is made for one size, or takes any."""
    found = open_classifier(name, img_size=96)
    assert found.input_size == (3, 96, 96)
    assert found.model(found.prepare([scene()])).shape == (1, 1000)


@pytest.mark.parametrize(
    ("name", "img_size", "size", "classes"),
    [("ours", None, (3, 32, 48), 5), ("picky", 20, (3, 20, 20), 4)],
)
def test_networks_of_ones_own(
    name: str, img_size: int | None, size: tuple[int, ...], classes: int, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(code.parent)
    found = open_classifier(f"./{code.name}:{name}", img_size=img_size)
    assert found.labels == tuple(map(str, range(classes)))
    assert found.trained is None  # its code may have loaded weights, or not
    assert found.input_size == size
    assert found.model(found.prepare([scene()])).shape == (1, classes)


def test_code_that_imports_modules_beside_it(tmp_path: Path) -> None:
    """When it is loaded, and when its function is called."""
    (tmp_path / "beside_net.py").write_text("CLASSES = 3")
    (tmp_path / "below_net.py").write_text("SIZE = 12")
    (tmp_path / "net.py").write_text("""
from torch import nn
from beside_net import CLASSES

def build():
    from below_net import SIZE
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(SIZE, CLASSES))
""")
    before = list(sys.path)
    assert len(open_classifier(f"{tmp_path}/net.py:build").labels) == 3
    assert sys.path == before


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        (":dense", "(1, 4, 64, 64)"),
        (":layer", "takes features"),
        (":picky", "3 x 64 x 64 (--img-size"),
        ("", "small, ours, picky, dense, layer, broken, Raises"),
        (":Waves", "torch.complex64"),
        (":described", "default_cfg"),
        (":smal", "has no 'smal'; it has small"),
        (":broken", "KeyError: 'width' (line "),
        (":Raises", "3 x 64 x 64 (--img-size names another size): ZeroDivisionError: integer division"),
    ],
)
def test_code_that_is_refused(attribute: str, words: str, code: Path) -> None:
    assert words in refuse(f"{code}{attribute}")


@pytest.mark.parametrize(
    "target", ["E(ViT-X)", "runs/none", "local-dir:none", "gone.py:net", "gone.py", "empty", "file"]
)
def test_targets_that_are_not_there(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").write_text("no network")
    assert target.removeprefix("local-dir:").removesuffix(":net") in refuse(target)


def test_classes_and_sizes_that_are_refused(tmp_path: Path, small_run: Path) -> None:
    save_network(tmp_path / "features", num_classes=0)
    assert "no classes" in refuse(tmp_path / "features")
    save_network(tmp_path / "unnamed", num_classes=2)
    assert open_classifier(str(tmp_path / "unnamed")).labels == ("0", "1")
    save_network(tmp_path / "wrong", labels=["cat"], num_classes=2)
    assert "2 classes" in refuse(tmp_path / "wrong")
    assert "--img-size 64" in refuse(small_run, img_size=64)


def test_weights_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name = "vit_tiny_patch16_224.augreg_in21k"
    assert f"the weights of {name!r} can't be downloaded" in refuse(name)


CORRUPTED = ["cut off", "other weights", "not finite", "unknown", "another size", "features", "{", "{}", "[" * 100_000]


@pytest.mark.parametrize("what", [*CORRUPTED, "\xff"])
def test_corrupted_folders(what: str, tmp_path: Path) -> None:
    save_network(tmp_path)
    weights = tmp_path / WEIGHTS
    if what == "cut off":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif what == "other weights":
        save_file({"a": torch.zeros(1)}, weights)
    elif what == "not finite":
        save_file({name: value / 0 for name, value in load_file(weights).items()}, weights)
    elif what == "unknown":
        edit_config(tmp_path, architecture="nothing_like_it")
    elif what == "another size":
        edit_config(tmp_path, model_args={"img_size": 96})
    elif what == "features":
        edit_config(tmp_path, model_args={"features_only": True})
    else:
        (tmp_path / "config.json").write_bytes(what.encode("latin-1"))
    message = refuse(tmp_path)
    assert str(tmp_path) in message
    assert len(message) < 700


def test_a_bug_is_not_taken_for_a_corrupted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_network(tmp_path)
    monkeypatch.setattr(VisionTransformer, "_init_weights", lambda model: model.no_such_method())
    with pytest.raises(AttributeError):
        open_classifier(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("crop_pct", "x"),
        ("crop_pct", 0),
        ("crop_pct", 1e-3),
        ("crop_mode", "middle"),
        ("interpolation", "zzz"),
        ("interpolation", "random"),
        ("std", [0, 0, 0]),
        ("std", [0]),
        ("mean", [0.5]),
        ("mean", ["a", "b", "c"]),
        ("input_size", [1, 64, 64]),
        ("input_size", [3, -1, 64]),
        ("input_size", [3, 64, 100_000]),
    ],
)
def test_preprocessing_that_is_refused(name: str, value: object, tmp_path: Path) -> None:
    """Three means for one channel, too."""
    save_network(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    edit_config(tmp_path, pretrained_cfg={**config["pretrained_cfg"], name: value})
    message = refuse(tmp_path)
    assert f"{tmp_path}/config.json': " in message
    assert ("mean" if name == "input_size" and value[0] == 1 else name) in message  # type: ignore[index]
    assert re.search(rf": {name}(\.\d)?: Input should be .*, got |: {name}: |: mean has one value", message), message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("checkpoint_path", "weights.pth"),
        ("pretrained_cfg", {"file": "weights.pth"}),
        ("pretrained_cfg_overlay", {"file": "weights.pth"}),
        ("cache_dir", "cache"),
        ("features_only", True),
        ("img_size", 100_000),
        ("img_size", [64, 100_000]),
        ("embed_dims", 32),
    ],
)
@pytest.mark.parametrize("open_folder", [open_classifier, targets.load], ids=["classifier", "target"])
def test_arguments_that_are_refused(
    name: str, value: object, open_folder: Callable[[str], object], tmp_path: Path
) -> None:
    """A file that is data names no other files, and does not change what a network returns."""
    save_network(tmp_path)
    edit_config(tmp_path, model_args={name: value})
    with pytest.raises(UsageError) as error:
        open_folder(f"local-dir:{tmp_path}")
    assert f"{tmp_path}/config.json" in str(error.value)
    assert repr(value if name == "img_size" else name) in str(error.value)
