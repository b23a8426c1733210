"""Fashion-MNIST, from the package or from a folder: what is refused, and that the subset is what its page says."""

import gzip
import hashlib
import importlib.util
import os
import re
import tracemalloc
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from idx_files import idx, refused
from numpy.typing import NDArray

from flopping.training.fashion import (
    CLASSES,
    DEBIAN,
    FashionMnist,
    embedded,
    file_names,
    from_folder,
    write_idx,
)

ROOT = Path(__file__).parents[1]
DATA = ROOT / "flopping" / "data" / "fashion_mnist"
FULL = Path(os.environ.get("FLOPPING_FASHION_MNIST", DEBIAN))
PER_CLASS = {True: 1000, False: 200}
SHA256 = {  # of the unpacked files
    "train-images-idx3-ubyte": "d33512cfdc636a0d8972818e6659995be209a88891df7fa2109d7895922c8985",
    "train-labels-idx1-ubyte": "620cb8e3b9348037c5ff9a07b02d773ab165330e072dfd19e0d21c59f8042dcf",
    "t10k-images-idx3-ubyte": "15a92dd1e9b16ea361928086e77df4dfa890c255c00b5a8c8162c1040ce8eef1",
    "t10k-labels-idx1-ubyte": "234596aeb6eb48133ec99a62541f90bc0728c9559a681f1e0638037462458f2c",
}
SHOES_FACING_LEFT = {  # of all, in training and test
    ("Ankle boot", True): 1000,
    ("Ankle boot", False): 200,
    ("Sneaker", True): 996,
    ("Sneaker", False): 199,
    ("Sandal", True): 924,
    ("Sandal", False): 180,
}


def brightness_on_the_right(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Share of the brightness of an image's upper half that lies in its right half."""
    upper = images[:, :14].astype(np.float64)
    return np.asarray(upper[:, :, 14:].sum((1, 2)) / upper.sum((1, 2)))


# the value


def some(n: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return np.zeros((n, 28, 28), np.uint8), np.arange(n) % 10


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 28, 29), np.uint8), some(2)[1], "images are N x 28 x 28 of uint8, got 2 x 28 x 29 of uint8"),
        (np.zeros((2, 784), np.uint8), some(2)[1], "images are N x 28 x 28 of uint8, got 2 x 784 of uint8"),
        (np.zeros((2, 28, 28)), some(2)[1], "images are N x 28 x 28 of uint8, got 2 x 28 x 28 of float64"),
        (some(2)[0], np.zeros((2, 1), np.int64), "labels are N of int64, got 2 x 1 of int64"),
        (some(2)[0], np.zeros(2, np.uint8), "labels are N of int64, got 2 of uint8"),
        (some(3)[0], some(2)[1], "each image has one label, got 3 images and 2 labels"),
        (*some(0), "there is at least one image, got none"),
        (some(3)[0], np.array([0, 9, 10]), "labels are 0 to 9, got 10 for image 2"),
        (some(3)[0], np.array([0, -1, 10]), "labels are 0 to 9, got -1 for image 1"),
    ],
)
def test_what_is_no_fashion_mnist_is_refused(
    images: NDArray[np.uint8], labels: NDArray[np.int64], message: str
) -> None:
    assert refused(lambda: FashionMnist(images, labels)) == message


@given(labels=st.integers(1, 3).flatmap(lambda copies: st.permutations([*range(10)] * copies)), n=st.integers(1, 3))
def test_the_first_of_each_class(labels: list[int], n: int) -> None:
    images = np.zeros((len(labels), 28, 28), np.uint8)
    images[:, 0, 0] = np.arange(len(labels))
    data = FashionMnist(images, np.array(labels))
    rarest = min(labels.count(label) for label in range(10))
    if n > rarest:
        assert f"per_class is 1 to {rarest}, the number of images of" in refused(lambda: data.first(n))
        return
    expected = [i for i, label in enumerate(labels) if labels[:i].count(label) < n]
    assert data.first(n).images[:, 0, 0].tolist() == expected
    assert data.first(n).labels.tolist() == [labels[i] for i in expected]


def test_the_first_none_are_refused() -> None:
    data = FashionMnist(*some(30))
    assert refused(lambda: data.first(0)) == "per_class is 1 to 3, the number of images of 'T-shirt/top', got 0"
    assert len(data.first(3)) == len(data) == 30


def test_arrays_become_tensors_without_a_warning() -> None:
    data = embedded(train=False)
    assert torch.from_numpy(data.images).dtype == torch.uint8
    assert torch.from_numpy(data.labels).dtype == torch.int64


# folders


@pytest.fixture(scope="module")
def small() -> dict[bool, FashionMnist]:
    return {train: embedded(train).first(2) for train in (True, False)}


def write(small: dict[bool, FashionMnist], folder: Path, suffix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for train, data in small.items():
        images, labels = file_names(train)
        write_idx(folder / f"{images}{suffix}", data.images)
        write_idx(folder / f"{labels}{suffix}", data.labels.astype(np.uint8))


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("inside", ["", "raw", "FashionMNIST/raw"])
def test_folders_of_all_kinds(tmp_path: Path, small: dict[bool, FashionMnist], inside: str, suffix: str) -> None:
    write(small, tmp_path / inside, suffix)
    for train, expected in small.items():
        for folder in (tmp_path, str(tmp_path / inside)):
            data = from_folder(folder, train)
            assert np.array_equal(data.images, expected.images)
            assert np.array_equal(data.labels, expected.labels)


def test_torchvision_reads_the_same(tmp_path: Path, small: dict[bool, FashionMnist]) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    write(small, tmp_path / "FashionMNIST" / "raw")
    for train, data in small.items():
        theirs = datasets.FashionMNIST(tmp_path, train=train)
        assert tuple(theirs.classes) == data.classes
        assert torch.equal(theirs.data, torch.from_numpy(data.images))
        assert torch.equal(theirs.targets, torch.from_numpy(data.labels))


def test_a_file_that_needs_no_unpacking_goes_first(tmp_path: Path, small: dict[bool, FashionMnist]) -> None:
    write(small, tmp_path)
    for name in file_names(train=True):
        (tmp_path / f"{name}.gz").write_bytes(b"not read")
    assert len(from_folder(tmp_path, train=True)) == 20


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("inside", "lost"), [("", 0), ("", 1), ("FashionMNIST/raw", 1), ("", 2), ("", None)])
def test_missing_files(
    tmp_path: Path, small: dict[bool, FashionMnist], train: bool, inside: str, lost: int | None
) -> None:
    names = file_names(train)
    if lost is None:
        folder, why = tmp_path / "none", "there is no such folder"
    elif lost == 2:
        folder, why = tmp_path, "it has neither file"
    else:
        folder, why = tmp_path, f"{str(tmp_path / inside)!r} lacks {names[lost]}"
        write(small, tmp_path / inside)
        (tmp_path / inside / names[lost]).unlink()
        assert len(from_folder(tmp_path, not train)) == 20
    assert refused(lambda: from_folder(folder, train)) == (
        f"no Fashion-MNIST in {str(folder)!r}: {why}. Expected are {names[0]} and {names[1]}, both as they are or as"
        " .gz, in the folder or in FashionMNIST/raw inside it."
        f" torchvision.datasets.FashionMNIST({str(folder)!r}, download=True) puts them there;"
        " Debian's package dataset-fashion-mnist has them in /usr/share/datasets/fashion-mnist"
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (1, idx(20, content=bytes(19) + b"\x0a"), "labels are 0 to 9, got 10 for image 19"),
        (1, idx(19), "each image has one label, got 20 images and 19 labels"),
        (0, idx(20, 2, 2), "images are N x 28 x 28 of uint8, got 20 x 2 x 2 of uint8"),
        (0, idx(20), "images are N x 28 x 28 of uint8, got 20 of uint8"),
        (1, idx(20, 1), "labels are N of int64, got 20 x 1 of uint8"),
    ],
)
def test_files_that_do_not_fit_are_named(
    tmp_path: Path, small: dict[bool, FashionMnist], file: int, content: bytes, message: str
) -> None:
    write(small, tmp_path)
    names = file_names(train=True)
    (tmp_path / names[file]).write_bytes(content)
    images = str(tmp_path / names[0])
    assert refused(lambda: from_folder(tmp_path, train=True)) == (
        f"{images!r} and {names[1]!r} are no Fashion-MNIST: {message}"
    )


def test_no_memory_is_taken_for_labels_without_images(tmp_path: Path, small: dict[bool, FashionMnist]) -> None:
    """Beyond that of their bytes, which the file did hold."""
    write(small, tmp_path)
    write_idx(tmp_path / file_names(train=True)[1], np.zeros(2**24, np.uint8))
    tracemalloc.start()
    try:
        assert "got 20 images and 16777216 labels" in refused(lambda: from_folder(tmp_path, train=True))
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_a_broken_file_of_a_folder_is_named(tmp_path: Path, small: dict[bool, FashionMnist]) -> None:
    write(small, tmp_path)
    path = tmp_path / file_names(train=True)[1]
    path.write_bytes(path.read_bytes()[:-1])
    assert refused(lambda: from_folder(tmp_path, train=True)).startswith(f"{str(path)!r} announces 20 bytes, 20 in all")


# the subset


@pytest.mark.parametrize("train", [True, False])
def test_the_subset_is_balanced(train: bool) -> None:
    data = embedded(train)
    n = PER_CLASS[train]
    assert data.images.shape == (10 * n, 28, 28)
    assert np.bincount(data.labels).tolist() == [n] * 10
    assert data.images.max() == 255
    assert data.images.reshape(10 * n, -1).any(axis=1).all()


@pytest.mark.parametrize("name", SHA256)
def test_the_subset_is_the_one_that_was_chosen(name: str) -> None:
    assert hashlib.sha256(gzip.decompress((DATA / f"{name}.gz").read_bytes())).hexdigest() == SHA256[name]


def test_the_subset_is_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 6e6


def test_training_and_test_images_share_none() -> None:
    train, test = ({image.tobytes() for image in embedded(part).images} for part in (True, False))
    assert not train & test


def test_classes() -> None:
    assert FashionMnist.classes == CLASSES
    assert len(set(CLASSES)) == 10


@pytest.mark.parametrize("train", [True, False])
def test_shoes_face_left(train: bool) -> None:
    """Their upper halves are brighter on the right, at the heel; the page beside the data has the counts."""
    data = embedded(train)
    for label, name in enumerate(data.classes):
        right = brightness_on_the_right(data.images[data.labels == label])
        if (name, train) in SHOES_FACING_LEFT:
            assert right.mean() > 0.79
            assert (right > 0.5).sum() == SHOES_FACING_LEFT[name, train]
        else:
            assert 0.5 < right.mean() < 0.53


def test_the_page_beside_the_data_tells_the_counts() -> None:
    page = (DATA / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z][a-z ]+) \| ([\d,]+) of 1,000 \| (\d+) of 200 \| (\d+) % \|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == ["Ankle boot", "Sneaker", "Sandal"]
    data = embedded(train=True)
    for name, train, test, share in rows:
        assert int(train.replace(",", "")) == SHOES_FACING_LEFT[name, True]
        assert int(test) == SHOES_FACING_LEFT[name, False]
        images = data.images[data.labels == CLASSES.index(name)]
        assert int(share) == round(100 * brightness_on_the_right(images).mean())


def test_the_licence_lies_beside_the_data() -> None:
    text = (DATA / "LICENSE").read_text(encoding="utf-8")
    assert "The MIT License" in text
    assert "2017 Zalando SE" in text
    assert "The above copyright notice and this permission notice shall be included" in text


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fashion_subset", ROOT / "tools" / "fashion_subset.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command_takes_the_first_of_each_class(
    tool: ModuleType, tmp_path: Path, small: dict[bool, FashionMnist], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "PER_CLASS", {"train": 2, "t10k": 2})
    tool.make(DATA, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.gz" for name in SHA256}
    for train, expected in small.items():
        data = from_folder(tmp_path, train)
        assert np.array_equal(data.images, expected.images)
        assert np.array_equal(data.labels, expected.labels)


@pytest.mark.skipif(not FULL.is_dir(), reason=f"no full set in {str(FULL)!r}: FLOPPING_FASHION_MNIST names its folder")
def test_the_subset_is_made_again_from_the_full_set(tool: ModuleType, tmp_path: Path) -> None:
    """The content is compared: versions of zlib differ in how they compress it."""
    tool.make(FULL, tmp_path)
    for name in SHA256:
        remade, ours = (gzip.decompress((folder / f"{name}.gz").read_bytes()) for folder in (tmp_path, DATA))
        assert remade == ours, name
