"""`flopping show`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Average, Force, Json, OwnCode, Quiet, app, print_json, progress_console


@app.command()
def show(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="An image file, or fashion-mnist:NUMBER for one in the package.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="A run, a checkpoint, a network by its name, or FILE.py:ATTRIBUTE. There are no trained weights for"
            " E(X), so by name it is untrained; the law holds for it all the same."
        ),
    ] = "E(ViT-S)",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.png", help="The picture, by default IMAGE's name-flopping.png."),
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            "--block",
            "--layer",
            help="Features and attention of this block, from 0; -1 is the last. By default an"
            " early block's features and the last one's attention.",
        ),
    ] = None,
    channels: Annotated[int, typer.Option(min=1, max=8, help="How many channels of each kind are shown.")] = 3,
    average: Average = False,
    code: OwnCode = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw what a network computes for an image and for its mirror image: features, attention, and the answer.

    Examples: flopping show butterfly.jpg; flopping show butterfly.jpg --model runs/e-vit-b -o seen.png
    """
    from flopping.errors import UsageError
    from flopping.files import require_output
    from flopping.lab.drawing import require_matplotlib, save
    from flopping.lab.show import capture_view, draw, format_difference, open_picture

    stem = image.replace(":", "-") if image.startswith("fashion-mnist:") else Path(image).stem
    output = output or Path(f"{stem}-flopping.png")
    require_output(output, ".png", force)
    require_matplotlib()
    if os.path.realpath(image) == os.path.realpath(output):
        raise UsageError(f"-o {output} is the image itself, which would be lost: name another file")
    picture = open_picture(image)
    with progress_console(quiet).status("looking at the image and its mirror image"):
        from flopping.deploy.classifier import open_classifier

        view = capture_view(open_classifier(model, average=average, code=code), picture, block=block, channels=channels)
        save(draw(view), output)
    if json:
        print_json([{**view.numbers, "image": image, "file": str(output)}])
        return
    table = Table("class", caption=view.summary, caption_justify="left")
    for name in ("image", "mirror image"):
        table.add_column(name, justify="right")
    for score in view.scores:
        table.add_row(score.label, *score.texts)
    console = Console()
    console.print(table)
    for name, value in view.numbers["differences"].items():
        console.print(f"{name}: {format_difference(value)}", highlight=False)
    typer.echo(f"The picture is {output}")
