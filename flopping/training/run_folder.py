"""The folder of a run: one process at a time writes to it, and what an earlier one left half done goes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flopping.lock import locked
from flopping.training.curves import CURVES
from flopping.training.job import RUN
from flopping.training.journal import LOG


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Within it, no other process may train in the folder, which is made if it isn't there.

    Processes that read images don't inherit the lock: they may live on for a moment.
    """
    refusal = "another process ({}) trains in {!r}: wait for its end, or name another folder"
    with locked(folder, lambda holder: refusal.format(holder, str(folder))):
        _tidy(folder)
        yield


def _tidy(folder: Path) -> None:
    """Remove what writers of whole files leave when they are killed."""
    for name in (RUN, LOG, CURVES):
        for leftover in folder.glob(f".{name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)


def is_free(folder: Path) -> bool:
    """Whether a new run may be put there: nothing is in it, or only what a run left that was killed as it began."""
    return not folder.is_dir() or all(entry.name.startswith(".") for entry in folder.iterdir())
