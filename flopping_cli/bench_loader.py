"""`flopping bench-loader`: whether images arrive as fast as a network takes them."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console, refusals
from flopping_cli.train import (
    Changes,
    Chunk,
    Compile,
    Data,
    Device,
    Model,
    RecipeName,
    Root,
    Workers,
    asked_job,
    say_stopped,
)


@app.command()
def bench_loader(
    recipe: RecipeName,
    changes: Changes = None,
    data: Data = "",
    model: Model = "",
    root: Root = None,
    chunk: Chunk = None,
    device: Device = "auto",
    workers: Workers = None,
    compile: Compile = True,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long each of the three is timed.")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Time how fast images are read and augmented, how fast a network trains, and both together.

    Examples: flopping bench-loader deit3_base --model "E(ViT-B)" --data imagenet/;
    flopping bench-loader fashion_vit --data fashion-mnist --workers 0
    """
    from flopping.training.job import Machine
    from flopping.training.loader import default_workers
    from flopping.training.speed import measure
    from flopping.training.stops import StoppedError

    with refusals():
        job = asked_job(recipe, changes, data, model, root, chunk)
        machine = Machine(device, default_workers() if workers is None else workers, compile)
        try:
            found = measure(job, machine, progress_console(quiet), seconds)
        except StoppedError as stop:
            say_stopped(Console(stderr=True), str(stop))
            raise typer.Exit(1) from stop
    if json:
        typer.echo(json_module.dumps(found.as_dict()))
        return
    table = Table("", "images/s", "")
    table.add_row("loader", f"{found.loader:.0f}", f"{found.workers} worker processes, on {found.cores} cores")
    table.add_row("network", f"{found.network:.0f}", f"training steps of {job.model} on images that are there")
    table.add_row("together", f"{found.together:.0f}", f"{100 * found.waiting:.1f} % of the time spent on waiting")
    console = Console()
    console.print(table)
    console.print(found.verdict, highlight=False)
