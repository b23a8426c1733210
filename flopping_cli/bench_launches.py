"""`flopping bench launches`: kernels that a forward pass launches, and bytes that they move."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.bench import bench
from flopping_cli.common import Quiet, show_status


@bench.command()
def launches(
    models: Annotated[list[str] | None, typer.Argument(help='Names like "E(ViT-S)", which is the default.')] = None,
    batch: Annotated[int, typer.Option(min=1, max=2**20, help="Images in a batch.")] = 8,
    compile: Annotated[bool, typer.Option(help="Also what torch's compiler makes of it: a minute.")] = True,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    quiet: Quiet = False,
) -> None:
    """Count kernels and bytes of one forward pass of E(X), in its inference form, beside those of X.

    Counted are the operations of torch that run, and the kernels that its compiler makes of a block, for this device.

    Examples: flopping bench launches; flopping bench launches "E(ResMLP-S24)" --no-compile
    """
    from flopping.lab.bench.launches import count_launches

    with show_status("Counting", quiet):
        rows = [row for name in models or ["E(ViT-S)"] for row in count_launches(name, batch, compile)]
    if json:
        for row in rows:
            typer.echo(json_module.dumps(row._asdict()))
        return
    table = Table("network", "mode", caption=f"Bytes are of float32, for a batch of {batch}.", caption_justify="left")
    for name in ("launches", "of X", "MB per block", "of X"):
        table.add_column(name, justify="right")
    for row in rows:
        share, moved = f"{row.launches / row.x_launches:.2f}", f"{row.bytes / row.x_bytes:.2f}"
        table.add_row(row.name, row.mode, str(row.launches), share, f"{row.bytes / 1e6:.1f}", moved)
    Console().print(table)
