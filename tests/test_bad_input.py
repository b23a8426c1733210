"""What people get wrong: every message names what was given and says what to do, and nothing is left behind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pictures import image_folder, picture, web_dataset
from training_runs import Ended, call

SPLITS = {"train": {"cat": 4, "dog": 4}, "val": {"cat": 1, "dog": 1}}
SMALL = ["model_args.embed_dim=16", "model_args.depth=1", "in_chans=3", "mean=null", "std=null", "batch_size=4"]


@dataclass(frozen=True)
class Place:
    """A folder to make mistakes in."""

    root: Path

    def folder(self, splits: dict[str, dict[str, int]]) -> str:
        return str(image_folder(self.root / "data", splits))

    def good(self) -> str:
        return self.folder(SPLITS)

    def file(self) -> str:
        (self.root / "file").write_text("text")
        return str(self.root / "file")

    def hollow(self) -> str:
        (image_folder(self.root / "data", SPLITS) / "train" / "cow").mkdir()
        return str(self.root / "data")

    def notes(self) -> str:
        self.hollow()
        (self.root / "data" / "train" / "cow" / "notes.txt").write_text("moo")
        return str(self.root / "data")

    def stray(self) -> str:
        picture(0).save(image_folder(self.root / "data", SPLITS) / "val" / "loose.png")
        return str(self.root / "data")


Arguments = Callable[[Place], list[str]]


def data(make: Callable[[Place], str]) -> Arguments:
    return lambda place: ["fashion_vit", *SMALL, "--data", make(place)]


def options(*given: str) -> Arguments:
    """Good images, and options or fields of the recipe, in which {} is the place."""

    def make(place: Place) -> list[str]:
        fields = {change.partition("=")[0]: change for change in [*SMALL, *given] if "=" in change}
        more = [text.replace("{}", str(place.root)) for text in given if "=" not in text]
        return ["fashion_vit", *fields.values(), "--data", place.good(), *more]

    return make


def named(name: str) -> Arguments:
    return lambda place: ["fashion_vit", "--data", name, "--root", str(place.root)]


TRAIN_ONLY = {"train": SPLITS["train"]}
ONE_CLASS = {"train": {"cat": 4}, "val": {"cat": 1}}
MORE_TESTS = {**SPLITS, "val": {"cat": 1, "cow": 1, "dog": 1}}

REFUSED: dict[str, tuple[Arguments, list[str]]] = {
    "no data": (lambda _: ["fashion_vit"], ["--data says where the images are: a folder with train/ and val/"]),
    "no folder": (data(lambda p: f"{p.root}/gone"), ["there is no folder '{}/gone'", "one folder per class"]),
    "a file": (data(Place.file), ["'{}/file' is a file", "--data is a folder with train/ and val/ in it"]),
    "no splits": (data(lambda p: p.folder({"cat": {"": 1}})), ["'{}/data' has no folder train/", "only cat/"]),
    "no test": (data(lambda p: p.folder(TRAIN_ONLY)), ["'{}/data' has no folder val/", "for the test images"]),
    "empty class": (data(Place.hollow), ["class folder '{}/data/train/cow' holds no image", "or remove the folder"]),
    "no image in a class": (data(Place.notes), ["cow' holds no image", "'{}/data/train/cow/notes.txt' is none"]),
    "a stray image": (data(Place.stray), ["'{}/data/val/loose.png' lies in no class folder: move it"]),
    "one class": (
        data(lambda p: p.folder(ONE_CLASS)),
        ["{}/data/train has one class only", "Every class has a folder"],
    ),
    "a class without training": (
        data(lambda p: p.folder(MORE_TESTS)),
        ["classes of '{}/data' differ", "without training images: cow. Give both splits the same classes"],
    ),
    "few images": (options("batch_size=9"), ["8 training images are less than one batch of 9: set batch_size lower"]),
    "root of a folder": (options("--root", "{}"), ["--root goes with a data set by name", "'{}/data' is a folder"]),
    "no such kind": (named("tfds/mnist"), ["'tfds/mnist' is a kind of data that is not read: hfds/ and wds/ are"]),
    "no such set": (named("torch/cifar"), ["timm knows no data set 'torch/cifar'", "did you mean torch/cifar10?"]),
    "shards without a word": (named("wds/it"), ["there is no file '{}/_info.json'", '"shard_lengths"']),
    "no such recipe": (lambda p: ["deit4", "--data", p.good()], ["no recipe is called 'deit4'", "deit3_"]),
    "another family": (options("--model", "E(ResMLP-S24)"), ["E(ResMLP-S24)", "ViT", "ResMLP"]),
    "no such network": (options("--model", "E(ViT-Q)"), ["no model is called 'E(ViT-Q)'; the closest are E(ViT-S)"]),
    "no such network, which goes before too few images": (
        options("batch_size=9", "--model", "E(ViT-Q)"),
        ["no model is called 'E(ViT-Q)'"],
    ),
    "no such field": (options("learning_rat=1"), ["learning_rat", "lr"]),
    "two channels": (options("in_chans=2"), ["grey (in_chans=1) or in colour (in_chans=3), got in_chans=2"]),
    "too large a chunk": (options("--chunk", "8"), ["batch of 4 can't be cut into chunks of 8 images"]),
    "a chunk that does not fit": (options("--chunk", "3"), ["batch of 4 can't be cut into chunks of 3 images"]),
    "odd chunk for pairs": (options("--chunk", "1", "mixup=0.8"), ["mix pairs of images: --chunk is even, got 1"]),
    "no such device": (options("--device", "banana"), ["'banana'", "cpu, cuda or cuda:NUMBER"]),
    "another device": (options("--device", "mps"), ["networks are trained on cpu or cuda, got 'mps'"]),
    "no GPU": (options("--device", "cuda"), ["no CUDA device was found for 'cuda'; --device cpu works everywhere"]),
    "sharding alone": (options("--shard"), ["--shard spreads a network over processes: start them with torchrun"]),
    "no weights": (options("--init", "{}/gone"), ["there is no '{}/gone': --init is a run, one of its checkpoints"]),
    "weights without a checkpoint": (options("--init", "{}/data"), ["no checkpoint in '{}/data'"]),
    "new head of nothing": (options("--new-head"), ["--new-head goes with --init"]),
    "run in a file": (options("-o", "{}/data/train/cat/0.png"), ["cat/0.png' is a file: -o names the folder of"]),
    "run among other files": (options("-o", "{}/data"), ["'{}/data' holds other files than those of a run"]),
    "fewer than no workers": (options("--workers", "-1"), ["--workers"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_training(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    make, said = REFUSED[name]
    arguments = make(Place(tmp_path))
    output = [] if "-o" in arguments else ["-o", str(tmp_path / "run")]
    ended = call(
        "train", *arguments, *output, "--no-compile", *([] if "--device" in arguments else ["--device", "cpu"])
    )
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
    for part in said:
        assert part.replace("{}", str(tmp_path)) in ended.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("kind", "package"), [("hfds", "datasets"), ("wds", "webdataset")])
def test_a_package_that_is_not_there(kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ended = call("train", "fashion_vit", "--data", f"{kind}/it", "--root", str(tmp_path), "-o", str(tmp_path / "run"))
    refused(ended, f"'{kind}/it' is read by the package {package}: pip install 'flopping[data]'")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run on cats and dogs, in a folder with images of other animals."""
    root = tmp_path_factory.mktemp("trained")
    images = image_folder(root / "animals", SPLITS)
    for name, classes in {"three": ["cat", "cow", "dog"], "others": ["cow", "owl"]}.items():
        image_folder(root / name, {"train": dict.fromkeys(classes, 4), "val": dict.fromkeys(classes, 1)})
    ended = train(root, images, "run")
    assert ended.code == 0, ended.err
    return root


def train(root: Path, images: Path, run: str, *more: str) -> Ended:
    options = ["--data", str(images), "-o", str(root / run), "--device", "cpu", "--workers", "0", "--no-compile"]
    return call("train", "fashion_vit", *SMALL, "epochs=1", "warmup_epochs=0", *options, *more)


def refused(ended: Ended, *said: str) -> None:
    assert ended.code == 2, ended.err
    assert "Traceback" not in ended.err
    for part in said:
        assert part in ended.err


def test_weights_for_other_classes(trained: Path) -> None:
    init = ["--init", str(trained / "run")]
    ended = train(trained, trained / "three", "tuned", *init)
    refused(ended, f"'{trained}/run' knows 2 classes, and the data has 3: --new-head keeps all weights but the class")
    assert not (trained / "tuned").exists()
    ended = train(trained, trained / "three", "tuned", *init, "--new-head")
    assert ended.code == 0, ended.err


def test_weights_of_another_network(trained: Path) -> None:
    ended = train(trained, trained / "animals", "other", "--init", str(trained / "run"), "--model", "ViT-S")
    refused(ended, f"'{trained}/run' is of another network than VisionTransformer: it lacks")


def test_a_run_is_not_overwritten_or_changed(trained: Path) -> None:
    refused(train(trained, trained / "animals", "run"), f"there is a run in '{trained}/run': --resume goes on with it")
    ended = train(trained, trained / "three", "run", "--resume", "lr=0.5")
    refused(ended, f"the run in '{trained}/run' was started otherwise: lr=0.5 (was 0.003)", f"data={trained}/three")


@pytest.mark.parametrize(
    ("target", "images", "said"),
    [
        ("gone", "animals", ["no folder '{}/gone': a run, one of its checkpoints, or a saved model of timm"]),
        ("animals", "animals", ["'{}/animals' holds no checkpoint"]),
        ("run", "gone", ["there is no folder '{}/gone'"]),
        ("run", "three", ["knows 2 classes, and '{}/three' has 3", "the data it was trained for", "--new-head"]),
        ("run", "others", ["knows no class 'cow' of '{}/others'; its classes are cat, dog", "the same names"]),
    ],
)  # fmt: skip
def test_refused_evaluations(target: str, images: str, said: list[str], trained: Path) -> None:
    ended = call("eval", str(trained / target), "--data", str(trained / images), "--device", "cpu", "--workers", "0")
    refused(ended, *(part.replace("{}", str(trained)) for part in said))


def test_averages_that_were_not_kept(trained: Path) -> None:
    ended = call("eval", str(trained / "run"), "--data", str(trained / "animals"), "--average")
    refused(ended, "has no averaged weights: its recipe has no ema")


def test_classes_are_told_by_their_names(trained: Path, tmp_path: Path) -> None:
    """Data whose classes come in another order is tested as well: here a WebDataset with dogs first."""
    root = web_dataset(tmp_path, {"validation": (6, 5)}, classes=("dog", "cat"))
    image_folder(tmp_path / "same", {"val": {"cat": 0, "dog": 0}})
    for number in range(11):
        picture(number).save(tmp_path / "same" / "val" / ("dog", "cat")[number % 2] / f"{number}.png")
    ways = [["--data", "wds/it", "--root", str(root)], ["--data", str(tmp_path / "same")]]
    found = [call("eval", str(trained / "run"), *way, "--json", "--workers", "0", "--batch", "4") for way in ways]
    assert [ended.code for ended in found] == [0, 0]
    assert found[0].result == pytest.approx(found[1].result)
    assert found[0].result["images"] == 11
