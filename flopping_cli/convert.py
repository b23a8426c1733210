"""`flopping convert`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from flopping_cli.common import Commands, Force, Json, Quiet, app, print_json, show_status

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
    with show_status("Converting", quiet):
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
