"""WebDataset: images in shards, which are tar files. They are indexed when they are opened, then read in any order."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path

import numpy as np
from PIL import Image

from flopping.data.decode import decode_image, is_image_name
from flopping.data.folders import SPLITS
from flopping.data.images import ImageDataset
from flopping.errors import UsageError

INFO = "_info.json"
EXAMPLE = '{"classes": ["cat", "dog"], "splits": {"train": {"filenames": ["train-0.tar"]}, "validation": {...}}}'
LABEL = "cls"


class ShardDataset(ImageDataset):
    """The images of a split. What follows a damaged place of a shard is left out."""

    def __init__(self, name: str, paths: list[str], classes: tuple[str, ...]) -> None:
        self.name, self.paths, self.classes = name, paths, classes
        rows: list[tuple[int, ...]] = []
        for shard, path in enumerate(paths):
            try:
                for _, *place in _scan(path, len(classes)):
                    rows.append((shard, *place))
            except (OSError, tarfile.TarError) as error:
                self.note += f"{path!r} is damaged ({error}): what follows there is left out. "
        self.index = np.array(rows, dtype=np.int64).reshape(-1, 4)
        """Shard, offset, size and class of every image."""
        if not rows:
            raise UsageError(f"{name} are in {len(paths)} shards without an image that can be read. {self.note}")

    def __len__(self) -> int:
        return len(self.index)

    def read(self, index: int) -> tuple[Image.Image, int]:
        shard, offset, size, label = self.index[index].tolist()
        with open(self.paths[shard], "rb") as file:
            file.seek(offset)
            return decode_image(io.BytesIO(file.read(size))), label

    def locate(self, index: int) -> str:
        shard = int(self.index[index, 0])
        place = index - int(np.searchsorted(self.index[:, 0], shard))
        key, *_ = next(islice(_scan(self.paths[shard], len(self.classes)), place, None))
        return f"{self.paths[shard]}, {key}"

    def portable_names(self) -> Iterable[str]:
        lengths = np.bincount(self.index[:, 0], minlength=len(self.paths))
        return (f"{os.path.basename(path)} {length}" for path, length in zip(self.paths, lengths, strict=True))


def _scan(path: str, classes: int) -> Iterator[tuple[str, int, int, int]]:
    """The images of a shard: the key, offset and size of the file, and the class."""
    with tarfile.open(path, "r:") as shard:
        files = (member for member in shard if member.isfile())
        for key, members in groupby(files, lambda member: _split_name(member.name)[0]):
            image, label = None, b""
            for member in members:
                suffix = _split_name(member.name)[1]
                if suffix == LABEL:
                    content = shard.extractfile(member)
                    label = content.read() if content else b""
                elif image is None and "." not in suffix and is_image_name(f"KEY.{suffix}"):  # no mask KEY.seg.png
                    image = member
            if image is None or not label.strip().isdigit() or int(label) >= classes:
                there = "no image" if image is None else f"the class {label.decode(errors='replace')!r}"
                raise UsageError(
                    f"an image of a shard has a file KEY.jpg (or .png, .webp) and a file KEY.{LABEL} with the number of"
                    f" its class, 0 to {classes - 1}; {key!r} in {path!r} has {there}"
                )
            yield key, image.offset_data, image.size, int(label)


def _split_name(name: str) -> tuple[str, str]:
    """The key and the suffix of a file, which begins after the first dot of its name.

    >>> _split_name("a.b/c.d.jpg")
    ('a.b/c', 'd.jpg')
    """
    folder, base = os.path.split(name)
    key, _, suffix = base.partition(".")
    return os.path.join(folder, key), suffix


def open_shards(data: str, split: str, root: str | None) -> ShardDataset:
    """The shards of a split of the WebDataset in the folder `root`; a file _info.json there describes them."""
    if root is None:
        raise UsageError(f"--root says in which folder the shards of {data!r} lie")
    path = Path(root, INFO)
    if not path.is_file():
        problem = f"no file {str(path)!r}, which describes the shards" if Path(root).is_dir() else f"no folder {root!r}"
        raise UsageError(f"there is {problem} of {data!r}. It is as {EXAMPLE}")
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        name = next(name for name in SPLITS[split] if name in info["splits"])
        paths = [os.path.join(root, file) for file in info["splits"][name]["filenames"]]
        classes = info["classes"] if isinstance(info["classes"], list) else range(int(info["classes"]))
    except (StopIteration, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else f"no split {' or '.join(SPLITS[split])}"
        raise UsageError(
            f"{str(path)!r} does not describe the {split} images ({reason}). It is as {EXAMPLE}"
        ) from error
    missing = [file for file in paths if not Path(file).is_file()]
    if missing:
        raise UsageError(f"{str(path)!r} names shards that are not there: {', '.join(missing[:3])}")
    return ShardDataset(f"{data}'s {split} images in {root!r}", paths, tuple(map(str, classes)))
