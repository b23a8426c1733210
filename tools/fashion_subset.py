"""Choose the part of Fashion-MNIST that ships with the package, from the full set in FOLDER.

python tools/fashion_subset.py FOLDER [--output FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from flopping.training.fashion import file_names, from_folder, write_idx

PACKAGE = Path(__file__).parents[1] / "flopping" / "data" / "fashion_mnist"
PER_CLASS = {"train": 1000, "t10k": 200}


def make(source: Path, target: Path) -> None:
    """Write the first images of each class, in the order of the full set."""
    for part, per_class in PER_CLASS.items():
        train = part == "train"
        subset = from_folder(source, train).first(per_class)
        images, labels = (target / f"{name}.gz" for name in file_names(train))
        write_idx(images, subset.images)
        write_idx(labels, subset.labels.astype(np.uint8))
        for path in (images, labels):
            print(f"{path.name}: {len(subset)} of {part}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the full set: torchvision's root, or the folder of Debian's package")
    parser.add_argument("--output", type=Path, default=PACKAGE, help="where the files go; by default into the package")
    arguments = parser.parse_args()
    try:
        make(arguments.folder, arguments.output)
    except (ValueError, OSError) as error:
        raise SystemExit(f"fashion_subset: {error}") from error
