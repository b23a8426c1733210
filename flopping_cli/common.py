"""What all commands share: the application, and how refusals are shown."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import sleep
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

CTRL_C = 128 + signal.SIGINT
"""The exit code of a command that was interrupted, and had something to show for it."""
PATIENCE = 3.0
"""Seconds that processes leave to the first one of those that `torchrun` started, to say why all of them end."""


class Commands(TyperGroup):
    """A disk that fills up while a command works, or prints its results, ends it with a message and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        _buffer_output()
        try:
            return super().invoke(ctx)
        except OSError as error:
            if isinstance(error, BrokenPipeError) or not _midway(error):
                raise  # whoever read the results has enough of them: typer ends quietly
            from flopping.whole import FULL, UnwrittenError

            give_way()
            if isinstance(error, UnwrittenError):
                say(str(error))
            else:
                _forget_output()
                where = "" if error.filename is None else f" ({error.filename})"
                advice = "Free some space, then start" if error.errno in FULL else "Start"
                say(
                    f"The command stopped: {error.strerror}{where}. {advice} again; of its results there is what was"
                    " written before, and the last line may be cut"
                )
            raise typer.Exit(1) from error


def _midway(error: OSError) -> bool:
    """Whether this is the end of work that had begun, and not its refusal."""
    from flopping.whole import FULL, UnwrittenError

    return isinstance(error, (UnwrittenError, BrokenPipeError)) or error.errno in (*FULL, errno.EIO)


def _buffer_output() -> None:
    """Lose no result in silence: unbuffered (`python -u`), Python forgets what the system doesn't take at once."""
    out = sys.stdout
    if isinstance(getattr(out, "buffer", None), io.RawIOBase):
        sys.stdout = open(out.fileno(), "w", 1, out.encoding, out.errors, closefd=False)  # noqa: SIM115 - until the end


def _forget_output() -> None:
    """Give up what standard output still holds: Python would try to write it once more, and complain."""
    with suppress(OSError):  # a test's output is no file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Vision networks that know a mirrored image shows the same thing, and do half the arithmetic.",
)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress: only results, warnings and errors.")]


def progress_console(quiet: bool) -> Console:
    """Where progress is shown: standard error, so that standard output has nothing but results.

    Warnings and errors are shown by a console that is never quiet.
    """
    return Console(stderr=True, quiet=quiet)


def say(text: str | Text, console: Console | None = None) -> None:
    """Say something on standard error, as it stands: one line, no markup; quiet or not.

    While progress is shown, its own console has to say it, which knows where the bar is.
    """
    line = Text(text) if isinstance(text, str) else text
    (console or Console(stderr=True)).print(line, soft_wrap=True)


def left_out(unreadable: Sequence[str]) -> None:
    """Name images that a command had to do without: then its exit code is 1."""
    from flopping.wording import counted, some

    if unreadable:
        one = len(unreadable) == 1
        say(
            f"{counted(len(unreadable), 'image')} could not be read and {'was' if one else 'were'} left out:"
            f" {some(unreadable)}. Replace {'it' if one else 'them'}"
        )
        raise typer.Exit(1)


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    """A sign of life while something is done whose steps nobody counts; the first thing may be to import torch."""
    with progress_console(quiet).status(what):
        yield


@contextmanager
def refusals() -> Iterator[None]:
    """What the library refuses is a usage error: a message and exit code 2, no traceback.

    What the system refuses while the work is done is none: see `Commands`.
    """
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        if isinstance(error, OSError) and _midway(error):
            raise
        give_way()  # if the first process refuses the same, this one is ended meanwhile
        raise typer.BadParameter(_plainly(error)) from error


def _plainly(error: Exception) -> str:
    """A refusal in words; the system's own begin with a number that says nothing.

    >>> _plainly(FileNotFoundError(2, "No such file or directory", "a.txt"))
    "'a.txt': No such file or directory"
    """
    if type(error).__str__ is OSError.__str__ and isinstance(error, OSError) and error.filename is not None:
        return f"{str(error.filename)!r}: {error.strerror}"
    return str(error)


def is_first() -> bool:
    """Whether this process is the only one, or the first of those that `torchrun` started: it speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def give_way() -> None:
    """Let the first process end first: a launcher ends all as soon as one has ended, whoever has yet to speak."""
    if not is_first():
        sleep(PATIENCE)
