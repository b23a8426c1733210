"""`flopping bench-export`: whether the saving survives export."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console, refusals, say


@app.command()
def bench_export(
    models: Annotated[
        list[str] | None, typer.Argument(help='Names like "E(ViT-S)"; that and "E(ResMLP-S24)" by default.')
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 8,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all cores.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Runs of each before.")] = 3,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    quiet: Quiet = False,
) -> None:
    """Time E(X) against X in ONNX Runtime, interleaved in one process, in float32; graphs are compared with networks.

    Examples: flopping bench-export; flopping bench-export "E(ViT-B)" "I(ViT-B)" --batch 1 --threads 1 --json
    """
    with refusals():
        from flopping.bench.exported import GOAL, compared, pairs
        from flopping.cores import usable_cores
        from flopping.export import CheckFailedError

        chosen = pairs(models or ["E(ViT-S)", "E(ResMLP-S24)"])
        columns = "network", "ms", "twin", "its ms", "speed-up", "95 %", f"{GOAL}x", "MB", "its MB", "difference"
        table = Table(*columns)
        marks = {True: "[green]reached[/green]", False: "[red]missed[/red]"}
        number = threads or usable_cores()
        try:
            with progress_console(quiet).status("") as status:
                options = {"batch": batch, "threads": number, "repeats": repeats, "warmup": warmup}
                for found in compared(chosen, **options, progress=status.update):
                    if json:
                        typer.echo(json_module.dumps(found.as_dict()))
                    speedup = found.speedup
                    table.add_row(
                        found.pair.name,
                        f"{1e3 * found.timing.median:.0f}",
                        found.pair.twin,
                        f"{1e3 * found.twin_timing.median:.0f}",
                        f"{speedup.value:.2f}",
                        f"{speedup.low:.2f} to {speedup.high:.2f}",
                        marks[found.met],
                        f"{found.megabytes:.1f}",
                        f"{found.twin_megabytes:.1f}",
                        f"{found.difference:.0e}",
                    )
        except CheckFailedError as error:
            say(f"An exported graph is not its network: {error}")
            raise typer.Exit(1) from error
    if not json:
        console = Console()
        console.print(table)
        console.print(f"ONNX Runtime, float32, batch {batch}, {number} threads, medians of {repeats} rounds.")
