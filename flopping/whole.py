"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that there is no room on a disk."""


def remedy(error: OSError) -> str:
    """What helps where something could not be written."""
    return "Free some space" if error.errno in FULL else "Let it be written to"


class UnwrittenError(OSError):
    """A file or folder that the system refused to write, while it was written: its reason, and what is left.

    >>> print(UnwrittenError(Path("a.txt"), OSError(errno.ENOSPC, "No space left on device")))
    'a.txt' was not written: No space left on device. Free some space, then start again; what was there before still is
    """

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error), str(path))

    def __str__(self) -> str:
        return (
            f"{self.filename!r} was not written: {self.strerror}. {remedy(self)}, then start again; what was there"
            " before still is"
        )


@contextmanager
def _room(path: Path) -> Iterator[Path]:
    """A new folder beside a path, gone afterwards; a place that can't be written to at all is refused as it is."""
    begun: Path | None = None
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.resolve().name}.", dir=path.resolve().parent) as folder:
            begun = Path(folder)
            yield begun
    except (BrokenPipeError, UnwrittenError):
        raise  # of something else
    except OSError as error:
        if error.errno not in FULL and (begun is None or not _is_about(error, begun, path.resolve())):
            raise
        raise UnwrittenError(path, error) from error


def _is_about(error: OSError, room: Path, path: Path) -> bool:
    """Whether it is about a file in a folder or the path itself; a failed write doesn't say which file it was."""
    if error.filename is None:
        return True
    named = Path(os.fsdecode(error.filename))
    return named in (path, room) or room in named.parents


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write a file to, which gets its name once the block ends well, so an older one is never half replaced.

    What the system refuses meanwhile is an `UnwrittenError`. Behind a link the file is replaced and the link stays. The
    file is on the disk before it has its name.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole(Path(folder, "a.txt")) as place:
    ...         _ = place.write_text("all of it")
    ...     Path(folder, "a.txt").read_text(), len(os.listdir(folder))
    ('all of it', 1)
    """
    # in a folder of its own, because a writer that is interrupted may leave files of any name
    with _room(path) as folder:
        path = path.resolve()
        place = folder / path.name
        yield place
        with open(place, "rb") as written:
            os.fsync(written.fileno())
        place.chmod(0o666 & ~_umask(folder))
        os.replace(place, path)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same for a folder of files: one that is there makes room once the block has ended well.

    Between two renamings there is neither; if the second fails, the older one gets its name back.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole_folder(Path(folder, "new")) as place:
    ...         _ = place.joinpath("a.txt").write_text("all of it")
    ...     Path(folder, "new", "a.txt").read_text(), os.listdir(folder)
    ('all of it', ['new'])
    """
    with _room(path) as room:
        path = path.resolve()
        place, old = room / path.name, room / f"{path.name}.old"
        place.mkdir()
        yield place
        for file in place.iterdir():
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        try:
            if path.exists():
                os.rename(path, old)
            os.rename(place, path)
        except BaseException:  # Ctrl-C too: what makes room lies in a folder that is about to go
            if old.exists() and not path.exists():
                os.rename(old, path)
            raise


def _umask(folder: Path) -> int:
    """What new files are denied. Asking the system for it would change it for other threads for a moment."""
    probe = folder / "umask"
    os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
    return 0o666 & ~probe.stat().st_mode
