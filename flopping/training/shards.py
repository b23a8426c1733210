"""Images in shards, tar files that are read from front to back: WebDataset, as timm describes it."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image
from timm.data import create_dataset

from flopping.training.folders import SPLITS
from flopping.training.images import Images
from flopping.training.named import need
from flopping.training.pixels import SUFFIXES
from flopping.training.stops import UnreadableError

INFO = "_info.json"
EXAMPLE = (
    '{"classes": ["cat", "dog"], "splits": {"train": {"name": "train", "filenames": ["train-0.tar", "train-1.tar"],'
    ' "shard_lengths": [1000, 500], "num_samples": 1500}, "validation": {...}}}'
)
CLASS = "cls"
PLACES = 2**32
"""An image's number is that of its shard times this, and its place in the shard."""

Sample = Mapping[str, Any]
"""The files of an image by their suffix, as "jpg" and "cls"; empty for what can't be read."""


class Shards(Images):
    """The shards of a split."""

    def __init__(self, name: str, paths: list[str], lengths: list[int], classes: tuple[str, ...]) -> None:
        self.name, self.paths, self.lengths, self.classes = name, paths, lengths, classes

    def __len__(self) -> int:
        return sum(self.lengths)

    def where(self, index: int) -> str:
        shard, place = divmod(index, PLACES)
        keys = _keys(self.paths[shard])
        key = keys[place] if place < len(keys) else f"what follows image {place - 1}"
        return f"{self.paths[shard]}, {key}"

    def read(self, shard: int) -> Iterator[tuple[int, Sample]]:
        """The images of a shard with their numbers. Where it can't be read any further, the last one is empty."""
        from webdataset.tariterators import group_by_keys, tar_file_expander

        path, index, whole = self.paths[shard], shard * PLACES, True

        def files() -> Iterator[Any]:
            nonlocal whole
            try:
                with open(path, "rb") as file:
                    yield from tar_file_expander([{"url": path, "stream": file}])
            except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error):
                whole = False  # the images before are good

        for sample in group_by_keys(files()):
            yield index, sample
            index += 1
        if not whole:
            yield index, {}

    def decoded(self, sample: Sample) -> tuple[Image.Image, int]:
        """The image, which may fail to be read, and its class."""
        content = next(value for name, value in sample.items() if _is_image(name))
        with Image.open(io.BytesIO(content)) as image:
            image.load()
        return image, int(sample[CLASS])

    def require_class(self, index: int, label: int) -> None:
        """Refuse a class that has no name."""
        if not 0 <= label < len(self.classes):
            raise UnreadableError(
                f"{self.where(index)} is of class {label}, and the {len(self.classes)} classes in {INFO} are 0 to"
                f" {len(self.classes) - 1}"
            )


def open_shards(data: str, split: str, root: str | None) -> Shards:
    """The shards of a split of the WebDataset in the folder `root`; a file _info.json there describes them."""
    need("webdataset", data)
    if root is None:
        raise ValueError(f"--root says in which folder the shards of {data!r} lie")
    path = Path(root, INFO)
    if not path.is_file():
        problem = f"no file {str(path)!r}, which describes the shards" if Path(root).is_dir() else f"no folder {root!r}"
        raise ValueError(f"there is {problem} of {data!r}. It is as {EXAMPLE}")
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        name = next(name for name in SPLITS[split] if name in info["splits"])
        found = create_dataset("wds/", root=root, split=name).reader.split_info
        files, lengths = [str(file) for file in found.filenames], [int(length) for length in found.shard_lengths]
        classes = info["classes"] if isinstance(info["classes"], list) else range(int(info["classes"]))
    except (StopIteration, KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}" if str(error) else f"no split {' or '.join(SPLITS[split])}"
        raise ValueError(f"{str(path)!r} does not describe the {split} images ({said}). It is as {EXAMPLE}") from error
    if len(files) != len(lengths) or min(lengths, default=0) < 1:
        raise ValueError(f"{str(path)!r}: the {len(files)} filenames of {name!r} need as many shard_lengths above 0")
    if found.alt_label:
        raise ValueError(f"{str(path)!r}: alt_label={found.alt_label!r} is not read; classes are in files KEY.{CLASS}")
    shards = Shards(
        f"{data}'s {split} images in {root!r}",
        [os.path.join(root, file) for file in files],
        lengths,
        tuple(str(label) for label in classes),
    )
    _check(shards, path)
    return shards


def _check(shards: Shards, info: Path) -> None:
    """Refuse shards that are not there, and a first one without images and classes."""
    missing = [path for path in shards.paths if not Path(path).is_file()]
    if missing:
        raise ValueError(f"{str(info)!r} names shards that are not there: {', '.join(missing[:3])}")
    _, first = next(shards.read(0), (0, {}))
    if CLASS not in first or not any(map(_is_image, first)):
        there = ", ".join(f".{name}" for name in first if not name.startswith("__")) or "none that can be read"
        raise ValueError(
            f"an image of a shard has a file KEY.jpg (or .png, .webp) and a file KEY.{CLASS} with the number of its"
            f" class; the first of {shards.paths[0]!r} has {there}"
        )


def _is_image(suffix: str) -> bool:
    return os.path.splitext(f"KEY.{suffix}")[1].lower() in SUFFIXES


@lru_cache(maxsize=16)
def _keys(path: str) -> list[str]:
    """What the images of a shard are called, as far as it can be read."""
    keys: dict[str, None] = {}
    try:
        with tarfile.open(path) as shard:
            for member in shard:
                if member.isfile():
                    folder, name = os.path.split(member.name)
                    keys[os.path.join(folder, name.partition(".")[0])] = None
    except (OSError, EOFError, tarfile.TarError, zlib.error):
        pass
    return list(keys)
