"""Files that are written whole or not at all."""

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


def _umask(folder: Path) -> int:
    """What new files are denied. Asking the system for it would change it for other threads for a moment."""
    probe = folder / "umask"
    os.close(os.open(probe, os.O_CREAT | os.O_WRONLY, 0o666))
    return 0o666 & ~probe.stat().st_mode
