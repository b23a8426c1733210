"""`flopping show`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console, refusals

if TYPE_CHECKING:
    from flopping.show.view import View


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
    html: Annotated[bool, typer.Option("--html", help="A page with the same beside it: FILE.html.")] = False,
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
    average: Annotated[bool, typer.Option("--average", help="The averaged weights (EMA) of a checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The numbers, as one JSON object.")] = False,
    quiet: Quiet = False,
) -> None:
    """Draw what a network makes of an image and of its mirror image: features, attention, and what it says.

    Examples: flopping show butterfly.jpg; flopping show butterfly.jpg --model runs/e-vit-b --html
    """
    with refusals():
        from flopping.bench.drawing import require_matplotlib

        require_matplotlib()
        from flopping.show.files import paths, write
        from flopping.show.picture import open_picture, stem

        files = paths(output or Path(f"{stem(image)}-flopping.png"), html, force)
        picture = open_picture(image)
        with progress_console(quiet).status("looking at the image and its mirror image"):
            from flopping.classifier import open_classifier
            from flopping.show.view import look

            view = look(open_classifier(model, average=average), picture, block=block, channels=channels)
            write(view, image, files)
    if json:
        typer.echo(json_module.dumps({**view.numbers(), "image": image, "files": list(map(str, files))}))
        return
    _print(view)
    typer.echo(f"The picture is {' and '.join(map(str, files))}")


def _print(view: View) -> None:
    """What it says about both, and how far it is from the law."""
    from flopping.show import words

    table = Table("class", caption=words.summary(view), caption_justify="left")
    for name in ("image", "mirror image"):
        table.add_column(name, justify="right")
    for score in view.scores:
        table.add_row(score.label, *map(words.said, score.probabilities, score.logits))
    console = Console()
    console.print(table)
    for what, value in view.numbers()["differences"].items():
        console.print(f"{what}: {words.difference(value)}", highlight=False)
