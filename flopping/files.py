"""Files and folders that are written completely or not at all, and locks on folders."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flopping.errors import UsageError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's errors for a full disk."""


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
def _scratch_folder(path: Path) -> Iterator[Path]:
    """A new folder beside a path, deleted afterwards. Errors of writing in it are raised as `WriteError`."""
    scratch: Path | None = None
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.resolve().name}.", dir=path.resolve().parent) as folder:
            scratch = Path(folder)
            yield scratch
    except (BrokenPipeError, WriteError):
        raise  # of something else
    except OSError as error:
        if error.errno not in DISK_FULL:
            if scratch is None:
                raise UsageError(f"{str(path)!r} can't be written: {error.strerror}") from error
            if not _is_about(error, scratch, path.resolve()):
                raise
        raise WriteError(path, error) from error


def _is_about(error: OSError, folder: Path, path: Path) -> bool:
    """Whether an error is about a file in a folder or about the path; a failed write names no file."""
    if error.filename is None:
        return True
    named = Path(os.fsdecode(error.filename))
    return named in (path, folder) or folder in named.parents


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A place to write a file to. When the block ends without an error, it replaces the file at the path.

    The file is on the disk before it gets its name. A link stays, and the file it leads to is replaced. An error of the
    system while writing is a `WriteError`.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder, "a.txt")) as place:
    ...         _ = place.write_text("all of it")
    ...     Path(folder, "a.txt").read_text(), len(os.listdir(folder))
    ('all of it', 1)
    """
    # in a folder of its own, because an interrupted writer may leave files of any name
    with _scratch_folder(path) as folder:
        path = path.resolve()
        place = folder / path.name
        yield place
        _sync(place)
        place.chmod(0o666 & ~_umask(folder))
        os.replace(place, path)


@contextmanager
def atomic_write_folder(path: Path) -> Iterator[Path]:
    """The same for a folder of files.

    Replacing takes two renamings. If the second fails, the older folder gets its name back.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write_folder(Path(folder, "new")) as place:
    ...         _ = place.joinpath("a.txt").write_text("all of it")
    ...     Path(folder, "new", "a.txt").read_text(), os.listdir(folder)
    ('all of it', ['new'])
    """
    with _scratch_folder(path) as scratch:
        path = path.resolve()
        place, old = scratch / path.name, scratch / f"{path.name}.old"
        place.mkdir()
        yield place
        for file in place.iterdir():
            _sync(file)
        try:
            if path.exists():
                os.rename(path, old)
            os.rename(place, path)
        except BaseException:  # also Ctrl-C: the older folder lies in one that is about to be deleted
            if old.exists() and not path.exists():
                os.rename(old, path)
            raise


def _sync(path: Path) -> None:
    with open(path, "rb") as written:
        os.fsync(written.fileno())


def _umask(folder: Path) -> int:
    """The umask. `os.umask` would change it for other threads for a moment."""
    probe = folder / "umask"
    os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
    return 0o666 & ~probe.stat().st_mode


def require_regular(path: Path, largest: int | None = None) -> None:
    """Refuse a folder, a pipe or a device where a file of data is read, or a larger file: reading may never end."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{str(path)!r} is no regular file")
    if largest is not None and path.exists() and (size := path.stat().st_size) > largest:
        raise UsageError(f"{str(path)!r} is {size:,} bytes long, more than the {largest:,} that are read")


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


def require_writable(path: Path, force: bool, *, folder: bool = False, option: str = "--force") -> None:
    """Refuse a path at which a file, or a folder, can't be written, or exists already and `force` is not given.

    `option` is what the user types for `force`. A link that leads nowhere exists.
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
        raise UsageError(f"{str(path)!r} exists; {option} replaces it")


LARGEST_TEXT = 2**22
"""Bytes of a recipe or of a description in JSON."""
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
