"""Images in folders: what a class is, which files count, and what is refused."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from support.image_files import image_folder, make_image
from timm.data import create_dataset

from flopping.data import folders
from flopping.data.datasets import open_dataset, require_same_classes
from flopping.data.decode import decode_image
from flopping.data.folders import FolderDataset, UnlabelledFolder
from flopping.data.images import ImageDataset
from flopping.errors import UsageError

CLASSES = {"cat": 2, "dog": 3}


def opened(root: Path, split: str = "train") -> FolderDataset:
    found = open_dataset(str(root), split)
    assert isinstance(found, FolderDataset)
    return found


def names_by_class(dataset: ImageDataset) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in dataset.classes}
    for index in range(len(dataset)):
        image, label = dataset.read(index)
        assert isinstance(image, Image.Image)
        found[dataset.classes[label]].append(Path(dataset.locate(index)).name)
    return found


@pytest.mark.parametrize(("split", "name"), [("train", "training"), ("validation", "val"), ("test", "test")])
def test_names_of_splits(split: str, name: str, tmp_path: Path) -> None:
    """Where there are several, training validates on validation images, and networks are tested on test images."""
    dataset = opened(
        image_folder(tmp_path, {name: CLASSES, "valid" if split == "test" else "eval": {"cat": 1, "dog": 1}}), split
    )
    assert names_by_class(dataset) == {"cat": ["0.png", "1.png"], "dog": ["0.png", "1.png", "2.png"]}


def test_the_same_images_and_classes_as_timm(tmp_path: Path) -> None:
    names = ["class10", "class9", "Class1", "été", "狗", "a b", "n01440764"]
    image_folder(tmp_path, {"train": dict.fromkeys(names, 11)})
    theirs = create_dataset("", root=str(tmp_path / "train")).reader
    ours = opened(tmp_path)
    assert list(zip(ours.paths, ours.labels, strict=True)) == theirs.samples
    assert {name: label for label, name in enumerate(ours.classes)} == theirs.class_to_idx


def test_images_below_are_of_the_class_of_the_uppermost_folder(tmp_path: Path) -> None:
    """As torchvision has it, and as datasets are packed that put all images of a class into a folder "images"."""
    image_folder(tmp_path / "train", {"cat": {"images": 2}, "dog": {"images": 1, "more/images": 1}})
    (tmp_path / "train" / "cat" / "boxes.txt").write_text("0 0 1 1")
    dataset = opened(tmp_path)
    assert names_by_class(dataset) == {"cat": ["0.png", "1.png"], "dog": ["0.png", "0.png"]}
    assert str(tmp_path / "train" / "cat" / "boxes.txt") in dataset.note
    assert "1 files" in dataset.note
    assert names_by_class(UnlabelledFolder(tmp_path)) == {"image": ["0.png", "1.png", "0.png", "0.png"]}


def test_hidden_files_and_suffixes(tmp_path: Path) -> None:
    root = image_folder(tmp_path, {"train": CLASSES}) / "train"
    for hidden in (".DS_Store", "cat/.thumbs.png", ".git/a.png", "__MACOSX/a.png", "cat/.hidden/a.png"):
        (root / hidden).parent.mkdir(exist_ok=True)
        (root / hidden).write_bytes(b"")
    make_image(0).save(root / "cat" / "A.JPG", "jpeg")
    dataset = opened(tmp_path)
    assert names_by_class(dataset) == {"cat": ["0.png", "1.png", "A.JPG"], "dog": ["0.png", "1.png", "2.png"]}
    assert not dataset.note


def test_links_are_followed_and_no_file_comes_twice(tmp_path: Path) -> None:
    image_folder(tmp_path / "elsewhere", {"cats": {"": 2}, "dogs": {"": 2}})
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    (train / "cat").symlink_to(tmp_path / "elsewhere" / "cats")
    (train / "dog").mkdir()
    (train / "dog" / "linked.png").symlink_to(tmp_path / "elsewhere" / "dogs" / "0.png")
    (train / "dog" / "circle").symlink_to(train / "dog")
    (train / "dog" / "up").symlink_to(train)
    (train / "dog" / "dogs").symlink_to(tmp_path / "elsewhere" / "dogs")
    (train / "dog" / "again").symlink_to(tmp_path / "elsewhere" / "dogs")
    expected = {"cat": ["0.png", "1.png"], "dog": ["0.png", "1.png", "linked.png"]}
    assert {name: sorted(found) for name, found in names_by_class(opened(tmp_path / "data")).items()} == expected


def test_pipes_and_devices_are_left_out(tmp_path: Path) -> None:
    """Reading one would wait without end."""
    root = image_folder(tmp_path, {"train": CLASSES}) / "train"
    os.mkfifo(root / "cat" / "pipe.png")
    (root / "cat" / "zero.png").symlink_to("/dev/zero")
    (root / "dog" / "nowhere.png").symlink_to(root / "gone.png")
    dataset = opened(tmp_path)
    names = [Path(path).name for path in dataset.paths]
    assert names == ["0.png", "1.png", "0.png", "1.png", "2.png", "nowhere.png"]


def class_of_notes(root: Path) -> None:
    cow = image_folder(root, {"train": CLASSES}) / "train" / "cow"
    cow.mkdir()
    (cow / "notes.txt").write_text("moo")


def stray_image(root: Path) -> None:
    make_image(0).save(image_folder(root, {"train": CLASSES}) / "train" / "loose.png")


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda root: None, "there is no folder"),
        (lambda root: root.write_text(""), "is a file"),
        (lambda root: image_folder(root, {"cat": {"": 1}, "dog": {"": 1}}), "train/ or training/.*only cat/, dog/"),
        (lambda root: (root / "train").mkdir(parents=True), "no class folders"),
        (lambda root: image_folder(root, {"train": {"cat": 2}}), "one class only, 'cat'"),
        (class_of_notes, r"notes\.txt' is none by its suffix"),
        (stray_image, r"loose\.png' lies in no class folder"),
    ],
)
def test_folders_that_are_refused(make: Callable[[Path], object], value: str, tmp_path: Path) -> None:
    root = tmp_path / "data"
    make(root)
    with pytest.raises(UsageError, match=value) as error:
        opened(root)
    assert str(root) in str(error.value)


def test_unlabelled_folders_that_are_refused(tmp_path: Path) -> None:
    for folder, value in ((tmp_path, "holds no image"), (tmp_path / "gone", "there is no folder")):
        with pytest.raises(UsageError, match=value):
            UnlabelledFolder(folder)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"cat": 1, "dog": 1}, "3 for training, 2 for testing; without test images: cow. Give"),
        ({"cat": 1, "cow": 1, "owl": 1}, "without test images: dog; without training images: owl. Give"),
    ],
)
def test_splits_have_the_same_classes(test: dict[str, int], message: str, tmp_path: Path) -> None:
    image_folder(tmp_path, {"train": {"cat": 1, "cow": 1, "dog": 1}, "val": test})
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        require_same_classes(opened(tmp_path), opened(tmp_path, "test"), str(tmp_path))
    assert str(tmp_path) in str(error.value)


def test_small_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of training images as many as there is room for; what comes from memory is the same image."""
    monkeypatch.setattr(folders, "CACHED_PIXELS", 2 * 64 * 64)
    root = image_folder(tmp_path, {"train": {"b": 1}, "val": CLASSES})
    for number, side in enumerate((64, 65, 64, 64)):
        (root / "train" / "a").mkdir(exist_ok=True)
        make_image(number, size=(side, side)).save(root / "train" / "a" / f"{number}.png")
    assert opened(root, "validation").cache_left == 0
    dataset = opened(root)
    first = [dataset.read(index) for index in range(4)]
    decoded: list[str] = []
    monkeypatch.setattr(folders, "decode_image", lambda path: decoded.append(path) or decode_image(path))
    again = [dataset.read(index) for index in range(4)]
    assert [Path(path).name for path in decoded] == ["1.png", "3.png"]  # too large, and no room
    for (image, label), (other, same) in zip(first, again, strict=True):
        assert (image.tobytes(), image.mode, label) == (other.tobytes(), other.mode, same)
