"""What a run reports: a line of JSON per event, a progress bar, its speed."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from flopping.files import require_regular, write_text

LOG = "log.jsonl"
CURVES = "curves.png"
"""The figure that commands draw of a run."""
SECONDS = 1.0
"""The longest time between two synchronisations of the loss and of requests to stop, if a step takes less."""


def read_log(run: Path, lines: int | None = None) -> list[dict[str, Any]]:
    """The events of a run, oldest first, in the first `lines` of its log. Lines that are no events are ignored."""
    path = run / LOG
    require_regular(path)
    events = []
    for line in path.read_bytes().split(b"\n")[:lines] if path.exists() else ():
        with suppress(ValueError, RecursionError):  # as a crash or a disk leaves them
            event = json.loads(line)
            if isinstance(event, dict) and "kind" in event and isinstance(event.get("step"), int):
                events.append(event)
    return events


def warn(console: Console, text: str) -> None:
    """Show a line, also on a quiet console."""
    was, console.quiet = console.quiet, False
    try:
        console.print(text, highlight=False, soft_wrap=True)
    finally:
        console.quiet = was


class RunLog:
    """Writes the events of a run, after the first `events` that are in its folder; later ones are deleted.

    `enabled` is false on all ranks but one: their logs do nothing.
    """

    def __init__(self, run: Path, console: Console, steps: int, step: int, events: int, *, enabled: bool) -> None:
        self.run, self.console, self.enabled = run, console, enabled
        self.events = 0
        if not enabled:
            return
        kept = read_log(run, events)
        self.events = len(kept)
        if self.events < events:
            warn(
                console,
                f"[yellow]Warning:[/yellow] {events - self.events} lines of {LOG} were damaged and are left out",
            )
        write_text(run / LOG, "".join(json.dumps(event) + "\n" for event in kept))
        # unbuffered: closing a buffered file whose last write failed would write once more
        self.file = open(run / LOG, "ab", buffering=0)  # noqa: SIM115 - closed in __exit__
        self.bar = ProgressBar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=console.quiet or not console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=steps, completed=step, state="")

    def __enter__(self) -> RunLog:
        if self.enabled:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.enabled:
            self.bar.stop()
            self.file.close()

    def write(self, kind: str, step: int, **values: Any) -> None:
        if not self.enabled:
            return
        line = json.dumps({"kind": kind, "step": step, **values}).encode() + b"\n"
        try:
            if self.file.write(line) != len(line):  # resuming ignores the incomplete line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self.file.fileno())
        except OSError as error:
            reason = f"the log {str(self.run / LOG)!r} could not be written ({error.strerror})"
            raise OSError(error.errno, reason) from error
        self.events += 1

    def update_bar(self, step: int, state: str) -> None:
        if self.enabled:
            self.bar.update(self.task, completed=step, state=state)

    def say(self, text: str) -> None:
        """Show a line, unless the console is quiet."""
        if self.enabled:
            self.console.print(text, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Show a line, also on a quiet console."""
        if self.enabled:
            warn(self.console, text)


@dataclass
class Progress:
    """How far a run is; a part of its checkpoints."""

    step: int = 0
    epochs: int = 0
    """Complete epochs, with their tests and checkpoints."""
    events: int = 0
    loss_sum: float = 0.0
    """Over the steps since the last line of the log."""
    losses: int = 0
    epoch_loss: float = 0.0
    """Sum over the steps of the epoch."""
    images: int = 0
    timed_images: int = 0
    timed_seconds: float = 0.0
    """Time of the training steps on `timed_images`: the first step of a process, which compiles, is not timed."""

    def add(self, losses: list[float], images: int) -> None:
        self.step += len(losses)
        self.losses += len(losses)
        for loss in losses:  # one by one, so that rounding doesn't depend on how many there are
            self.loss_sum += loss
            self.epoch_loss += loss
        self.images += images

    @property
    def speed(self) -> float:
        """Images per second."""
        return self.timed_images / self.timed_seconds if self.timed_seconds else 0.0

    def describe_speed(self) -> str:
        """The speed, as the end of a line; nothing before a step was timed.

        >>> Progress().describe_speed(), Progress(timed_images=96, timed_seconds=2.0).describe_speed()
        ('', ', 48 images/s')
        """
        return f", {self.speed:.0f} images/s" if self.speed else ""

    @property
    def seconds(self) -> float:
        """Time of the training so far at this speed."""
        return self.images / self.speed if self.speed else 0.0


@dataclass
class LogInterval:
    """Time since the last line of the log, and the part of it spent waiting for images."""

    images: int = 0
    seconds: float = 0.0
    waiting: float = 0.0


class SyncInterval:
    """Decides after how many steps the losses are read: as many as take a second, at most `most`.

    They are also read at every step that is a multiple of a mark, so that lines of the log don't depend on the speed.

    >>> sync = SyncInterval(10, (4, None))
    >>> [sync.is_due(steps, 8) for steps in (1, 2)], [sync.set(seconds) for seconds in (70.0, 0.3, 0.01)]
    ([True, True], [1, 3, 10])
    >>> [steps for steps in range(1, 11) if sync.is_due(steps, 7)]
    [1, 5, 9, 10]
    """

    def __init__(self, most: int, marks: tuple[int | None, ...]) -> None:
        self.most, self.marks = most, [mark for mark in marks if mark is not None]
        self.steps = 1

    def set(self, seconds: float) -> int:
        """Set the interval by the time of a step, which is the same number on all ranks."""
        self.steps = max(1, min(self.most, int(SECONDS / seconds))) if seconds > 0 else self.most
        return self.steps

    def is_due(self, steps: int, before: int) -> bool:
        """Whether to read the losses of so many steps, with `before` steps before them."""
        return steps >= self.steps or any((before + steps) % mark == 0 for mark in self.marks)
