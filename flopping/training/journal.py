"""What a run says: a line of JSON per event in its folder, TensorBoard where it is installed, a bar in the terminal."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flopping.whole import whole

LOG = "log.jsonl"


def read_log(run: Path) -> list[dict[str, Any]]:
    """The events of a run, oldest first; a last line that was cut off by a crash is left out."""
    path = run / LOG
    if not path.exists():
        return []
    events = []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise ValueError(f"{str(path)!r}, line {number}: no JSON ({error.msg})") from error
        if not isinstance(event, dict):
            raise ValueError(f"{str(path)!r}, line {number}: no event of a run")
        events.append(event)
    return events


def warn(console: Console, text: str) -> None:
    """A line that is shown by a quiet console, too."""
    was, console.quiet = console.quiet, False
    try:
        console.print(text, highlight=False, soft_wrap=True)
    finally:
        console.quiet = was


class Journal:
    """The events of a run, after so many of them: what an interrupted run wrote beyond is forgotten, and done again."""

    def __init__(self, run: Path, console: Console, steps: int, step: int, events: int, *, speaks: bool) -> None:
        self.run, self.console, self.speaks = run, console, speaks
        self.events = 0
        self.board: Any = None
        if not speaks:
            return
        kept = read_log(run)[:events]
        self.events = len(kept)
        with whole(run / LOG) as place:
            place.write_text("".join(json.dumps(event) + "\n" for event in kept), encoding="utf-8")
        # without a buffer, which would try to write once more when a file is closed that could not be written
        self.file = open(run / LOG, "ab", buffering=0)  # noqa: SIM115 - closed in __exit__
        self.board = _board(run, step)
        self.bar = Progress(
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

    def __enter__(self) -> Journal:
        if self.speaks:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.speaks:
            self.bar.stop()
            self.file.close()
            if self.board is not None:
                self.board.close()

    def write(self, kind: str, step: int, **values: Any) -> None:
        """An event, on the disk before the run goes on."""
        if not self.speaks:
            return
        line = json.dumps({"kind": kind, "step": step, **values}).encode() + b"\n"
        try:
            if self.file.write(line) != len(line):  # the rest of a cut line is forgotten when the run is resumed
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self.file.fileno())
        except OSError as error:
            raise OSError(
                error.errno, f"the log {str(self.run / LOG)!r} could not be written ({error.strerror})"
            ) from error
        self.events += 1
        if self.board is not None:
            for name, value in values.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    self.board.add_scalar(f"{kind}/{name}", value, step)

    def progress(self, step: int, state: str) -> None:
        """Move the bar."""
        if self.speaks:
            self.bar.update(self.task, completed=step, state=state)

    def say(self, text: str) -> None:
        """A line for the person who watches."""
        if self.speaks:
            self.console.print(text, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line that matters even to one who doesn't watch."""
        if self.speaks:
            warn(self.console, text)


def _board(run: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
