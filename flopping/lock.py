"""One process at a time works in a folder."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

LOCK = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""How file systems without locks answer."""
_HELD = (errno.EACCES, errno.EAGAIN)
"""And how one answers whose lock another process has."""


@contextmanager
def locked(
    folder: Path,
    refusal: Callable[[str], str],
    *,
    inherited: bool = False,
    patience: float = 0.0,
    waits: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """Within it, no other process may lock the folder, which is made if it isn't there.

    The lock is the kernel's: it ends with the process, however that ends. Only if it is to be `inherited`, those that
    it starts and gives the handle to keep it until all of them have ended. The file stays, with the number of the
    process that held it last, which `refusal` is told if it still does after so many seconds of `patience`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = fcntl.flock if inherited else fcntl.lockf
    deadline, first = monotonic() + patience, True
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    break
                if error.errno not in _HELD:
                    raise
                if monotonic() >= deadline:
                    holder = os.pread(handle, 100, 0).decode(errors="replace").strip()
                    raise ValueError(refusal(holder or "just started")) from error
            if first:
                waits()
                first = False
            sleep(0.2)
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield handle
    finally:
        os.close(handle)
