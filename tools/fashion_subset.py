"""Choose the part of Fashion-MNIST that ships with the package, from the full set in FOLDER.

python tools/fashion_subset.py FOLDER [--output FILE]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from torchvision.datasets import FashionMNIST

from flopping.data.fashion import CLASSES, Labelled
from flopping.files import atomic_write

PACKAGE = Path(__file__).parents[1] / "flopping" / "data" / "fashion_mnist" / "subset.npz"
PER_CLASS = {"train": 1000, "test": 200}


def choose_first(images: np.ndarray, labels: np.ndarray, per_class: int) -> Labelled:
    """The first images of each class, in their order."""
    of_classes = [np.flatnonzero(labels == label)[:per_class] for label in range(len(CLASSES))]
    if min(map(len, of_classes)) < per_class:
        raise ValueError(f"{per_class} images of each class are needed, got {[len(found) for found in of_classes]}")
    kept = np.sort(np.concatenate(of_classes))
    return images[kept], labels[kept]


def make(source: Path, target: Path) -> None:
    """Write the subset of both splits."""
    arrays = {}
    for split, per_class in PER_CLASS.items():
        full = FashionMNIST(str(source), train=split == "train")
        images, labels = choose_first(full.data.numpy(), full.targets.numpy().astype(np.uint8), per_class)
        arrays |= {f"{split}_images": images, f"{split}_labels": labels}
    with atomic_write(target) as place, place.open("wb") as file:
        np.savez_compressed(file, **arrays)
    print(f"{target.name}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the full set: the root of torchvision's FashionMNIST")
    parser.add_argument("--output", type=Path, default=PACKAGE, help="the file; by default that in the package")
    arguments = parser.parse_args()
    try:
        make(arguments.folder, arguments.output)
    except (ValueError, RuntimeError, OSError) as error:
        raise SystemExit(f"fashion_subset: {error}") from error
