"""`flopping models`."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console


@app.command()
def models(
    pattern: Annotated[
        str, typer.Argument(help='Which ones: a registered name or one of the paper, with wildcards ("E(*)").')
    ] = "*",
    group: Annotated[str | None, typer.Option(help="Only networks whose first block follows this group.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Also MACs, and the published figures: 120 columns.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per network.")] = False,
    quiet: Quiet = False,
) -> None:
    """List all networks by group: the paper's name, the registered name, parameters and FLOPs.

    Examples: flopping models; flopping models "E(*)" --wide; flopping models --group octic --json
    """
    from rich.progress import track

    from flopping.cost.overview import describe_columns, group_of, match_names, network_row
    from flopping.errors import UsageError
    from flopping.groups import get_group, grid_groups
    from flopping.models.zoo import closest

    chosen = match_names(pattern)
    if not chosen:
        raise UsageError(f"no network fits {pattern!r}{closest(pattern)}")
    if group is not None:
        wanted = get_group(group).name
        chosen = {name: paper for name, paper in chosen.items() if group_of(name) == wanted}
        if not chosen:
            raise UsageError(f"no network that fits {pattern!r} follows {group}; without --group there are some")
    shown = track(list(chosen.items()), "counting", console=progress_console(quiet), transient=True)
    found = [network_row(name, paper) for name, paper in shown]
    if json:
        for r in found:
            more = {"group": r.group, "params_met": r.params_met, "flops_met": r.flops_met}
            typer.echo(json_module.dumps({**asdict(r), **more}, allow_nan=False))
        return
    marks = {True: "[green]met[/green]", False: "[red]above[/red]", None: ""}
    columns = ["name", "registered name", "params M", "FLOPs G"]
    columns += ["MACs G", "published M", "", "published G", ""] if wide else []
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="left" if place < 2 else "right", header_style="bold")
    order = list(grid_groups())
    found.sort(key=lambda r: (order.index(r.group), r.family))
    for name, rows in groupby(found, attrgetter("group")):
        table.add_row(f"[bold]{name}[/bold]")
        for r in rows:
            p = r.reported
            figures = (None, None) if p is None else (p.params_m, p.flops_g)
            reported = ["" if p is None or n is None else f"{n:.{p.digits}f}" for n in figures]
            cells = [f"{r.params / 1e6:.2f}", f"{r.flops / 1e9:.3f}", f"{r.macs / 1e9:.3f}"]
            cells += [reported[0], marks[r.params_met], reported[1], marks[r.flops_met]]
            table.add_row((r.paper or "").removeprefix(f"{name} "), r.name, *cells[: len(columns) - 2])
        table.add_section()
    console = Console()
    console.width = max(console.width, 120 if wide else 80)  # names are never cut
    console.print(table)
    console.print(describe_columns(found), highlight=False)
