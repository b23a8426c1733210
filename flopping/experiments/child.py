"""A command of `flopping` in a process that stops when its parent dies: it watches its standard input."""

from __future__ import annotations

import os
import signal
from threading import Thread


def _watch() -> None:
    while os.read(0, 1024):  # until the parent closes it, or is no more; not by sys.stdin, whose lock forks would copy
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    from flopping_cli import app

    Thread(target=_watch, daemon=True).start()
    app(prog_name="flopping")
