"""Datasets by name: torchvision's and Hugging Face's, as they lie on the disk."""

import re
import sys
from pathlib import Path

import datasets
import pytest
from support.image_files import encode, image_folder, make_image, write_fashion_mnist
from torchvision.datasets import FashionMNIST

from flopping.data.datasets import open_dataset
from flopping.data.fashion import read_subset
from flopping.data.images import ImageDataset
from flopping.errors import UsageError


@pytest.fixture(scope="module")
def idx_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first images of Fashion-MNIST as torchvision keeps them."""
    root = tmp_path_factory.mktemp("torchvision")
    for train in (True, False):
        images, labels = read_subset(train)
        write_fashion_mnist(root, train, images[:20], labels[:20])
    return root


def opened(data: str, split: str, root: Path | None = None) -> ImageDataset:
    return open_dataset(data, split, None if root is None else str(root))


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_dataset_of_torchvision(split: str, idx_files: Path) -> None:
    theirs = FashionMNIST(str(idx_files), train=split == "train")
    ours = opened("torch/fashion_mnist", split, idx_files)
    assert len(ours) == len(theirs) == 20
    assert ours.classes == tuple(theirs.classes)
    for index in range(20):
        (image, label), (expected, target) = ours.read(index), theirs[index]
        assert label == target
        assert image.tobytes() == expected.tobytes()
    assert ours.locate(3).startswith(f"image 3 of torch/fashion_mnist's {split} images")


def test_torchvisions_image_folder_keeps_splits_apart(tmp_path: Path) -> None:
    root = image_folder(tmp_path, {"train": {"cat": 2, "dog": 1}, "val": {"cat": 1, "dog": 1}})
    train, test = opened("torch/image_folder", "train", root), opened("torch/image_folder", "test", root)
    assert (len(train), len(test)) == (3, 2)
    assert train.classes == ("cat", "dog")
    assert test.locate(1) == str(root / "val" / "dog" / "0.png")
    assert test.read(1)[0].tobytes() == make_image(4).tobytes()


FEATURES = datasets.Features(
    {
        "img": datasets.Image(),
        "number": datasets.Value("int64"),
        "animal": datasets.ClassLabel(names=["dog", "cat", "cow"]),
    }
)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset as the hub has them, with columns of other names, in a folder with capitals; one image is damaged."""
    root = tmp_path_factory.mktemp("hub") / "Some-Data"
    (root / "data").mkdir(parents=True)
    for split, first in {"train": 0, "validation": 100, "test": 200}.items():
        contents = [encode(make_image(first + n)) for n in range(6)]
        rows = {
            "img": [{"bytes": content, "path": f"{n}.png"} for n, content in enumerate([*contents, b"no image"])],
            "number": list(range(7)),
            "animal": [-1 if split == "test" else n % 3 for n in range(7)],
        }
        datasets.Dataset.from_dict(rows, features=FEATURES).to_parquet(root / "data" / f"{split}-0.parquet")
    return root


def test_a_dataset_of_hugging_face(parquet: Path, tmp_path: Path) -> None:
    for split, first in {"train": 0, "test": 100}.items():  # the test images without classes are not taken
        dataset = opened(f"hfds/{parquet}", split, tmp_path)
        assert len(dataset) == 7
        assert dataset.classes == ("dog", "cat", "cow")
        assert [dataset.read(n)[1] for n in range(6)] == [0, 1, 2, 0, 1, 2]
        assert all(dataset.read(n)[0].tobytes() == make_image(first + n).tobytes() for n in range(6))
        assert "image 2 of hfds/" in dataset.locate(2)
        assert "2.png" in dataset.locate(2)
        with pytest.raises(OSError, match="cannot identify image"):
            dataset.read(6)


def refused(data: str, root: Path | None, *values: str, split: str = "train") -> None:
    with pytest.raises(UsageError, match=re.escape(values[0])) as error:
        open_dataset(data, split, None if root is None else str(root))
    assert "\n" not in str(error.value)
    for value in values:
        assert value in str(error.value)


def test_what_is_refused_of_torchvision(tmp_path: Path) -> None:
    refused("torch/cifar11", tmp_path, "torch/cifar11", "cifar10, cifar100")
    refused("torch/cifar10", None, "--root", "'torch/cifar10'")
    refused("torch/cifar10", tmp_path / "gone", str(tmp_path / "gone"))
    refused("torch/imagenet", tmp_path, "no 'torch/imagenet' in", str(tmp_path))


def test_what_is_refused_of_hugging_face(parquet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(f"hfds/{tmp_path}/gone", tmp_path, "/gone")
    only = image_folder(tmp_path / "only", {"train": {"cat": 1, "dog": 1}})
    refused(f"hfds/{only}", tmp_path, "no split test or eval or val or valid or validation, only train", split="test")
    plain, unlabelled = tmp_path / "plain", tmp_path / "unlabelled"
    plain.mkdir()
    datasets.Dataset.from_dict({"image": [b""], "label": [3]}).to_parquet(plain / "train-0.parquet")
    refused(f"hfds/{plain}", tmp_path, "type ClassLabel", "image (Value), label (Value)")
    unlabelled.mkdir()
    (unlabelled / "test-0.parquet").write_bytes((parquet / "data" / "test-0.parquet").read_bytes())
    refused(f"hfds/{unlabelled}", tmp_path, "split 'test'", "labelled -1", split="test")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("hfds/beans", tmp_path, "package datasets")


def test_roots_that_have_no_meaning(tmp_path: Path) -> None:
    refused(str(tmp_path), tmp_path, "--root", str(tmp_path))
    refused("fashion-mnist", tmp_path, "torch/fashion_mnist", str(tmp_path))
