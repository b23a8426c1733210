"""What all commands share: the application, and how refusals are shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Annotated

import typer
from rich.console import Console

PATIENCE = 3.0
"""Seconds that processes leave to the first one of those that `torchrun` started, to say why all of them end."""

app = typer.Typer(
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


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    """A sign of life while something is done whose steps nobody counts; the first thing may be to import torch."""
    with progress_console(quiet).status(what):
        yield


@contextmanager
def refusals() -> Iterator[None]:
    """What the library refuses is a usage error: a message and exit code 2, no traceback."""
    try:
        yield
    except BrokenPipeError:  # whoever read the results has enough of them: typer ends quietly
        raise
    except (ValueError, TypeError, OSError) as error:
        give_way()  # if the first process refuses the same, this one is ended meanwhile
        raise typer.BadParameter(str(error)) from error


def is_first() -> bool:
    """Whether this process is the only one, or the first of those that `torchrun` started: it speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def give_way() -> None:
    """Let the first process end first: a launcher ends all as soon as one has ended, whoever has yet to speak."""
    if not is_first():
        sleep(PATIENCE)
