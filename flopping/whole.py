"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write a file to, which gets its name once the block ends well, so an older one is never half replaced.

    Behind a link the file is replaced and the link stays. The file is on the disk before it has its name.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with whole(Path(folder, "a.txt")) as place:
    ...         _ = place.write_text("all of it")
    ...     Path(folder, "a.txt").read_text(), len(os.listdir(folder))
    ('all of it', 1)
    """
    path = path.resolve()
    # in a folder of its own, because a writer that is interrupted may leave files of any name
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        place = Path(folder, path.name)
        yield place
        with open(place, "rb") as written:
            os.fsync(written.fileno())
        place.chmod(0o666 & ~_umask(Path(folder)))
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
    path = path.resolve()
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as room:
        place, old = Path(room, path.name), Path(room, f"{path.name}.old")
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
