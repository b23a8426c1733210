"""Data sets by name: torchvision's and Hugging Face's, as they lie on the disk."""

import re
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from pictures import image_folder, packed, picture
from torchvision.datasets import FashionMNIST

from flopping.training import fashion
from flopping.training.images import Source
from flopping.training.named import Hub, Torchvision
from flopping.training.sources import open_source


@pytest.fixture(scope="module")
def idx_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first images of Fashion-MNIST as torchvision keeps them."""
    root = tmp_path_factory.mktemp("torchvision")
    folder = root / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    for train in (True, False):
        data = fashion.embedded(train).first(2)
        images, labels = fashion.file_names(train)
        fashion.write_idx(folder / images, data.images)
        fashion.write_idx(folder / labels, data.labels.astype(np.uint8))
    return root


def opened(data: str, split: str, root: Path | None = None) -> Source:
    found = open_source(data, split, None if root is None else str(root))
    assert isinstance(found, Source)
    return found


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_data_set_of_torchvision(split: str, idx_files: Path) -> None:
    ours = opened("torch/fashion_mnist", split, idx_files)
    theirs = FashionMNIST(str(idx_files), train=split == "train")
    assert isinstance(ours, Torchvision)
    assert len(ours) == len(theirs) == 20
    assert ours.classes == tuple(theirs.classes)
    for index in range(20):
        (image, label), (expected, target) = ours.open(index), theirs[index]
        assert label == target
        assert image.tobytes() == expected.tobytes()
    assert ours.where(3) == f"image 3 of torch/fashion_mnist's {split} images in {str(idx_files)!r}"


def test_the_same_images_under_the_packages_own_name(idx_files: Path) -> None:
    one, other = opened("torch/fashion_mnist", "test", idx_files), opened("fashion-mnist", "test", idx_files)
    assert one.classes == other.classes
    assert [one.open(n)[1] for n in range(20)] == [other.open(n)[1] for n in range(20)]
    assert all(one.open(n)[0].tobytes() == other.open(n)[0].tobytes() for n in range(20))
    assert other.where(3) == "image 3 of fashion-mnist's test images"


def test_torchvisions_image_folder_keeps_splits_apart(tmp_path: Path) -> None:
    root = image_folder(tmp_path, {"train": {"cat": 2, "dog": 1}, "val": {"cat": 1, "dog": 1}})
    train, test = opened("torch/image_folder", "train", root), opened("torch/image_folder", "test", root)
    assert (len(train), len(test)) == (3, 2)
    assert train.classes == ("cat", "dog")
    assert test.where(1) == str(root / "val" / "dog" / "0.png")
    assert test.open(1)[0].tobytes() == picture(4).tobytes()


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set as the hub has them, with columns called otherwise, in a folder with capitals."""
    root = tmp_path_factory.mktemp("hub") / "Some-Data"
    (root / "data").mkdir(parents=True)
    features = datasets.Features({"img": datasets.Image(), "number": datasets.Value("int64")})
    features["animal"] = datasets.ClassLabel(names=["dog", "cat", "cow"])
    for split, first in {"train": 0, "validation": 100, "test": 200}.items():
        rows = {
            "img": [{"bytes": packed(picture(first + n)), "path": f"{n}.png"} for n in range(6)],
            "number": list(range(6)),
            "animal": [-1 if split == "test" else n % 3 for n in range(6)],
        }
        datasets.Dataset.from_dict(rows, features=features).to_parquet(root / "data" / f"{split}-0.parquet")
    return root


def test_a_data_set_of_hugging_face(parquet: Path, tmp_path: Path) -> None:
    for split, first in {"train": 0, "test": 100}.items():  # the test images without classes are not taken
        source = opened(f"hfds/{parquet}", split, tmp_path)
        assert isinstance(source, Hub)
        assert len(source) == 6
        assert source.classes == ("dog", "cat", "cow")
        assert [source.open(n)[1] for n in range(6)] == [0, 1, 2, 0, 1, 2]
        assert all(source.open(n)[0].tobytes() == picture(first + n).tobytes() for n in range(6))
        assert "image 2 of hfds/" in source.where(2)
        assert "2.png" in source.where(2)


def test_hugging_faces_image_folder(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "data", {"train": {"cat": 2, "dog": 1}, "test": {"cat": 1, "dog": 1}})
    source = opened(f"hfds/{root}", "test", tmp_path / "cache")
    assert source.classes == ("cat", "dog")
    assert source.open(1)[0].tobytes() == picture(4).tobytes()
    assert str(root / "test" / "dog" / "0.png") in source.where(1)


def test_a_damaged_image_of_hugging_face_fails_when_it_is_read(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    (tmp_path / "data").mkdir()
    rows = {
        "image": [{"bytes": b"no image", "path": None}, {"bytes": packed(picture(0)), "path": None}],
        "label": [0, 1],
    }
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "data" / "train-0.parquet")
    source = opened(f"hfds/{tmp_path / 'data'}", "train", tmp_path / "cache")
    with pytest.raises(OSError, match="cannot identify image"):
        source.open(0)
    assert source.where(0).startswith("image 0 of hfds/")
    assert source.open(1)[1] == 1


def refused(data: str, root: Path | None, *parts: str, split: str = "train") -> None:
    with pytest.raises(ValueError, match=re.escape(parts[0])) as error:
        open_source(data, split, None if root is None else str(root))
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


def test_what_is_refused_of_torchvision(tmp_path: Path) -> None:
    refused("torch/cifar11", tmp_path, "torch/cifar11", "did you mean torch/cifar10?")
    refused("torch/weather", tmp_path, "torch/weather", "there are cifar10, cifar100, mnist")
    refused("torch/cifar10", None, "--root says in which folder 'torch/cifar10' lies")
    refused("torch/cifar10", tmp_path / "gone", "there is no folder", str(tmp_path / "gone"), "--root names one")
    refused("torch/cifar10", tmp_path, "no 'torch/cifar10' in", str(tmp_path), "torchvision.datasets.CIFAR10(")
    refused("torch/imagenet", tmp_path, "no 'torch/imagenet' in", str(tmp_path), "torchvision.datasets.ImageNet(")
    refused("torch/image_folder", tmp_path, "has no folder train/ or training/", str(tmp_path))
    image_folder(tmp_path, {"train": {"cat": 1}})
    refused("torch/image_folder", tmp_path, "has one class only, 'cat'", str(tmp_path))


def test_what_is_refused_of_hugging_face(parquet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(f"hfds/{tmp_path}/gone", tmp_path, "data set 'hfds/", "/gone")
    only = tmp_path / "only"
    image_folder(only, {"train": {"cat": 1, "dog": 1}})
    refused(
        f"hfds/{only}", tmp_path, "it has no split val or valid or validation or test or eval, only train", split="test"
    )
    no_labels = tmp_path / "plain"
    no_labels.mkdir()
    rows = {"image": [packed(picture(0))], "label": [3]}
    datasets.Dataset.from_dict(rows).to_parquet(no_labels / "train-0.parquet")
    refused(f"hfds/{no_labels}", tmp_path, "one column is of type Image", "image (Value), label (Value)", "cast_column")
    unlabelled = tmp_path / "unlabelled"
    unlabelled.mkdir()
    (unlabelled / "test-0.parquet").write_bytes((parquet / "data" / "test-0.parquet").read_bytes())
    refused(f"hfds/{unlabelled}", tmp_path, "split 'test'", "without a class, labelled -1", split="test")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("hfds/beans", tmp_path, "read by the package datasets: pip install 'flopping[data]'")


def test_kinds_that_are_not_read(tmp_path: Path) -> None:
    refused("tfds/cifar10", tmp_path, "tfds/cifar10", "is not read", "hfds/ and wds/ are")
    refused("hfids/beans", tmp_path, "hfids/beans", "is not read", "hfds/ reads the same data sets")
    refused(str(tmp_path), tmp_path, "--root goes with a data set by name", str(tmp_path))
