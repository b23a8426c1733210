"""`flopping models`."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console, refusals

WIDTH = 130
"""Columns that the table needs."""


@app.command()
def models(
    pattern: Annotated[
        str, typer.Argument(help='Which ones: a registered name or one of the paper, with wildcards ("E(*)").')
    ] = "*",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per network.")] = False,
    quiet: Quiet = False,
) -> None:
    """List all networks: the paper's name, the registered name, parameters, FLOPs, and whether the paper's are met.

    Examples: flopping models; flopping models "E(*)"; flopping models "deit3_*" --json
    """
    from rich.progress import Progress

    from flopping.models.zoo import closest
    from flopping.overview import names, notes, rows

    chosen = names(pattern)
    with refusals():
        if not chosen:
            raise ValueError(f"no network fits {pattern!r}{closest(pattern)}")
    with Progress(console=progress_console(quiet), transient=True) as bar:
        task = bar.add_task("counting", total=len(chosen))
        found = list(rows(pattern, lambda: bar.advance(task)))
    marks = {True: "[green]met[/green]", False: "[red]above[/red]", None: ""}
    table = Table(
        "paper",
        "name",
        "params M",
        "(paper)",
        "",
        "FLOPs G",
        "(paper)",
        "",
        "MACs G",
        caption=notes(found),
        caption_justify="left",
    )
    for r in found:
        if json:
            typer.echo(
                json_module.dumps({**asdict(r), "params_met": r.params_met, "flops_met": r.flops_met}, allow_nan=False)
            )
        reported = ("", "") if r.reported is None else (f"{r.reported.params_m}", f"{r.reported.flops_g}")
        table.add_row(
            r.paper,
            r.name,
            f"{r.params / 1e6:.2f}",
            reported[0],
            marks[r.params_met],
            f"{r.flops / 1e9:.3f}",
            reported[1],
            marks[r.flops_met],
            f"{r.macs / 1e9:.3f}",
        )
    if not json:
        console = Console()
        console.width = max(console.width, WIDTH)  # names are never cut
        console.print(table)
