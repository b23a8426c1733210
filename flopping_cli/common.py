"""What all commands share: the application, their exit codes, and how errors are shown."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from time import sleep
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

INTERRUPTED = 3
"""The exit code of a run that received a signal and saved a checkpoint."""
CTRL_C = 128 + signal.SIGINT
"""The exit code of a command that was interrupted and showed what it had."""
RANK0_SECONDS = 3.0
"""How long other ranks wait for rank 0 to show why all of them end, before they end."""
PANELS = {
    "Use a network": ("demo", "doctor", "models", "predict", "export", "show"),
    "Train and test": ("train", "eval", "recipes", "experiment"),
    "Understand and check": ("count", "verify", "probe", "convert"),
    "Measure": ("bench", "report"),
}
"""The commands in the order of the help: what people do first comes first."""


REFUSED_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EACCES, errno.EROFS)
"""What the system answers to names of files that users typed."""
WORDS = "flopping.words"
"""The words of the command line, in the `meta` of a context."""


class Commands(TyperGroup):
    """Ends a command with a message: exit code 2 for a `UsageError`, 1 when the disk is full while it works or prints.

    The code is also 2 for a file of the command line that the system refuses because of its name or its permissions.
    Any other error is a bug and keeps its traceback.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta.setdefault(WORDS, list(args))  # commands of groups get the rest of them
        try:
            return super().parse_args(ctx, args)
        except OSError as error:  # of the help, which is printed here
            _end_after(error)

    def list_commands(self, ctx: Any) -> list[str]:
        found = super().list_commands(ctx)
        if ctx.parent is not None:
            return found
        for panel, names in PANELS.items():
            for name in set(names) & set(found):
                self.commands[name].rich_help_panel = panel  # type: ignore[attr-defined]
        order = [name for names in PANELS.values() for name in names]
        return sorted(found, key=lambda name: order.index(name) if name in order else len(order))

    def invoke(self, ctx: Any) -> Any:
        _prepare_output()
        try:
            _refuse_empty(ctx.meta[WORDS])
            return super().invoke(ctx)
        except ValueError as error:
            from flopping.errors import UsageError

            if not isinstance(error, UsageError):
                raise
            wait_for_rank0()
            if not is_rank0():
                from flopping.training.distributed import SharedUsageError

                if isinstance(error, SharedUsageError):  # rank 0 has shown it
                    raise typer.Exit(2) from error
            _show_own_code(error)
            raise self._refusal(ctx, str(error)) from error
        except SystemExit as error:  # of a user's own code: the commands themselves raise typer.Exit
            raise self._refusal(ctx, f"own code ended the command: sys.exit({error.code})") from error
        except OSError as error:
            from flopping.errors import describe
            from flopping.files import WriteError

            typed = error.filename is not None and is_typed(os.fsdecode(error.filename), ctx.meta[WORDS])
            if typed and not isinstance(error, WriteError) and error.errno in REFUSED_NAMES:
                wait_for_rank0()
                raise self._refusal(ctx, describe(error)) from error
            _end_after(error)

    def _refusal(self, ctx: Any, text: str) -> typer.BadParameter:
        """A message that shows the usage of the command that was called."""
        name = ctx.invoked_subcommand
        inner = ctx if name is None else typer.Context(self.commands[name], parent=ctx, info_name=name)
        return typer.BadParameter(text, inner)


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse an empty word, as a shell variable without a value leaves it: as a path it would be the current folder."""
    for before, word in zip(("", *words), words, strict=False):
        name, equals, value = word.partition("=")
        if not word or (name.startswith("--") and equals and not value):
            from flopping.errors import UsageError

            name = name or (before if before.startswith("-") else "")
            given = f"{name} ''".strip()
            raise UsageError(f"{given} names nothing: give it a value, or leave it out")


def _end_after(error: OSError) -> NoReturn:
    """End a command whose output or whose files could not be written; any other error keeps its traceback."""
    from flopping.files import DISK_FULL, WriteError

    if not isinstance(error, WriteError) and error.errno not in (*DISK_FULL, errno.EIO):
        raise error  # also BrokenPipeError, which typer handles
    wait_for_rank0()
    if isinstance(error, WriteError):
        say(str(error))
    else:
        _discard_output()
        where = "" if error.filename is None else f" ({error.filename})"
        advice = "Free some space, then start" if error.errno in DISK_FULL else "Start"
        say(
            f"The command stopped: {error.strerror}{where}. {advice} again; earlier results are kept, the last line may"
            " be incomplete"
        )
    raise typer.Exit(1) from error


def _show_own_code(error: BaseException | None) -> None:
    """Show the traceback of an error that a user's own code raised."""
    from flopping.errors import OwnCodeError

    while error is not None and not isinstance(error, OwnCodeError):
        error = error.__cause__
    if error is not None:
        traceback.print_exception(error.__cause__)


def is_typed(path: str, words: Sequence[str]) -> bool:
    """Whether a file was named on the command line, or lies in a folder that was; relative names are the user's, too.

    >>> [is_typed(path, ["train", "--data=/images"]) for path in ("/images/val/a.png", "/usr/lib/a.so", "runs/last")]
    [True, False, True]
    """
    if not os.path.isabs(path):
        return True
    places = [os.path.realpath(word.rpartition("=")[2]) for word in words if word]
    return any(f"{os.path.realpath(path)}{os.sep}".startswith(f"{place}{os.sep}") for place in places)


def _prepare_output() -> None:
    """Make standard output take everything: where it is closed, where it has no character for a text, unbuffered.

    Unbuffered (`python -u`), Python drops what the system doesn't take at once.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.encoding.lower() not in ("utf-8", "utf8"):
        out.reconfigure(errors="backslashreplace")
    if isinstance(getattr(out, "buffer", None), io.RawIOBase):
        sys.stdout = open(out.fileno(), "w", 1, out.encoding, out.errors, closefd=False)  # noqa: SIM115 - until the end


def _discard_output() -> None:
    """Discard the buffer of standard output, which Python would write once more at its end."""
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


Network = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A run, one of its checkpoints, a folder that timm's models save, a model by its registered name or the"
        ' paper\'s ("E(ViT-S)"), or FILE.py:ATTRIBUTE.',
    ),
]
ImgSize = Annotated[
    int | None, typer.Option(min=1, max=8192, help="Size of images, not for checkpoints; by default the network's own.")
]
OwnCode = Annotated[
    str | None,
    typer.Option(
        "--code",
        help="FILE.py:ATTRIBUTE, for a checkpoint whose network is your own code: it runs only if you name it.",
    ),
]
Average = Annotated[bool, typer.Option("--average", help="The averaged weights (EMA) of a checkpoint.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress: only results, warnings and errors.")]


def print_json(rows: Iterable[Mapping[str, object]]) -> None:
    """Print one JSON object per line; NaN and infinity, which JSON doesn't have, are null.

    >>> print_json([{"error": float("inf"), "name": "a"}])
    {"error": null, "name": "a"}
    """
    for row in rows:
        typer.echo(json.dumps(json.loads(json.dumps(row), parse_constant=lambda _: None)))


def progress_console(quiet: bool) -> Console:
    """The console for progress, on standard error; standard output is for results."""
    return Console(stderr=True, quiet=quiet)


def say(text: str | Text, console: Console | None = None) -> None:
    """Print one line without markup on standard error; while a bar is shown, by the bar's console."""
    line = Text(text) if isinstance(text, str) else text
    (console or Console(stderr=True)).print(line, soft_wrap=True)


def stopped(reason: str) -> Text:
    """Why a run stopped, as a line for `say`."""
    return Text.assemble(("The run stopped:", "red"), f" {reason}")


def report_unreadable(images: Sequence[str]) -> None:
    """Name the images that a command left out, and end it with exit code 1."""
    from flopping.errors import pluralize, shorten

    if images:
        one = len(images) == 1
        say(
            f"{pluralize(len(images), 'image')} could not be read and {'was' if one else 'were'} left out:"
            f" {shorten(images)}. Replace {'it' if one else 'them'}"
        )
        raise typer.Exit(1)


def is_rank0() -> bool:
    """Whether this is the only process, or rank 0 of those that `torchrun` started: it reports for all."""
    return os.environ.get("RANK", "0") == "0"


def wait_for_rank0() -> None:
    """Let rank 0 end first: `torchrun` ends all processes as soon as one has ended."""
    if not is_rank0():
        sleep(RANK0_SECONDS)
