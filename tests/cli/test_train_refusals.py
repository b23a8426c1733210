"""What people get wrong with train and eval: the message names the value, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file
from support.image_files import image_folder, make_image, web_dataset
from support.training_runs import ANIMALS, TINY, Ended, call, train_tiny

from flopping.training.networks import build
from flopping.training.recipe import load

Arguments = Callable[[Path], list[str]]


def options(*given: str) -> Arguments:
    """Good images, and options or fields of the recipe, in which {} is the place."""

    def make(root: Path) -> list[str]:
        folder = image_folder(root / "data", ANIMALS)
        fields = {change.partition("=")[0]: change for change in [*TINY, *given] if "=" in change}
        more = [text.replace("{}", str(root)) for text in given if "=" not in text]
        return ["fashion_vit", *fields.values(), *([] if "--data" in given else ["--data", str(folder)]), *more]

    return make


def named(name: str) -> Arguments:
    return lambda root: ["fashion_vit", "--data", name, "--root", str(root)]


def init_from_nan(root: Path) -> list[str]:
    """Weights of the network that is trained, one of which is damaged."""
    arguments = options("--init", "{}/nan.safetensors")(root)
    recipe = load("fashion_vit").override([word for word in arguments if "=" in word])
    weights = build(recipe, recipe.model, 2).state_dict()
    save_file({**weights, "head.weight": weights["head.weight"] / 0}, root / "nan.safetensors")
    return arguments


REFUSED: dict[str, tuple[Arguments, list[str]]] = {
    "no data": (lambda _: ["fashion_vit"], ["--data", "train/ and val/"]),
    "no folder": (options("--data", "{}/gone"), ["'{}/gone'", "one folder per class"]),
    "few images": (options("batch_size=9"), ["8 training images", "batch of 9"]),
    "root of a folder": (options("--root", "{}"), ["--root", "'{}/data' is a folder"]),
    "no such set": (named("torch/cifar"), ["'torch/cifar'", "there are cifar10, cifar100"]),
    "shards without a description": (named("wds/it"), ["'{}/_info.json'", '"filenames"']),
    "no such recipe": (lambda _: ["deit4", "--data", "here"], ["'deit4'", "deit3_"]),
    "no such network": (options("batch_size=9", "--model", "E(ViT-Q)"), ["'E(ViT-Q)'", "E(ViT-S)"]),
    "a width that does not fit": (options("model_args.embed_dim=17"), ["17"]),
    "no such field": (options("learning_rat=1"), ["learning_rat", "lr"]),
    "too large a micro-batch": (options("--micro-batch", "8"), ["batch of 4", "of 8 images"]),
    "odd micro-batch for pairs": (options("--micro-batch", "1", "mixup=0.8"), ["--micro-batch is even, got 1"]),
    "no GPU": (options("--device", "cuda"), ["'cuda'", "--device cpu"]),
    "one of several CPUs": (options("--device", "cpu:1"), ["'cpu:1'"]),
    "too many workers": (options("--workers", "257"), ["--workers", "256"]),
    "restart alone": (options("--restart"), ["--restart", "--resume"]),
    "more memory than there is": (options("model_args.mlp_ratio=1e12"), ["1000000000000"]),
    "warm-up to the end": (options("epochs=1", "warmup_epochs=0.9"), ["warmup_epochs=0.9", "2 steps"]),
    "no dataset's name": (lambda _: ["fashion_vit", "--data", "hfds/"], ["'hfds/'", "hfds/NAME"]),
    "weights that are not finite": (init_from_nan, ["head.weight", "not finite"]),
    "sharding alone": (options("--shard"), ["--shard", "torchrun"]),
    "no weights": (options("--init", "{}/gone"), ["--init {}/gone: no folder '{}/gone'"]),
    "weights that are none": (options("--init", "{}/data/train/cat/0.png"), ["cat/0.png'"]),
    "new head of nothing": (options("--new-head"), ["--new-head", "--init"]),
    "run in a file": (options("-o", "{}/data/train/cat/0.png"), ["cat/0.png' is a file", "-o"]),
    "run without a name": (options("-o", "{}/\udcff"), ["\\udcff' is no name in UTF-8"]),
    "code without a name": (options("--model", "net.py"), ["no file 'net.py'"]),
    "run among other files": (options("-o", "{}/data"), ["'{}/data' holds other files"]),
}


def assert_refused(ended: Ended, *parts: str) -> None:
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
    for part in parts:
        assert part in ended.err


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_training(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    make, parts = REFUSED[name]
    arguments = make(tmp_path)
    defaults = {"-o": str(tmp_path / "run"), "--device": "cpu"}
    more = [word for option in defaults.items() if option[0] not in arguments for word in option]
    ended = call("train", *arguments, *more, "--no-compile")
    assert_refused(ended, *(part.replace("{}", str(tmp_path)) for part in parts))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run on cats and dogs, in a folder with images of other animals."""
    root = tmp_path_factory.mktemp("trained")
    for name, classes in {"three": ["cat", "cow", "dog"], "others": ["cow", "owl"]}.items():
        image_folder(root / name, {"train": dict.fromkeys(classes, 4), "val": dict.fromkeys(classes, 1)})
    ended = train_tiny(image_folder(root / "animals", ANIMALS), root / "run")
    assert ended.code == 0, ended.err
    return root


@pytest.mark.parametrize(
    ("target", "images", "parts"),
    [
        ("gone", "animals", ["'{}/gone'"]),
        ("animals", "animals", ["'{}/animals' holds no checkpoint"]),
        ("run", "gone", ["'{}/gone'"]),
        ("run", "three", ["knows 2 classes, and '{}/three' has 3", "--init"]),
        ("run", "others", ["'cow' of '{}/others'", "cat, dog"]),
        ("run --average", "animals", ["no averaged weights"]),
        ("run --batch 1048577", "animals", ["--batch", "1048576"]),
    ],
)
def test_refused_evaluations(target: str, images: str, parts: list[str], trained: Path) -> None:
    words = f"{trained}/{target}".split()
    ended = call("eval", *words, "--data", str(trained / images), "--device", "cpu", "--workers", "0")
    assert_refused(ended, *(part.replace("{}", str(trained)) for part in parts))


def test_classes_are_told_by_their_names(trained: Path, tmp_path: Path) -> None:
    """Data whose classes come in another order is tested as well: here a WebDataset with dogs first."""
    root = web_dataset(tmp_path, {"validation": (6, 5)}, classes=("dog", "cat"))
    image_folder(tmp_path / "same", {"val": {"cat": 0, "dog": 0}})
    for number in range(11):
        make_image(number).save(tmp_path / "same" / "val" / ("dog", "cat")[number % 2] / f"{number}.png")
    ways = [["--data", "wds/it", "--root", str(root)], ["--data", str(tmp_path / "same")]]
    found = [call("eval", str(trained / "run"), *way, "--json", "--workers", "0", "--batch", "4") for way in ways]
    assert [ended.code for ended in found] == [0, 0]
    assert found[0].result == {**found[1].result, "loss": pytest.approx(found[1].result["loss"])}
    assert found[0].result["images"] == 11
