"""The command line, one file per subject. Heavy imports wait until a command needs them."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

with suppress(ValueError):  # not in the main thread
    _handler = signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during these imports ends without a traceback

import typer
from rich.console import Console

from flopping_cli import (  # noqa: F401 - they register their commands
    bench,
    doctor,
    experiment,
    explain,
    export,
    models,
    predict,
    report,
    train,
    verify,
)
from flopping_cli.common import Quiet, app, progress_console

__all__ = ["app"]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"flopping {version('flopping')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Vision networks that know a mirrored image shows the same thing, and do half the arithmetic."""


@app.command()
def demo(
    output: Annotated[
        str, typer.Option("-o", "--output", help="A folder for the two runs and the picture; what is there is kept.")
    ] = "flopping-demo",
    quiet: Quiet = False,
) -> None:
    """Train a small vision transformer and its equivariant twin, then show both of them mirrored images (minutes).

    Example: flopping demo -o build/demo
    """
    from flopping.lab.demo import demo as run

    with train.report_end(Console(stderr=True), Path(output), again="the same command"):
        run(Console(), progress_console(quiet), Path(output))


with suppress(ValueError):
    signal.signal(signal.SIGINT, _handler)
