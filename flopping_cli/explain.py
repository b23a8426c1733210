"""`flopping show` and `flopping probe`: what a network does to an image and to its mirror image."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from flopping_cli.common import (
    Average,
    Force,
    ImgSize,
    Json,
    Network,
    OwnCode,
    Quiet,
    app,
    print_json,
    progress_console,
    report_unreadable,
    say,
)
from flopping_cli.train import Device, Root


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


CAPTION = (
    "A, A A = I, A = I: errors, as shares of the variance, on images the fit hasn't seen. Even, odd, neither: shares of"
    " directions, in brackets of variance."
)


@app.command()
def probe(
    target: Network,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A folder of images, with classes or without (if it has val/ in it, those); fashion-mnist; or a name"
            " that timm knows: torch/NAME, hfds/NAME, wds/NAME. Of data by name the test images are taken.",
        ),
    ],
    root: Root = None,
    images: Annotated[
        int, typer.Option(min=4, max=10**9, help="How many images are looked at, chosen at random.")
    ] = 512,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A block or stage by its name in the network, with * and ?; may be repeated. All by default.",
        ),
    ] = None,
    average: Average = False,
    code: OwnCode = None,
    img_size: ImgSize = None,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Images at a time.")] = 32,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Which images and which places in them are chosen.")
    ] = 0,
    device: Device = "auto",
    workers: Annotated[int, typer.Option(min=0, max=256, help="Processes that read images.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.png", help="Draw a figure.")] = None,
    json: Json = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """How equivariant is an ordinary network already? What share of even and odd channels does its task want?

    For every layer, a steering matrix A is fitted to features of images and of their mirror images. Errors are shares
    of the variance, on images that the fit hasn't seen: of A itself, of the nearest A with A A = I, and of A = I. A
    direction is even or odd if at least half of it is predicted by the mirror image.

    Examples: flopping probe runs/vit-s imagenet/ -o probe.png; flopping probe runs/fashion fashion-mnist --json;
    flopping probe my_net.py:build photos/ --layers 'blocks.1?' --images 2000
    """
    from flopping.deploy.classifier import open_classifier
    from flopping.errors import UnreadableDataError, pluralize
    from flopping.files import require_output
    from flopping.lab.drawing import require_matplotlib, save
    from flopping.lab.probe import draw, open_images, read_batches
    from flopping.lab.probe import probe as run
    from flopping.training.distributed import resolve_device

    if output is not None:
        require_output(output, ".png", force)
        require_matplotlib()
    found = open_images(data, root, images, seed)
    classifier = open_classifier(target, average=average, code=code, img_size=img_size, device=resolve_device(device))
    if classifier.trained is False:
        say(f"{target} has no trained weights: this is how it starts")
    number, unreadable = min(images, len(found)), set[str]()
    batches = read_batches(found, classifier.preparation, batch, workers, unreadable)
    try:
        with Progress(console=progress_console(quiet), transient=True) as bar:
            task = bar.add_task("images and mirror images", total=number)
            report = run(
                classifier.model,
                batches,
                number,
                layers=layers or [],
                seed=seed,
                each=lambda done: bar.update(task, completed=done),
            )
    except UnreadableDataError as error:
        say(f"Nothing was probed: {error}")
        raise typer.Exit(1) from error
    title = f"{target} on {pluralize(report.images, 'image')} of {found.name}"
    if output is not None:
        save(draw(report, title), output)
    if json:
        summary = {"model": target, "data": data, "images": report.images, "extra_share": report.extra_share}
        whole = {**summary, "suggested_share": report.suggested_share}
        print_json([*(layer.as_dict() for layer in report.layers), whole])
    else:
        table = Table("layer", box=box.SIMPLE_HEAD, caption=CAPTION, caption_justify="left")
        table.columns[0].overflow = "fold"
        for name in ("A", "A A = I", "A = I", "even %", "odd %", "neither %"):
            table.add_column(name, justify="right", no_wrap=True)
        for layer in report.layers:
            errors = (f"{error:.3f}" for error in (layer.error, layer.involution_error, layer.identity_error))
            shares = zip(layer.counts, layer.variances, strict=True)
            table.add_row(layer.name, *errors, *(f"{100 * count:.0f} ({100 * by:.0f})" for count, by in shares))
        console = Console(highlight=False)
        console.print(Text(title), soft_wrap=True)
        console.print(table)
        console.print(report.verdict())
    report_unreadable(sorted(unreadable))
