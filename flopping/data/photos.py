"""Photos of users: finding the files that arguments name, and decoding untrusted files within limits.

Unlike images for training, photos are limited in size and turned upright as their EXIF data says.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from PIL import Image, ImageOps, UnidentifiedImageError

from flopping.data.decode import FORMATS, open_image
from flopping.data.folders import find_images, natural_key
from flopping.errors import UsageError

MAX_PIXELS = 89_478_485
"""The largest image that is decoded: Pillow's limit, a quarter of a gigabyte in colour."""
MAX_BYTES = 2**30
"""The most that is read from a pipe."""
STDIN = "-"
_READABLE = " or ".join(", ".join(FORMATS).rsplit(", ", 1))
_OTHER_FILES = {
    b"ftyphei": "a HEIC photo",
    b"ftypmif1": "a HEIC photo",
    b"version https://git-lfs": "a pointer of Git LFS, which `git lfs pull` replaces",
}
_SYSTEM_ERRORS = {errno.ENOENT: "there is no such file", errno.EACCES: "no permission to read it"}
_lock = Lock()


class UnreadableError(UsageError):
    """A photo that can't be decoded; the message says why, without its name."""


@dataclass(frozen=True)
class Photo:
    """A file, or the content of a pipe."""

    name: str
    content: bytes | None = None
    """The content of a pipe; a file is read when its turn comes."""


@dataclass(frozen=True)
class Failed:
    """A photo, or an argument that names none, that can't be used."""

    name: str
    reason: str


def find_photos(arguments: Iterable[str | Path], stdin: BinaryIO | None = None) -> Iterator[Photo | Failed]:
    """The photos that arguments name, each path once.

    A file may have any suffix. A folder names all files in it and below with the suffix of an image. An argument that
    doesn't exist but contains `*`, `?` or `[` is a pattern, with `**` for folders below. `-` is standard input: an
    image, or paths, one a line, or separated by zero bytes.
    """
    seen: set[str] = set()
    for argument in map(str, arguments):
        for found in _find(argument, stdin):
            key = STDIN if found.name == STDIN else os.path.abspath(found.name)
            if key not in seen:
                seen.add(key)
                yield found


def _find(argument: str, stdin: BinaryIO | None) -> Iterator[Photo | Failed]:
    if argument == STDIN and stdin is not None:
        yield from _read_stdin(stdin)
    elif os.path.lexists(argument) or not glob.has_magic(argument):
        yield from _open_path(argument)
    else:
        matches = sorted(glob.glob(argument, recursive=True), key=natural_key)
        for path in matches:
            yield from _open_path(path)
        if not matches:
            yield Failed(argument, "no file matches this pattern")


def _open_path(path: str) -> Iterator[Photo | Failed]:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        mode = stat.S_IFREG  # reading it raises the error
    if stat.S_ISDIR(mode):
        yield from _list_folder(path)
    elif stat.S_ISFIFO(mode):  # as bash makes them of <(command); it can be read only once
        with open(path, "rb") as pipe:
            yield _read_pipe(path, pipe)
    elif stat.S_ISREG(mode):
        yield Photo(path)
    else:
        yield Failed(path, "neither a file nor a folder")


def _list_folder(folder: str) -> Iterator[Photo | Failed]:
    errors: list[Failed] = []
    images, _ = find_images(Path(folder), lambda error: errors.append(Failed(str(error.filename), _system(error))))
    yield from map(Photo, images)
    yield from errors
    if not images and not errors:
        yield Failed(folder, "the folder holds no image, by their suffixes")


def _read_pipe(name: str, pipe: BinaryIO) -> Photo | Failed:
    content = pipe.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        return Failed(name, f"more than {MAX_BYTES:,} bytes came through the pipe")
    if not content:
        return Failed(name, f"{'standard input' if name == STDIN else 'the pipe'} is empty")
    return Photo(name, content)


def _read_stdin(stdin: BinaryIO) -> Iterator[Photo | Failed]:
    """Standard input: an image if it begins like one, else a list of paths."""
    found = _read_pipe(STDIN, stdin)
    if isinstance(found, Failed) or found.content is None:
        yield found
        return
    try:
        _open_image(io.BytesIO(found.content)).close()
    except Exception as error:  # Pillow raises many kinds for what is no image
        separator = b"\0" if b"\0" in found.content else b"\n"
        lines = [line if separator == b"\0" else line.rstrip(b"\r") for line in found.content.split(separator)]
        if any(byte < 32 and byte not in b"\t\n\r" for line in lines[:100] for byte in line):
            reason = _explain(error, found.content[:512])
            yield Failed(STDIN, f"standard input is neither an image nor a list of paths: {reason}")
            return
        for line in filter(None, lines):
            yield from _open_path(os.fsdecode(line))
    else:
        yield found


def read_photo(photo: Photo, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The pixels of a photo, upright; of an animation the first image. The content decides on the format.

    Whatever is wrong with it, the error is an `UnreadableError`.
    """
    head = b""
    try:
        with open(photo.name, "rb") if photo.content is None else io.BytesIO(photo.content) as file:
            head = file.read(512)
            file.seek(0)
            with _open_image(file) as image:
                pixels = image.width * image.height
                if pixels > max_pixels:
                    raise UnreadableError(
                        f"{image.width} x {image.height} = {pixels:,} pixels are more than the limit of {max_pixels:,}"
                        " (predict --max-pixels raises it for files that you trust)"
                    )
                image.load()
    except UnreadableError:
        raise
    except Exception as error:  # damaged files raise more kinds of errors than Pillow documents
        if isinstance(error, FileNotFoundError) and os.path.islink(photo.name):
            raise UnreadableError(f"a link to {os.readlink(photo.name)!r}, which doesn't exist") from error
        raise UnreadableError(_explain(error, head)) from error
    with suppress(Exception):  # where the EXIF data is damaged, the pixels are good
        ImageOps.exif_transpose(image, in_place=True)
    return image


@contextmanager
def silence_pillow() -> Iterator[None]:
    """Within it, Pillow's warnings are hidden, in all threads. Pillow warns of much that it decodes all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


def _open_image(file: BinaryIO) -> Image.Image:
    """An image of which only the header is read.

    Pillow's limit of pixels is one number for the whole process, and its error doesn't say how large the image is. It
    is lifted for the moment.
    """
    with _lock:
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return open_image(file)
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _explain(error: Exception, head: bytes) -> str:
    """The reason why a photo can't be decoded."""
    if isinstance(error, UnidentifiedImageError):
        if not head:
            return "the file is empty"
        other = next((kind for mark, kind in _OTHER_FILES.items() if mark in head.lower()), None)
        return f"it is {other}, and no image of a kind that is read ({_READABLE})" if other else f"no {_READABLE} image"
    if isinstance(error, OSError) and error.errno is not None:
        return _system(error)
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    return f"damaged: {' '.join(str(error).split()) or type(error).__name__}"


def _system(error: OSError) -> str:
    return _SYSTEM_ERRORS.get(error.errno or 0, error.strerror or str(error))
