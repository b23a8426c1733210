"""Images in folders: what a class is, which files count, and what is refused."""

from pathlib import Path

import pytest
from pictures import image_folder, packed, picture
from PIL import Image
from timm.data import create_dataset

from flopping.training.folders import SPLITS, Folder
from flopping.training.images import Source
from flopping.training.sources import open_source, require_same_classes

CLASSES = {"cat": 2, "dog": 3}


def opened(root: Path, split: str = "train") -> Folder:
    found = open_source(str(root), split)
    assert isinstance(found, Folder)
    return found


def classes_of(folder: Source) -> dict[str, list[str]]:
    """File names by class."""
    found: dict[str, list[str]] = {name: [] for name in folder.classes}
    for index in range(len(folder)):
        image, label = folder.open(index)
        assert isinstance(image, Image.Image)
        found[folder.classes[label]].append(Path(folder.where(index)).name)
    return found


@pytest.mark.parametrize(("split", "name"), [(split, name) for split, names in SPLITS.items() for name in names])
def test_names_of_splits(split: str, name: str, tmp_path: Path) -> None:
    folder = opened(image_folder(tmp_path, {name: CLASSES}), split)
    assert classes_of(folder) == {"cat": ["0.png", "1.png"], "dog": ["0.png", "1.png", "2.png"]}


def test_where_both_are_there_validation_images_are_the_test(tmp_path: Path) -> None:
    image_folder(tmp_path, {"train": CLASSES, "val": CLASSES, "test": CLASSES})
    assert opened(tmp_path, "test").name == str(tmp_path / "val")


def test_the_same_images_and_classes_as_timm(tmp_path: Path) -> None:
    names = ["class10", "class9", "Class1", "été", "狗", "a b", "n01440764"]
    image_folder(tmp_path, {"train": dict.fromkeys(names, 11)})
    theirs = create_dataset("", root=str(tmp_path / "train")).reader
    ours = opened(tmp_path)
    assert list(zip(ours.paths, ours.labels, strict=True)) == theirs.samples
    assert {name: label for label, name in enumerate(ours.classes)} == theirs.class_to_idx


def test_what_lies_deeper_is_of_the_class_of_the_uppermost_folder(tmp_path: Path) -> None:
    """As torchvision has it, and as data sets are packed that put all images of a class into a folder "images"."""
    image_folder(tmp_path / "train", {"cat": {"images": 2}, "dog": {"images": 1, "more/images": 1}})
    (tmp_path / "train" / "cat" / "boxes.txt").write_text("0 0 1 1")
    folder = opened(tmp_path)
    assert classes_of(folder) == {"cat": ["0.png", "1.png"], "dog": ["0.png", "0.png"]}
    assert str(tmp_path / "train" / "cat" / "boxes.txt") in folder.note
    assert "1 files" in folder.note
    assert "left out" in folder.note


def test_suffixes_in_capitals_and_of_other_kinds(tmp_path: Path) -> None:
    image_folder(tmp_path, {"train": CLASSES})
    for name, kind in {"A.JPG": "jpeg", "b.JPEG": "jpeg", "c.webp": "webp", "d.bmp": "bmp", "e.Tif": "tiff"}.items():
        (tmp_path / "train" / "cat" / name).write_bytes(packed(picture(0), kind))
    assert classes_of(opened(tmp_path))["cat"] == ["0.png", "1.png", "A.JPG", "b.JPEG", "c.webp", "d.bmp", "e.Tif"]


def test_hidden_files_and_folders_are_no_part_of_it(tmp_path: Path) -> None:
    train = image_folder(tmp_path, {"train": CLASSES}) / "train"
    (train / "cat" / "._0.png").write_bytes(b"not an image, but what some systems write beside it")
    (train / "cat" / ".DS_Store").write_bytes(b"")
    image_folder(train / "cat", {".ipynb_checkpoints": {"": 1}})
    image_folder(train, {".trash": {"": 1}, "__MACOSX": {"": 1}})
    picture(0).save(train / ".hidden.png")
    folder = opened(tmp_path)
    assert len(folder) == 5
    assert folder.classes == ("cat", "dog")
    assert folder.note == ""


def test_links_are_followed_and_lead_to_no_image_twice(tmp_path: Path) -> None:
    image_folder(tmp_path / "elsewhere", {"cats": {"": 2}, "dogs": {"": 2}})
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    (train / "cat").symlink_to(tmp_path / "elsewhere" / "cats")
    (train / "dog").mkdir()
    (train / "dog" / "linked.png").symlink_to(tmp_path / "elsewhere" / "dogs" / "0.png")
    (train / "dog" / "circle").symlink_to(train / "dog")
    (train / "dog" / "up").symlink_to(train)
    (train / "dog" / "cats").symlink_to(tmp_path / "elsewhere" / "dogs")
    (train / "dog" / "again").symlink_to(tmp_path / "elsewhere" / "dogs")
    assert classes_of(opened(tmp_path / "data")) == {"cat": ["0.png", "1.png"], "dog": ["0.png", "1.png", "linked.png"]}


def test_a_link_to_nowhere_is_an_unreadable_image(tmp_path: Path) -> None:
    image_folder(tmp_path, {"train": CLASSES})
    (tmp_path / "train" / "cat" / "9.png").symlink_to(tmp_path / "gone.png")
    folder = opened(tmp_path)
    with pytest.raises(OSError, match=r"9\.png"):
        folder.open(2)
    assert folder.where(2).endswith("9.png")


def test_what_is_refused(tmp_path: Path) -> None:
    def refused(root: Path, *parts: str, split: str = "train") -> None:
        with pytest.raises(ValueError, match=".*".join(parts)) as error:
            open_source(str(root), split)
        assert str(root) in str(error.value)

    refused(tmp_path / "nowhere", "there is no folder", "one folder per class")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "is a file", "--data is a folder")
    refused(
        image_folder(tmp_path / "classes", {"cat": {"": 1}, "dog": {"": 1}}),
        "has no folder train/ or training/",
        "only cat/, dog/",
    )
    only_train = image_folder(tmp_path / "only", {"train": CLASSES})
    refused(only_train, "has no folder val/, valid/, validation/, test/ or eval/ for the test images", split="test")
    (tmp_path / "empty" / "train").mkdir(parents=True)
    refused(tmp_path / "empty", "has no class folders")
    refused(image_folder(tmp_path / "one", {"train": {"cat": 2}}), "has one class only, 'cat'", "nothing to learn")

    hollow = image_folder(tmp_path / "hollow", {"train": CLASSES})
    (hollow / "train" / "cow").mkdir()
    refused(hollow, "class folder .*cow' holds no image", "add some, or remove")
    (hollow / "train" / "cow" / "notes.txt").write_text("")
    refused(hollow, "cow' holds no image; .*notes.txt' is none by its suffix")

    stray = image_folder(tmp_path / "stray", {"train": CLASSES})
    picture(0).save(stray / "train" / "loose.png")
    refused(stray, "loose.png' lies in no class folder: move it to .*/CLASS/")


def test_images_without_any_class_folder_are_called_stray(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    picture(0).save(tmp_path / "train" / "loose.png")
    with pytest.raises(ValueError, match=r"loose\.png' lies in no class folder"):
        open_source(str(tmp_path), "train")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"cat": 1, "dog": 1}, "3 for training, 2 for testing; without test images: cow. Give both"),
        ({"cat": 1, "cow": 1, "dog": 1, "owl": 1}, "3 for training, 4 for testing; without training images: owl. Give"),
        ({"cat": 1, "cow": 1, "owl": 1}, "without test images: dog; without training images: owl. Give"),
    ],
)
def test_splits_have_the_same_classes(test: dict[str, int], message: str, tmp_path: Path) -> None:
    image_folder(tmp_path, {"train": {"cat": 1, "cow": 1, "dog": 1}, "val": test})
    with pytest.raises(ValueError, match=message) as error:
        require_same_classes(opened(tmp_path), opened(tmp_path, "test"), str(tmp_path))
    assert str(tmp_path) in str(error.value)
