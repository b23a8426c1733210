"""What people get wrong with train and eval: the message names the value, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.image_files import image_folder, make_image, web_dataset
from support.training_runs import ANIMALS, TINY, Ended, call, train_tiny

Arguments = Callable[[Path], list[str]]


def data(splits: dict[str, dict[str, int]], *files: str) -> Arguments:
    """Images, and files among them."""

    def make(root: Path) -> list[str]:
        folder = image_folder(root / "data", splits)
        for name in files:
            (folder / name).parent.mkdir(exist_ok=True)
            make_image(0).save(folder / name) if name.endswith(".png") else (folder / name).write_text("moo")
        return ["fashion_vit", *TINY, "--data", str(folder)]

    return make


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


ONE_CLASS = {"train": {"cat": 4}, "val": {"cat": 1}}
MORE_TESTS = {**ANIMALS, "val": {"cat": 1, "cow": 1, "dog": 1}}
REFUSED: dict[str, tuple[Arguments, list[str]]] = {
    "no data": (lambda _: ["fashion_vit"], ["--data", "train/ and val/"]),
    "no folder": (options("--data", "{}/gone"), ["'{}/gone'", "one folder per class"]),
    "a file": (options("--data", "{}/data/train/cat/0.png"), ["cat/0.png' is a file", "train/ and val/"]),
    "no splits": (data({"cat": {"": 1}}), ["'{}/data' has no folder train/", "only cat/"]),
    "no test": (data({"train": ANIMALS["train"]}), ["'{}/data' has no folder val/"]),
    "empty class": (data(ANIMALS, "train/cow/.hidden"), ["'{}/data/train/cow'"]),
    "a stray image": (data(ANIMALS, "val/loose.png"), ["'{}/data/val/loose.png'"]),
    "one class": (data(ONE_CLASS), ["{}/data/train has one class"]),
    "a class without training": (data(MORE_TESTS), ["'{}/data'", "without training images: cow"]),
    "few images": (options("batch_size=9"), ["8 training images", "batch of 9"]),
    "root of a folder": (options("--root", "{}"), ["--root", "'{}/data' is a folder"]),
    "no such set": (named("torch/cifar"), ["'torch/cifar'", "there are cifar10, cifar100"]),
    "shards without a description": (named("wds/it"), ["'{}/_info.json'", '"shard_lengths"']),
    "no such recipe": (lambda _: ["deit4", "--data", "here"], ["'deit4'", "deit3_"]),
    "another family": (options("--model", "E(ResMLP-S24)"), ["E(ResMLP-S24)", "ViT", "ResMLP"]),
    "no such network": (options("batch_size=9", "--model", "E(ViT-Q)"), ["'E(ViT-Q)'", "E(ViT-S)"]),
    "a width that does not fit": (options("model_args.embed_dim=17"), ["17"]),
    "no such field": (options("learning_rat=1"), ["learning_rat", "lr"]),
    "too large a micro-batch": (options("--micro-batch", "8"), ["batch of 4", "of 8 images"]),
    "odd micro-batch for pairs": (options("--micro-batch", "1", "mixup=0.8"), ["--micro-batch is even, got 1"]),
    "no GPU": (options("--device", "cuda"), ["'cuda'", "--device cpu"]),
    "sharding alone": (options("--shard"), ["--shard", "torchrun"]),
    "no weights": (options("--init", "{}/gone"), ["'{}/gone'"]),
    "weights that are none": (options("--init", "{}/data/train/cat/0.png"), ["cat/0.png'"]),
    "new head of nothing": (options("--new-head"), ["--new-head", "--init"]),
    "run in a file": (options("-o", "{}/data/train/cat/0.png"), ["cat/0.png' is a file", "-o"]),
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


def test_weights_for_other_classes(trained: Path) -> None:
    init = ["--init", str(trained / "run")]
    ended = train_tiny(trained / "three", trained / "tuned", *init)
    assert ended.code == 0, ended.err
    assert f"--init {trained}/run: head.weight (2, 8) left out" in ended.err


def test_weights_of_another_network(trained: Path) -> None:
    ended = train_tiny(trained / "animals", trained / "other", "--init", str(trained / "run"), "--model", "ViT-S")
    assert_refused(ended, f"--init {trained}/run", "VisionTransformer")


def test_a_run_is_not_overwritten_or_changed(trained: Path) -> None:
    assert_refused(train_tiny(trained / "animals", trained / "run"), f"'{trained}/run'", "--resume")
    ended = train_tiny(trained / "three", trained / "run", "--resume", "lr=0.5")
    assert_refused(ended, f"'{trained}/run'", "lr=0.5 (was 0.003)")
    assert_refused(train_tiny(trained / "three", trained / "run", "--resume"), f"'{trained}/three'", "of 3 classes")


@pytest.mark.parametrize(
    ("target", "images", "parts"),
    [
        ("gone", "animals", ["'{}/gone'"]),
        ("animals", "animals", ["'{}/animals' holds no checkpoint"]),
        ("run", "gone", ["'{}/gone'"]),
        ("run", "three", ["knows 2 classes, and '{}/three' has 3", "--init"]),
        ("run", "others", ["'cow' of '{}/others'", "cat, dog"]),
        ("run --average", "animals", ["no averaged weights"]),
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
