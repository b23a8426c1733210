"""`flopping export` and `flopping convert`: networks as files for others, and from others."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flopping_cli.common import (
    Average,
    Commands,
    Force,
    ImgSize,
    Json,
    Network,
    OwnCode,
    Quiet,
    app,
    print_json,
    progress_console,
    say,
)
from flopping_cli.train import name_network


@app.command()
def export(
    model: Network,
    output: Annotated[
        str, typer.Option("-o", "--output", help="A file that ends in .pt2 or .onnx, or a folder: no suffix, or a /.")
    ],
    batch: Annotated[
        int | None, typer.Option(min=1, help="Take this many images at a time and no others; any number by default.")
    ] = None,
    img_size: ImgSize = None,
    opset: Annotated[int | None, typer.Option(help="Version of ONNX's operators, 18 to 23; 20 by default.")] = None,
    average: Average = False,
    code: OwnCode = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a network as .pt2 (torch.export), .onnx or a folder that timm loads, and check what was written.

    It is read back and compared with the network, on images and mirrored images; if it differs, nothing is written.

    Examples: flopping export runs/last -o model.onnx; flopping export "E(ViT-S)" -o e-vit-s.pt2;
    flopping export runs/last/best -o shared/my-model/ --average
    """
    from flopping.deploy import CheckFailedError, ExportError
    from flopping.deploy import export as write

    try:
        with progress_console(quiet).status("") as status:
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
        print_json([found.as_dict()])
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


convert = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Rewrite checkpoints from elsewhere, so that timm loads them by name."
)
app.add_typer(convert, name="convert")


class HandOff(str, Enum):
    hybrid = "hybrid"
    abs = "abs"


@convert.command("reference")
def convert_reference(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", help="A checkpoint of the paper's code or of octic-vits: .pth, .safetensors."),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUT", help="A folder, or NAME.safetensors for the weights alone.")
    ],
    num_heads: Annotated[
        int | None, typer.Option(min=1, help="Heads of a transformer whose width is none of the paper's.")
    ] = None,
    img_size: Annotated[
        str | None, typer.Option(metavar="H[,W]", help="Size of images, where the grid of tokens isn't square.")
    ] = None,
    handoff: Annotated[
        HandOff | None, typer.Option(help="What happens before ordinary blocks that follow equivariant ones.")
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rewrite a checkpoint of the paper's reference code or of octic-vits, and show the line of Python that loads it.

    Example: flopping convert reference vit_s.pth -o vit_s
    """
    with progress_console(quiet).status("Converting"):
        from flopping.checkpoints import convert_reference as run

        made = run(
            source,
            output,
            num_heads=num_heads,
            img_size=None if img_size is None else _size(img_size),
            handoff=None if handoff is None else handoff.value,
            overwrite=force,
        )
    if json:
        found = {"paper": made.paper, "model": made.name, "arguments": made.args, "line": made.line}
        print_json([{"file": str(output), **found}])
        return
    paper = "" if made.paper is None else f"{made.paper}, "
    arguments = f" with {made.arguments}" if made.args else ""
    typer.echo(f"{paper}registered as {made.name}{arguments}.")
    typer.echo("It is loaded, after `import flopping, timm`, by:")
    typer.echo(made.line)


def _size(text: str) -> int | tuple[int, int]:
    """Height and width from `H` or `H,W`."""
    from flopping.errors import UsageError

    numbers = [int(number) if number.isdecimal() else 0 for number in text.split(",")]
    if len(numbers) > 2 or not all(numbers):
        raise UsageError(f"--img-size is one positive number or two, as in 224 or 224,288; got {text!r}")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
