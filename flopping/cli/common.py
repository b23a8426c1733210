"""What all commands share: the application, and how refusals are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Vision networks that know a mirrored image shows the same thing, and do half the arithmetic.",
)


@contextmanager
def refusals() -> Iterator[None]:
    """What the library refuses is a usage error: a message and exit code 2, no traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
