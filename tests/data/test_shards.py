"""Shards are indexed and read in any order, as folders are; what can't be read is named."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from support.image_files import encode, make_image, web_dataset, write_shard

from flopping.data.datasets import open_dataset
from flopping.data.images import ImageDataset
from flopping.errors import UsageError
from flopping.training.job import fingerprint


def opened(root: Path, split: str = "train") -> ImageDataset:
    return open_dataset("wds/pictures", split, str(root))


def test_every_image_has_its_pixels_its_class_and_its_name(tmp_path: Path) -> None:
    root = web_dataset(tmp_path, {"train": (5, 6), "validation": (3, 4)})
    train, test = opened(root), opened(root, "test")
    assert (len(train), len(test)) == (11, 7)
    assert train.classes == test.classes == ("cat", "dog")
    for index in reversed(range(11)):
        image, label = train.read(index)
        assert (image.tobytes(), label) == (make_image(index).tobytes(), index % 2)
    assert train.locate(5 + 2) == f"{root / 'train-1.tar'}, train-1-0002"
    assert (train.note, test.note) == ("", "")
    other = web_dataset(tmp_path / "other", {"train": (6, 5), "validation": (3, 4)})
    assert fingerprint(train, test) != fingerprint(opened(other), test)


def test_a_shard_that_is_cut_off_ends_there_and_a_damaged_image_is_the_readers(tmp_path: Path) -> None:
    web_dataset(tmp_path, {"train": (4, 4)})
    content = {"png": encode(make_image(0)), "cls": b"0"}
    write_shard(tmp_path / "train-0.tar", [content, {"png": b"no image", "cls": b"1\n"}, {"seg.png": b"", **content}])
    path = tmp_path / "train-1.tar"
    with tarfile.open(path) as file:
        end = file.getmember("train-1-0002.png").offset_data + 10
    path.write_bytes(path.read_bytes()[:end])
    found = opened(tmp_path)
    assert len(found) == 3 + 2
    assert str(path) in found.note
    with pytest.raises(OSError, match="identify image"):
        found.read(1)
    for index, image in ((2, make_image(0)), (4, make_image(5))):
        assert found.read(index)[0].tobytes() == image.tobytes()


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"classes": 1}, "'train-0-0001' .* has the class '1'"),
        ({"filenames": ["train-0.tar", "gone.tar"]}, "gone.tar"),
        ({"filenames": None}, "TypeError"),
        ({"filenames": ["text.tar"]}, "text.tar' is damaged"),
        ({"filenames": ["unlabelled.tar"]}, "KEY.cls .* has the class ''"),
        ({"filenames": ["labels.tar"]}, "has no image"),
        ({"splits": {}}, "no split train or training"),
    ],
)
def test_descriptions_and_shards_that_are_refused(changes: dict[str, object], value: str, tmp_path: Path) -> None:
    web_dataset(tmp_path, {"train": (2, 2)})
    (tmp_path / "text.tar").write_bytes(b"no tar")
    write_shard(tmp_path / "unlabelled.tar", [{"png": encode(make_image(0)), "txt": b"a cat"}])
    write_shard(tmp_path / "labels.tar", [{"cls": b"0"}])
    path = tmp_path / "_info.json"
    info = json.loads(path.read_text())
    for key, changed in changes.items():
        (info if key in info else info["splits"]["train"])[key] = changed
    path.write_text(json.dumps(info))
    with pytest.raises(UsageError, match=value) as error:
        opened(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_roots_that_are_refused(tmp_path: Path) -> None:
    for root, value in ((None, "--root"), (tmp_path / "none", "no folder"), (tmp_path, "no file .*_info.json")):
        with pytest.raises(UsageError, match=value):
            open_dataset("wds/pictures", "train", None if root is None else str(root))
    for text, value in (("{", "JSONDecodeError"), ("[" * 100_000, "RecursionError")):
        (tmp_path / "_info.json").write_text(text)
        with pytest.raises(UsageError, match=value):
            opened(tmp_path)
