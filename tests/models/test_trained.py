"""Weights in the package: packed from a real run with a card of its records, loaded by name without a download."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import timm
import torch
from support.scripts import load
from support.training_runs import call, image_folder
from timm.data import resolve_model_data_config

from flopping.data.datasets import open_dataset
from flopping.errors import UsageError
from flopping.models import zoo
from flopping.testing import assert_equivariant
from flopping.training.networks import find_checkpoint, read_initial_weights
from flopping.training.preprocessing import whiten_stem
from flopping.training.recipe import load as load_recipe
from flopping.training.run_log import read_log

NAME, PAPER = "resnet_flop_8_32", "E(ResNet-8 (32 px))"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load("pack_weights", "tools")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One epoch of the real recipe on forty images of ten classes."""
    root = tmp_path_factory.mktemp("trained")
    data = image_folder(root / "data", 4, 1, classes=10)
    words = ["train", "cifar10_resnet", "epochs=1", "warmup_epochs=0", "batch_size=8", "lr=0.02", "--data", str(data)]
    ended = call(*words, "-o", str(root / "run"), "--device", "cpu", "--workers", "0", "--no-compile")
    assert ended.code == 0, ended
    return root / "run"


@pytest.fixture
def packed(run: Path, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(zoo, "TRAINED", tmp_path / "trained")
    folder: Path = tool.pack(run, tmp_path / "trained", "abc123")
    return folder


def test_the_card_names_a_commit(tool: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    with pytest.raises(UsageError, match="is in no git repository"):
        tool.describe_version(tmp_path)
    git("init", "-q")
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-qm", "first")
    assert tool.describe_version(tmp_path) == git("rev-parse", "--short=12", "HEAD")
    (tmp_path / "file").write_text("b")
    with pytest.raises(UsageError, match="has uncommitted changes"):
        tool.describe_version(tmp_path)


def test_the_run_began_with_a_whitened_stem(run: Path) -> None:
    recipe, model = load_recipe("cifar10_resnet"), timm.create_model(NAME)
    whiten_stem(model, recipe, open_dataset(str(run.parent / "data"), "train"))
    trained = timm.create_model(f"local-dir:{run / 'last'}", pretrained=True)
    first, last = (net.conv1.weight["even"][:8].flatten(1) for net in (model, trained))
    assert torch.cosine_similarity(first, last).min() > 0.9  # five small steps were made since


def test_weights_come_by_name_without_a_download(packed: Path, run: Path) -> None:
    cfg = zoo._default_cfg(zoo.ZOO[NAME])
    assert cfg["file"] == str(packed / "model.safetensors")
    named = timm.create_model(NAME, pretrained=True, pretrained_cfg=cfg).eval()
    trained = timm.create_model(f"local-dir:{run / 'last'}", pretrained=True).eval()
    image = torch.randn(2, 3, 32, 32)
    assert torch.equal(named(image), trained(image))
    assert not torch.equal(named(image), timm.create_model(NAME).eval()(image))
    fewer = timm.create_model(NAME, pretrained=True, pretrained_cfg=cfg, num_classes=3)
    assert torch.equal(fewer.state_dict()["conv1.weight.even"], trained.state_dict()["conv1.weight.even"])
    assert fewer(image).shape == (2, 3)
    ours, theirs = resolve_model_data_config(named), resolve_model_data_config(trained)
    assert all(tuple(ours[key]) == tuple(theirs[key]) for key in ("input_size", "mean", "std"))
    assert all(ours[key] == theirs[key] for key in ("crop_pct", "interpolation"))


def test_the_card_has_the_records_of_the_run(packed: Path, run: Path) -> None:
    card = (packed / "README.md").read_text(encoding="utf-8")
    last = [event for event in read_log(run) if event["kind"] == "epoch"][-1]
    assert f"| top-1 on test images | {last['top1']:.2f} % |" in card
    assert f"| top-1 on test images moved by flop | {last['moved']['flop']['top1']:.2f} % |" in card
    assert "change when they are moved | 0 |" in card
    assert "| commit of the source that packed it | abc123 |" in card
    assert "40 training and 10 test images of 10 classes" in card
    assert "label_smoothing: 0.1" in card
    assert "expected: {}" in card  # the recipe's header speaks of other runs
    assert card.startswith(f"# {NAME}\n")
    changes = "epochs=1 batch_size=8 lr=0.02 warmup_epochs=0.0"
    assert f"| command | `flopping train cifar10_resnet {changes} --model '{PAPER}' --data DATA -o RUN` |" in card
    assert str(run.parent) not in card


@pytest.mark.parametrize("name", [NAME, PAPER])
def test_commands_find_it_by_name(packed: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_checkpoint(Path(name)) == packed
    monkeypatch.chdir(tmp_path)
    image = image_folder(tmp_path / "photos", 1, 1) / "val"
    ended = call("predict", name, str(image), "--json")
    assert ended.code == 0, ended
    assert len(ended.out.splitlines()) == 3
    expected = json.loads((packed / "config.json").read_text(encoding="utf-8"))["label_names"]
    for line in ended.out.splitlines():
        assert all(each["label"] == expected[each["class"]] for each in json.loads(line)["top"])
    Path(name).mkdir()  # what exists is meant by its name
    with pytest.raises(UsageError, match="holds no checkpoint"):
        find_checkpoint(Path(name))


def test_without_weights_nothing_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "TRAINED", tmp_path)
    assert "file" not in zoo._default_cfg(zoo.ZOO[NAME])
    with pytest.raises(UsageError, match=NAME):
        find_checkpoint(Path(NAME))
    with pytest.raises(UsageError, match="resnet_flop_test"):
        read_initial_weights("resnet_flop_test")


def test_the_weights_of_the_package() -> None:
    """All folders are of registered networks, within the limit, and as equivariant as their card says."""
    found = {path.parent.name: path for path in zoo.TRAINED.glob("*/model.safetensors")}
    assert NAME in found
    assert sum(path.stat().st_size for path in found.values()) < 4 * 10**6
    for name in found:
        model = timm.create_model(name, pretrained=True).eval()
        x = torch.rand(4, *model.default_cfg["input_size"])
        assert_equivariant(model, x)
        assert (
            "| predictions of test images that change when they are moved | 0 |"
            in (found[name].parent / "README.md").read_text()
        )


def test_what_is_not_packed(run: Path, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "LIMIT", 1000)
    with pytest.raises(UsageError, match="1,000 are the most"):
        tool.pack(run, tmp_path, "abc")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    (unfinished / "run.json").write_text((run / "run.json").read_text())
    (unfinished / "last").symlink_to((run / "last").resolve())
    with pytest.raises(UsageError, match="has not finished"):
        tool.pack(unfinished, tmp_path / "into", "abc")
    monkeypatch.setitem(zoo.ZOO, NAME, zoo.ZOO["resnet_flop_test"])
    with pytest.raises(UsageError, match="65 pixels"):
        tool.pack(run, tmp_path / "into", "abc")
    assert not (tmp_path / "into").exists()
