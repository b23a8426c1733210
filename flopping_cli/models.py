"""`flopping models`."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console

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
    from rich.progress import track

    from flopping.cost.overview import count_network, describe_columns, match_names
    from flopping.errors import UsageError
    from flopping.models.zoo import closest

    chosen = match_names(pattern)
    if not chosen:
        raise UsageError(f"no network fits {pattern!r}{closest(pattern)}")
    shown = track(list(chosen.items()), "counting", console=progress_console(quiet), transient=True)
    found = [count_network(name, paper) for name, paper in shown]
    if json:
        for r in found:
            met = {"params_met": r.params_met, "flops_met": r.flops_met}
            typer.echo(json_module.dumps({**asdict(r), **met}, allow_nan=False))
        return
    marks = {True: "[green]met[/green]", False: "[red]above[/red]", None: ""}
    columns = "paper", "name", "params M", "(paper)", "", "FLOPs G", "(paper)", "", "MACs G"
    table = Table(*columns, caption=describe_columns(found), caption_justify="left")
    for r in found:
        reported = ("", "") if r.reported is None else (f"{r.reported.params_m}", f"{r.reported.flops_g}")
        params = f"{r.params / 1e6:.2f}", reported[0], marks[r.params_met]
        flops = f"{r.flops / 1e9:.3f}", reported[1], marks[r.flops_met]
        table.add_row(r.paper, r.name, *params, *flops, f"{r.macs / 1e9:.3f}")
    console = Console()
    console.width = max(console.width, WIDTH)  # names are never cut
    console.print(table)
