"""The command line, one file per subject. Heavy imports wait until a command needs them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from flopping.cli import bench, bench_layers, convert, count, models, recipes, report, verify
from flopping.cli.common import app

__all__ = ["app", "bench", "bench_layers", "convert", "count", "models", "recipes", "report", "verify"]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"flopping {version('flopping')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Vision networks that know a mirrored image shows the same thing, and do half the arithmetic."""


@app.command()
def demo() -> None:
    """Check, count and time an equivariant transformer block beside an ordinary one.

    Example: flopping demo
    """
    from flopping.demo import demo as run

    run(Console())
