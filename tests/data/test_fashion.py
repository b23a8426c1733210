"""Fashion-MNIST, from the package or from a folder: the subset is what its page says, corrupted files are refused."""

import gzip
import hashlib
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.image_files import idx, write_fashion_mnist
from support.scripts import load

from flopping.data.fashion import CLASSES, IMAGE, file_names, open_fashion_mnist, read_folder, read_subset
from flopping.errors import UsageError

ROOT = Path(__file__).parents[2]
DATA = ROOT / "flopping" / "data" / "fashion_mnist"
SHA256 = {  # of the bytes of images and labels
    True: (
        "e1427044c614fabc29feeff0f27e6b68f88a9ee2f2cfe7d783b9157159864883",
        "2c02745d4ad8b4511333d0eca662ac5664a371860abaa4588b1670e7be59fbdf",
    ),
    False: (
        "96315b1732ab731e68b8def3c284f34b605f7deb7a61e683c7d786265c827c83",
        "b2095bc797d1201e84da76c94012c02d0e6f07af0938df4e00120a3b42d1aa4c",
    ),
}


@pytest.fixture(scope="module")
def small() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = read_subset(train=False)
    return images[:20], labels[:20]


# folders


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("inside", ["", "raw", "FashionMNIST/raw"])
def test_folders_of_all_kinds(tmp_path: Path, small: tuple, inside: str, suffix: str) -> None:
    for train in (True, False):
        write_fashion_mnist(tmp_path / inside, train, *small, suffix)
        for folder in (tmp_path, str(tmp_path / inside)):
            assert all(np.array_equal(one, other) for one, other in zip(read_folder(folder, train), small, strict=True))
    dataset = open_fashion_mnist("test", str(tmp_path))
    assert dataset.classes == CLASSES
    assert np.array_equal(np.asarray(dataset.read(3)[0]), small[0][3])
    assert dataset.locate(3) == "image 3 of fashion-mnist's test images"


def test_the_content_says_whether_a_file_is_compressed(tmp_path: Path, small: tuple) -> None:
    """Browsers unpack a .gz and leave its name; a file without .gz goes first."""
    write_fashion_mnist(tmp_path, True, *small)
    images, labels = (tmp_path / name for name in file_names(train=True))
    images.write_bytes(gzip.compress(images.read_bytes()))
    labels.rename(f"{labels}.gz")
    (tmp_path / f"{images.name}.gz").write_bytes(b"not read")
    assert np.array_equal(read_folder(tmp_path, train=True)[0], small[0])


def test_missing_files(tmp_path: Path, small: tuple) -> None:
    write_fashion_mnist(tmp_path, True, *small)
    (tmp_path / file_names(train=True)[1]).unlink()
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError, match="train-labels-idx1-ubyte") as error:
            read_folder(folder, train=True)
        assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("file", "content", "value"),
    [
        (1, idx(20, content=bytes(19) + b"\x0a"), "label 10"),
        (1, idx(19), "19 labels"),
        (0, idx(20, 2, 2), "[20, 2, 2]"),
        (0, idx(20, *IMAGE, kind=13), "00 00 0d 03"),
        (1, b"a text", "61 20 74 65"),
        (1, idx(20)[:6], "00 00 08 01 00 00"),
        (1, idx(20)[:-1], "announces 20 bytes and holds 19"),
        (1, gzip.compress(idx(20), mtime=0)[:-5] + bytes(5), "CRC"),
        (0, idx(2**32 - 1, *IMAGE, content=b"a"), "[4294967295, 28, 28]"),
    ],
)
def test_corrupted_files_are_named(tmp_path: Path, small: tuple, file: int, content: bytes, value: str) -> None:
    write_fashion_mnist(tmp_path, True, *small)
    name = file_names(train=True)[file]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=re.escape(value)) as error:
        read_folder(tmp_path, train=True)
    assert name in str(error.value)


def test_no_memory_is_taken_for_what_a_header_announces(tmp_path: Path, small: tuple) -> None:
    """A small file that unpacks to much is read as far as its header allows."""
    write_fashion_mnist(tmp_path, True, *small)
    (tmp_path / file_names(train=True)[1]).write_bytes(gzip.compress(idx(20, content=bytes(2**26))))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="holds more"):
            read_folder(tmp_path, train=True)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


# the subset


@pytest.mark.parametrize(("train", "per_class"), [(True, 1000), (False, 200)])
def test_the_subset_is_the_one_that_was_chosen(train: bool, per_class: int) -> None:
    images, labels = read_subset(train)
    assert images.shape == (10 * per_class, *IMAGE)
    assert np.bincount(labels).tolist() == [per_class] * 10
    assert (hashlib.sha256(images.tobytes()).hexdigest(), hashlib.sha256(labels.tobytes()).hexdigest()) == SHA256[train]


def test_the_page_beside_the_data_tells_which_way_shoes_face() -> None:
    """Their upper halves are brighter on the right, at the heel."""
    page = (DATA / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([A-Z][a-z ]+) \| ([\d,]+) of 1,000 \| (\d+) of 200 \| (\d+) % \|$", page, re.MULTILINE)
    shoes = {name: (int(train.replace(",", "")), int(test), int(share)) for name, train, test, share in rows}
    assert list(shoes) == ["Ankle boot", "Sneaker", "Sandal"]
    for split in (True, False):
        images, labels = read_subset(split)
        upper = images[:, :14].astype(np.float64)
        right = upper[:, :, 14:].sum((1, 2)) / upper.sum((1, 2))
        for label, name in enumerate(CLASSES):
            of_class = right[labels == label]
            if name not in shoes:
                assert 0.5 < of_class.mean() < 0.53
                continue
            assert (of_class > 0.5).sum() == shoes[name][0 if split else 1]
            if split:
                assert round(100 * of_class.mean()) == shoes[name][2]


def test_the_tool_takes_the_first_of_each_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load("fashion_subset", "tools")
    images, labels = (array[:40] for array in read_subset(train=False))
    for train in (True, False):
        write_fashion_mnist(tmp_path, train, images, labels)
    monkeypatch.setattr(tool, "PER_CLASS", {"train": 2, "test": 1})
    tool.make(tmp_path, tmp_path / "subset.npz")
    found = np.load(tmp_path / "subset.npz", allow_pickle=False)
    expected = [n for n, label in enumerate(labels) if labels[:n].tolist().count(label) < 2]
    assert np.array_equal(found["train_images"], images[expected])
    assert np.array_equal(found["train_labels"], labels[expected])
    assert len(found["test_labels"]) == 10
    with pytest.raises(ValueError, match="100 images of each class"):
        tool.choose_first(images, labels, 100)
