"""The subset of Fashion-MNIST in the package is what its page says."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from support.image_files import write_fashion_mnist
from support.scripts import load

from flopping.data.fashion import CLASSES, IMAGE, read_subset

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
