"""Photos that people have: which files are meant, and each of them read with suspicion."""

from __future__ import annotations

import errno
import glob
import io
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from flopping.training.folders import files_below, is_image_name, natural

MAX_PIXELS = 89_478_485
"""The largest image that is read: Pillow's limit, a quarter of a gigabyte in colour."""
MAX_BYTES = 2**30
"""The most that is read from a pipe."""
STDIN = "-"
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM")
"""What is read. Pillow knows more, but for some of them it starts other programs, and some fit any file."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""How a camera was held, by the number in its photo, and what brings the photo upright."""
_ORIENTATION = 0x0112
_STRANGERS: tuple[tuple[Callable[[bytes], bool], str], ...] = (
    (lambda head: head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"mif1", b"hevc"), "a HEIC photo"),
    (lambda head: head.startswith(b"%PDF"), "a PDF"),
    (lambda head: head.startswith(b"%!PS"), "PostScript"),
    (lambda head: head.startswith((b"PK\x03\x04", b"\x1f\x8b", b"7z\xbc\xaf")), "an archive"),
    (lambda head: b"<svg" in head, "an SVG drawing"),
    (lambda head: head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")), "a page of HTML"),
    (lambda head: head.startswith(b"version https://git-lfs"), "a pointer of Git LFS, which `git lfs pull` replaces"),
)
_BEGINNINGS = {
    b"\xff\xd8\xff": "JPEG",
    b"\x89PNG\r\n": "PNG",
    b"GIF8": "GIF",
    b"RIFF": "WebP",
    b"II*": "TIFF",
    b"MM\0*": "TIFF",
}
_lock = Lock()


class UnreadableError(ValueError):
    """A photo that can't be used; the message says why, without its name."""


@dataclass(frozen=True)
class Photo:
    """A file, or what came through a pipe."""

    name: str
    """Its path, as it was given or found."""
    content: bytes | None = None
    """What came through a pipe; a file is read when its turn comes."""


@dataclass(frozen=True)
class Failed:
    """A photo, or something that should have held some, that can't be used."""

    name: str
    reason: str


def find_photos(arguments: Iterable[str | Path], stdin: BinaryIO | None = None) -> Iterator[Photo | Failed]:
    """The photos that are meant, each path once.

    A file is meant by its name, whatever its suffix. A folder means all files in it and below whose suffix is that of
    an image. What doesn't exist but has `*`, `?` or `[` in it is a pattern, `**` for folders below. `-` is standard
    input: an image, or paths, one a line, or separated by zero bytes.
    """
    seen: set[str] = set()
    for argument in map(str, arguments):
        for found in _meant(argument, stdin):
            key = os.path.abspath(found.name) if found.name != STDIN else STDIN
            if key not in seen:
                seen.add(key)
                yield found


def _meant(argument: str, stdin: BinaryIO | None) -> Iterator[Photo | Failed]:
    if argument == STDIN and stdin is not None:
        yield from _piped(stdin)
    elif os.path.lexists(argument) or not glob.has_magic(argument):
        yield from _at(argument)
    else:
        matches = sorted(glob.glob(argument, recursive=True), key=natural)
        for path in matches:
            yield from _at(path)
        if not matches:
            yield Failed(argument, "no file matches this pattern")


def _at(path: str) -> Iterator[Photo | Failed]:
    """What a path means: a folder, a pipe, or a file, which may turn out not to exist."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        mode = stat.S_IFREG  # whoever reads it says what is wrong with it
    if stat.S_ISDIR(mode):
        yield from _below(path)
    elif stat.S_ISFIFO(mode):  # as bash makes them of <(command); it can be read only once
        with open(path, "rb") as pipe:
            yield _limited(path, pipe)
    elif stat.S_ISREG(mode):
        yield Photo(path)
    else:
        yield Failed(path, "neither a file nor a folder")


def _below(folder: str) -> Iterator[Photo | Failed]:
    problems: list[Failed] = []

    def failed(error: OSError) -> None:
        problems.append(Failed(str(error.filename), _system(error)))

    files = [path for path in files_below(Path(folder), failed) if is_image_name(path)]
    # a link that leads nowhere is reported, a pipe or a socket is none of ours
    images = [path for path in files if os.path.isfile(path) or not os.path.exists(path)]
    yield from map(Photo, sorted(images, key=natural))
    yield from problems
    if not images and not problems:
        yield Failed(folder, "the folder holds no image, by their suffixes")


def _limited(name: str, pipe: BinaryIO) -> Photo | Failed:
    content = pipe.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        return Failed(name, f"more than {MAX_BYTES:,} bytes came through the pipe")
    return Photo(name, content)


def _piped(stdin: BinaryIO) -> Iterator[Photo | Failed]:
    """Standard input: an image if it begins like one, else a list of paths."""
    found = _limited(STDIN, stdin)
    content = None if isinstance(found, Failed) else found.content
    if not content:
        yield found if isinstance(found, Failed) else Failed(STDIN, "standard input is empty")
        return
    try:
        with _opened(io.BytesIO(content)):
            pass
    except Exception as error:  # it is no image, and Pillow has many ways to say so
        reason = _reason(error, content)
    else:
        yield Photo(STDIN, content)
        return
    separator = b"\0" if b"\0" in content else b"\n"
    lines = [line if separator == b"\0" else line.rstrip(b"\r") for line in content.split(separator)]
    if any(byte < 32 and byte not in b"\t\n\r" for line in lines[:100] for byte in line):
        yield Failed(STDIN, f"standard input is neither an image nor a list of paths: {reason}")
        return
    for line in filter(None, lines):
        yield from _at(os.fsdecode(line))


def read_photo(photo: Photo, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The pixels of a photo, upright; the first picture of an animation. The content decides what it is.

    Whatever is wrong with it, the error is an `UnreadableError`.
    """
    head = b""
    try:
        with _stream(photo) as file:
            head = file.read(512)
            file.seek(0)
            with _opened(file) as image:
                pixels = image.width * image.height
                if pixels > max_pixels:
                    raise UnreadableError(
                        f"{image.width} x {image.height} = {pixels:,} pixels are more than the limit of {max_pixels:,}"
                        " (predict --max-pixels raises it for files that you trust)"
                    )
                image.load()
            return upright(image)
    except UnreadableError:
        raise
    except Exception as error:  # damaged files make Pillow's decoders fail in more ways than it lists
        raise UnreadableError(_reason(error, head, photo)) from error


@contextmanager
def pillow_is_quiet() -> Iterator[None]:
    """Pillow warns of much that it reads all the same. What is shown of warnings is settled for all threads at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


def _stream(photo: Photo) -> BinaryIO:
    return open(photo.name, "rb") if photo.content is None else io.BytesIO(photo.content)


def _opened(file: BinaryIO) -> Image.Image:
    """An image of which nothing but the size and the kind is read yet.

    Pillow warns of large images, and refuses very large ones without saying how large. Its limit is one number for the
    whole process: it is set aside for the moment.
    """
    with _lock:
        Image.init()
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            return Image.open(file, formats=[kind for kind in FORMATS if kind in Image.OPEN])
        finally:
            Image.MAX_IMAGE_PIXELS = before


def upright(image: Image.Image) -> Image.Image:
    """A photo as it was seen through the camera, however that was held. What can't be understood is left as it is."""
    try:
        turn = TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # what a camera writes beside its pixels may be damaged, and the pixels good
        return image
    return image if turn is None else image.transpose(turn)


def _reason(error: Exception, head: bytes, photo: Photo | None = None) -> str:
    """What is wrong with a photo, in words for the person whose it is."""
    if isinstance(error, UnidentifiedImageError):
        if not head:
            return "the file is empty"
        kind = next((kind for beginning, kind in _BEGINNINGS.items() if head.startswith(beginning)), "")
        if kind:
            return f"damaged: it begins like a {kind} image, and does not go on like one"
        stranger = next((what for fits, what in _STRANGERS if fits(head)), "")
        known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        return f"it is {stranger}, and no image of a kind that is read ({known})" if stranger else f"no {known} image"
    if isinstance(error, OSError) and error.errno is not None:
        if isinstance(error, FileNotFoundError) and photo is not None and os.path.islink(photo.name):
            return f"a link to {os.readlink(photo.name)!r}, which doesn't exist"
        return _system(error)
    if isinstance(error, MemoryError):
        return "it takes more memory than there is"
    text = " ".join(str(error).split()) or type(error).__name__
    return f"damaged: {text}"


def _system(error: OSError) -> str:
    plain = {errno.ENOENT: "there is no such file", errno.EACCES: "no permission to read it"}
    return plain.get(error.errno or 0, error.strerror or str(error))
