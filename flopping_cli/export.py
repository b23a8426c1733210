"""`flopping export`: a network as a file for others."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flopping_cli.common import OwnCode, Quiet, app, progress_console, say
from flopping_cli.train import name_network


@app.command()
def export(
    model: Annotated[
        str,
        typer.Argument(
            help='A run, a checkpoint, the paper\'s name ("E(ViT-S)"), a registered name, FILE.py:ATTRIBUTE.'
        ),
    ],
    output: Annotated[
        str, typer.Option("-o", "--output", help="A file that ends in .pt2 or .onnx, or a folder: no suffix, or a /.")
    ],
    batch: Annotated[
        int | None, typer.Option(min=1, help="Take this many images at a time and no others; any number by default.")
    ] = None,
    img_size: Annotated[int | None, typer.Option(min=1, max=8192, help="Size of images, for a model by name.")] = None,
    opset: Annotated[int | None, typer.Option(help="Version of ONNX's operators, 18 to 23; 20 by default.")] = None,
    average: Annotated[bool, typer.Option("--average", help="Averaged weights (EMA) of a checkpoint.")] = False,
    code: OwnCode = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write a network as .pt2 (torch.export), .onnx or a folder that timm loads, and check what was written.

    It is read back and compared with the network, on images and mirrored images; if it differs, nothing is written.

    Examples: flopping export runs/last -o model.onnx; flopping export "E(ViT-S)" -o e-vit-s.pt2;
    flopping export runs/last/best -o shared/my-model/ --average
    """
    from flopping.deploy import CheckFailedError, ExportError
    from flopping.deploy import export as write

    shown = progress_console(quiet)
    try:
        with shown.status("") as status:
            found = write(
                model,
                output,
                batch=batch,
                opset=opset,
                img_size=img_size,
                average=average,
                code=code,
                force=force,
                progress=lambda text: status.update(escape(text)),
            )
    except (CheckFailedError, ExportError) as error:
        what = f"{output} was not written: " if isinstance(error, CheckFailedError) else ""
        say(f"{what}{error}")
        raise typer.Exit(1) from error
    if json:
        typer.echo(json_module.dumps(found.as_dict()))
        return
    checked = found.checked
    mirrored = f"{checked.mirror_difference:.1e}"
    if not checked.ignores_mirroring:
        mirrored += " (the network has no mirror property)"
    table = Table(show_header=False)
    table.add_row("file", escape(str(found.path)))
    table.add_row("format", found.format)
    table.add_row("network", escape(name_network(found.model)))
    table.add_row("size", f"{found.bytes / 1e6:.1f} MB")
    table.add_row("checked with batches of", ", ".join(map(str, checked.batches)))
    table.add_row("largest difference from the network", f"{checked.difference:.1e} of the largest logit")
    table.add_row("largest difference for mirrored images", mirrored)
    Console().print(table)
