"""The folder of a run: one process at a time writes to it, and what an earlier one left half done goes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flopping.training.curves import CURVES
from flopping.training.job import RUN
from flopping.training.journal import LOG

LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""How file systems without locks answer."""


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Within it, no other process may train in the folder, which is made if it isn't there.

    The lock is the kernel's: it ends with the process, however that ends, and processes that read images don't inherit
    it. The file stays, with the number of the process that held it last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = os.read(handle, 100).decode(errors="replace").strip()
                raise ValueError(
                    f"another process ({holder or 'just started'}) trains in {str(folder)!r}: wait for its end, or name"
                    " another folder"
                ) from error
            if error.errno not in _NO_LOCKS:
                raise
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()} on {os.uname().nodename}\n".encode())
        _tidy(folder)
        yield
    finally:
        os.close(handle)


def _tidy(folder: Path) -> None:
    """Remove what writers of whole files leave when they are killed."""
    for name in (RUN, LOG, CURVES):
        for leftover in folder.glob(f".{name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)


def is_free(folder: Path) -> bool:
    """Whether a new run may be put there: nothing is in it, or only what a run left that was killed as it began."""
    return not folder.is_dir() or all(entry.name.startswith(".") for entry in folder.iterdir())
