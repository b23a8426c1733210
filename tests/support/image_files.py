"""Small images on the disk: folders, shards, and files of every kind."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 12


def make_image(seed: int, mode: str = "RGB", size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    """Noise, different for every seed."""
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise).convert(mode)


def encode(image: Image.Image, kind: str = "png", **options: object) -> bytes:
    """The content of a file with the image."""
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def image_folder(root: Path, splits: Mapping[str, Mapping[str, int]], suffix: str = ".png") -> Path:
    """A folder with so many images of each class of each split, all of them different."""
    number = 0
    for split, classes in splits.items():
        for name, images in classes.items():
            folder = root / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for image in range(images):
                make_image(number).save(folder / f"{image}{suffix}")
                number += 1
    return root


def write_shard(path: Path, samples: Sequence[Mapping[str, bytes]]) -> None:
    """A tar file with the files of samples, given by their suffix."""
    with tarfile.open(path, "w") as file:
        for number, sample in enumerate(samples):
            for suffix, content in sample.items():
                member = tarfile.TarInfo(f"{path.stem}-{number:04d}.{suffix}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def web_dataset(root: Path, splits: Mapping[str, Sequence[int]], classes: Sequence[str] = ("cat", "dog")) -> Path:
    """Shards with so many images each, all of them different, and the file that describes them."""
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    info: dict[str, object] = {}
    for split, lengths in splits.items():
        names = [f"{split}-{place}.tar" for place in range(len(lengths))]
        for name, length in zip(names, lengths, strict=True):
            samples = []
            for _ in range(length):
                samples.append({"png": encode(make_image(number)), "cls": str(number % len(classes)).encode()})
                number += 1
            write_shard(root / name, samples)
        info[split] = {"filenames": names}
    (root / "_info.json").write_text(json.dumps({"classes": list(classes), "splits": info}))
    return root


def write_fashion_mnist(root: Path, train: bool, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    """The two files of a split, as torchvision has them in its root."""
    folder, part = root / "FashionMNIST" / "raw", "train" if train else "t10k"
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        (folder / name).write_bytes(header + array.tobytes())
