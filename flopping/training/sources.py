"""Which data a name means: a folder, a data set of torchvision or Hugging Face, shards, or what the package brings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flopping.training import fashion
from flopping.training.folders import Folder, split_folder
from flopping.training.images import Arrays, Images
from flopping.training.named import from_hub, from_torchvision
from flopping.training.shards import open_shards
from flopping.wording import some

EMBEDDED = "fashion-mnist"
NAMED: dict[str, Callable[[str, str, str | None], Images]] = {
    "torch/": from_torchvision,
    "hfds/": from_hub,
    "wds/": open_shards,
}
"""How the names of data sets begin, as timm has it, and what opens them by name, split and root."""
OTHERS = {"hfids/": "hfds/ reads the same data sets", "tfds/": "hfds/ and wds/ are read"}
"""timm's other kinds, which are not read here, and what to do about it."""


def open_source(data: str, split: str, root: str | None = None) -> Images:
    """The images of a split ("train" or "test") of a data set.

    `data` is a folder with a folder for each split, in it one for each class; "fashion-mnist" for the subset in the
    package, or with `root` for all of it; or a name that timm knows, as "torch/cifar10", "hfds/NAME" or "wds/NAME",
    with its `root`.
    """
    kind = f"{data.partition('/')[0]}/"
    if data == EMBEDDED:
        return fashion_mnist(split, root)
    if data.startswith(tuple(OTHERS)):
        raise ValueError(f"{data!r} is a kind of data that is not read: {OTHERS[kind]}")
    if data.startswith(tuple(NAMED)):
        images = NAMED[kind](data, split, root)
    elif root is not None:
        raise ValueError(f"--root goes with a data set by name, and {data!r} is a folder")
    else:
        images = Folder(split_folder(Path(data), split))
    if len(images.classes) < 2:
        raise ValueError(
            f"{images.name} has one class only, {images.classes[0]!r}: there is nothing to learn."
            " Every class has a folder or a label of its own"
        )
    return images


def fashion_mnist(split: str, root: str | None = None) -> Arrays:
    """The subset in the package, or all images from a folder."""
    train = split == "train"
    found = fashion.embedded(train) if root is None else fashion.from_folder(root, train)
    return Arrays(f"{EMBEDDED}'s {split} images", found.images, found.labels, found.classes)


def require_same_classes(train: Images, test: Images, data: str) -> None:
    """Refuse data whose test images have other classes than the training images."""
    if train.classes == test.classes:
        return
    missing = [name for name in train.classes if name not in test.classes]
    more = [name for name in test.classes if name not in train.classes]
    raise ValueError(
        f"classes of {data!r} differ: {len(train.classes)} for training, {len(test.classes)} for testing"
        + (f"; without test images: {some(missing, 5)}" if missing else "")
        + (f"; without training images: {some(more, 5)}" if more else "")
        + ("" if missing or more else "; they come in another order")
        + ". Give both splits the same classes"
    )
