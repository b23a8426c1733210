"""Files and folders that are written completely or not at all, and locks on folders."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopping.errors import UsageError, as_usage_error

if TYPE_CHECKING:
    from pydantic import ConfigDict

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors for a full disk."""
STRICT: ConfigDict = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""How pydantic validates what files hold: no value is converted, but whole numbers serve as floats."""
LARGEST_TEXT = 2**22
"""Bytes of a recipe or of a description in JSON."""


def suggest_fix(error: OSError) -> str:
    """What helps after a file could not be written."""
    return "Free some space" if error.errno in DISK_FULL else "Make it writable"


class WriteError(OSError):
    """The system stopped the writing of a file or folder. What was there before is unchanged.

    >>> print(WriteError(Path("a.txt"), OSError(errno.ENOSPC, "No space left on device")))
    'a.txt' was not written: No space left on device. Free some space, then start again; the previous file is unchanged
    """

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error), str(path))

    def __str__(self) -> str:
        return (
            f"{self.filename!r} was not written: {self.strerror}. {suggest_fix(self)}, then start again; the previous"
            " file is unchanged"
        )


@contextmanager
def atomic_write(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """A place to write a file, or a folder of files, to. When the block ends without an error, it replaces the path.

    What is written is on the disk before it gets its name. A link stays, and the file it leads to is replaced. An error
    of the system while writing is a `WriteError`.

    >>> with tempfile.TemporaryDirectory() as parent:
    ...     with atomic_write(Path(parent, "a.txt")) as place:
    ...         _ = place.write_text("all of it")
    ...     with atomic_write(Path(parent, "new"), folder=True) as place:
    ...         _ = place.joinpath("b.txt").write_text("all of it")
    ...     Path(parent, "a.txt").read_text(), sorted(os.listdir(parent)), os.listdir(Path(parent, "new"))
    ('all of it', ['a.txt', 'new'], ['b.txt'])
    """
    target = path.resolve()
    scratch: Path | None = None
    try:
        # in a folder of its own, because an interrupted writer may leave files of any name
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as name:
            scratch = Path(name)
            place = scratch / target.name
            if folder:
                place.mkdir()
            yield place
            for file in place.iterdir() if folder else [place]:
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
            if folder and target.exists():
                _replace_folder(place, target, scratch / f"{target.name}.old")
            else:
                os.replace(place, target)
    except (BrokenPipeError, WriteError):
        raise  # of something else
    except OSError as error:
        if error.errno not in DISK_FULL:
            if scratch is None:
                raise UsageError(f"{str(path)!r} can't be written: {error.strerror}") from error
            named = error.filename and Path(os.fsdecode(error.filename))  # a failed write names no file
            if named and named not in (target, scratch) and scratch not in named.parents:
                raise
        raise WriteError(path, error) from error


def _replace_folder(place: Path, target: Path, old: Path) -> None:
    """That takes two renamings. If the second fails, the older folder gets its name back."""
    try:
        os.rename(target, old)
        os.rename(place, target)
    except BaseException:  # also Ctrl-C: the older folder lies in one that is about to be deleted
        if old.exists() and not target.exists():
            os.rename(old, target)
        raise


def require_regular(path: Path, largest: int | None = None) -> None:
    """Refuse a folder, a pipe or a device where a file of data is read, or a larger file: reading may never end."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{str(path)!r} is no regular file")
    if largest is not None and path.exists() and (size := path.stat().st_size) > largest:
        raise UsageError(f"{str(path)!r} is {size:,} bytes long, more than the {largest:,} that are read")


def read_text(path: Path) -> str:
    """The text of a file that a user named. A `UsageError` says what is wrong with one that can't be read."""
    require_regular(path, LARGEST_TEXT)
    with as_usage_error(UnicodeDecodeError, context=f"{str(path)!r} is no text in UTF-8"), as_usage_error(OSError):
        return path.read_text(encoding="utf-8")


def read_json(path: Path) -> Any:
    """The value of a file in JSON."""
    text = read_text(path)
    with as_usage_error(ValueError, RecursionError, context=f"{str(path)!r} can't be read"):
        return json.loads(text)


def write_text(path: Path, text: str) -> None:
    with atomic_write(path) as place:
        place.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=1))


def suffix_of(name: str | Path, known: Sequence[str]) -> str:
    """The suffix of a file to be written, in small letters; a name without anything before it is refused.

    >>> suffix_of("a.PNG", [".png"]), suffix_of("v1.2/mine", [".onnx"])
    ('.png', '')
    >>> suffix_of(".png", [".png"])
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: '.png' is a suffix without a name: write it as in name.png
    """
    path = Path(name)
    if path.name in ("", "..") or not str(name):
        example = f"name{known[0]}" if known else "name"
        raise UsageError(f"{str(name)!r} is no name of a file: write one as in {example}")
    if path.name.lower() in known:
        raise UsageError(f"{str(name)!r} is a suffix without a name: write it as in name{path.name}")
    return path.suffix.lower()


def require_output(path: Path, suffix: str, force: bool, python: str | None = None) -> None:
    """Refuse a path at which no file with this suffix can be written, or where there is one already."""
    if suffix_of(path, [suffix]) != suffix:
        raise UsageError(f"the name of what is written ends with {suffix}, got {str(path)!r}")
    require_writable(path, force, python=python)


def require_writable(path: Path, force: bool, *, folder: bool = False, python: str | None = None) -> None:
    """Refuse a path at which a file, or a folder, can't be written, or exists already and `force` is not given.

    A link that leads nowhere exists. `python` is what stands for `--force` in a call of the function that writes.
    """
    try:
        parent = path.resolve().parent
    except (OSError, RuntimeError) as error:  # which of them depends on the version of Python
        raise UsageError(f"{str(path)!r} is a link that leads to itself") from error
    if not parent.is_dir():
        folder_name = str(parent if path.is_symlink() else path.parent)  # as given, unless a link leads elsewhere
        raise UsageError(f"there is no folder {folder_name!r} for {path.name!r}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"no permission to write in {str(parent)!r}")
    if not os.path.lexists(path):
        return
    if path.is_dir() and not folder:
        raise UsageError(f"{str(path)!r} is a folder: name a file")
    if folder and path.exists() and not path.is_dir():
        raise UsageError(f"{str(path)!r} is a file: name a folder")
    if not force:
        also = "" if python is None else f" (in Python {python})"
        raise UsageError(f"{str(path)!r} exists; --force{also} replaces it")


LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Answers of file systems without locks."""


@contextmanager
def folder_lock(folder: Path, refusal: Callable[[str], str]) -> Iterator[None]:
    """Within it, no other process may lock the folder, which is created if it is missing.

    `refusal` makes a message of the process that holds the lock. The lock ends with this process, however that ends.
    We use lockf, and not filelock: its flock is inherited by worker processes, which may outlive a killed run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise UsageError(f"{str(folder)!r} can't be written to: {error.strerror}") from error
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.pread(handle, 100, 0).decode(errors="replace").strip()
                raise UsageError(refusal(holder or "just started")) from error
            if error.errno not in _NO_LOCKS:
                raise
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
