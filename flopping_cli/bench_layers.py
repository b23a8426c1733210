"""`flopping bench-layers`: single layers side by side."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console, refusals


@app.command()
def bench_layers(
    width: Annotated[int, typer.Option(help="Channels; heads have 64.")] = 768,
    group: Annotated[str, typer.Option(help="The group of the equivariant layers.")] = "flop",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    quiet: Quiet = False,
) -> None:
    """Time equivariant layers against ordinary ones, interleaved in one run, in float32.

    Example: flopping bench-layers --repeats 100
    """
    import torch
    from rich.progress import Progress

    from flopping.bench.layers import bench_building, caption
    from flopping.bench.layers import bench_layers as run
    from flopping.groups import get_group

    torch.set_num_threads(threads)
    with refusals(), Progress(console=progress_console(quiet), transient=True) as bar:
        task = bar.add_task("eager, then compiled", total=2 * repeats)
        results = [*run(width, get_group(group), repeats=repeats, progress=lambda: bar.advance(task)), bench_building()]
    columns = "name", "mode", "ordinary ms", "equivariant ms", "speed-up", "goal", ""
    table = Table(*columns, caption=caption(width, repeats), caption_justify="left")
    marks = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}
    for r in results:
        if json:
            typer.echo(json_module.dumps({**asdict(r), "met": r.met}))
        goal = "" if r.bar is None else f"{r.bar:.2f}"
        times = f"{r.ordinary_ms:.2f}", f"{r.equivariant_ms:.2f}", f"{r.speedup:.2f}"
        table.add_row(r.name, r.mode, *times, goal, marks[r.met])
    if not json:
        console = Console()
        console.print(table)
        console.print(f"{threads} threads, torch {torch.__version__}.")
