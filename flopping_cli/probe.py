"""`flopping probe`."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from flopping_cli.common import Quiet, app, progress_console, report_unreadable, say
from flopping_cli.train import Device, Root, Workers

if TYPE_CHECKING:
    from flopping.lab.probe import Report

FORMATS = (".png", ".svg")


@app.command()
def probe(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run, one of its checkpoints, a folder that timm's models save, a model's name, or"
            " FILE.py:ATTRIBUTE.",
        ),
    ],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A folder of images, with classes or without (if it has val/ in it, those); fashion-mnist; or a name"
            " that timm knows: torch/NAME, hfds/NAME, wds/NAME. Of data by name the test images are taken.",
        ),
    ],
    root: Root = None,
    images: Annotated[int, typer.Option(min=4, help="How many images are looked at, chosen at random.")] = 512,
    layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A layer by its name in the network, with * and ?; may be repeated. By default all blocks.",
        ),
    ] = None,
    average: Annotated[bool, typer.Option("--average", help="The averaged weights (EMA) of a checkpoint.")] = False,
    img_size: Annotated[
        int | None, typer.Option(min=1, help="Size of images, for models by name that take one size.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 32,
    seed: Annotated[int, typer.Option(help="Which images and which places in them are chosen.")] = 0,
    device: Device = "auto",
    workers: Workers = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Draw a figure: FILE.png or FILE.svg.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object per layer, with all correlations; the whole network last.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a figure that is there.")] = False,
    quiet: Quiet = False,
) -> None:
    """How equivariant is an ordinary network already? What share of even and odd channels does its task want?

    For every layer, a steering matrix A is fitted to features of images and of their mirror images. Errors are shares
    of the variance, on images that the fit hasn't seen: of A itself, of the nearest A with A A = I, and of A = I. A
    direction is even or odd if at least half of it is predicted by the mirror image.

    Examples: flopping probe runs/vit-s imagenet/ -o probe.png; flopping probe runs/fashion fashion-mnist --json;
    flopping probe my_net.py:build photos/ --layers 'stages.2.*' --images 2000
    """
    from flopping.deploy.classifier import open_classifier
    from flopping.errors import UnreadableDataError, UsageError
    from flopping.files import atomic_write, require_writable, suffix_of
    from flopping.lab.drawing import render, require_matplotlib
    from flopping.lab.probe import probe as run
    from flopping.lab.probe.figure import draw
    from flopping.lab.probe.images import ImageBatches, open_images
    from flopping.training.distributed import resolve_device

    if output is not None:
        suffix = suffix_of(output, FORMATS)
        if suffix not in FORMATS:
            raise UsageError(f"a figure is FILE{' or FILE'.join(FORMATS)}, got {str(output)!r}")
        require_writable(output, force)
        require_matplotlib()
    found = open_images(data, root, images, seed)
    classifier = open_classifier(target, average=average, img_size=img_size, device=resolve_device(device))
    if classifier.trained is False:
        say(f"{target} has no trained weights: this is how it starts")
    number = min(images, len(found))
    batches = ImageBatches(found, classifier.preparation, batch, workers or 0)
    try:
        with Progress(console=progress_console(quiet), transient=True) as bar:
            task = bar.add_task("images and mirror images", total=number)

            def show(done: int) -> None:
                bar.update(task, completed=done)

            report = run(classifier.model, batches, number, layers=layers or [], seed=seed, each=show)
    except UnreadableDataError as error:
        say(f"Nothing was probed: {error}")
        raise typer.Exit(1) from error
    title = f"{target} on {report.images} images of {found.name}"
    if output is not None:
        content = render(draw(report, title), suffix.removeprefix("."))
        with atomic_write(output) as place:
            place.write_bytes(content)
    if json:
        for layer in report.layers:
            typer.echo(json_module.dumps(layer.as_dict()))
        summary = {"model": target, "data": data, "images": report.images, "invariant_share": report.invariant_share}
        typer.echo(json_module.dumps({**summary, "suggested_share": report.suggested_share}))
    else:
        _print(report, title)
    report_unreadable(batches.unreadable)


def _print(report: Report, title: str) -> None:
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = (
        "Errors of A f, of A with A A = I, and of A = I: shares of the variance, on images the fit hasn't seen. Even"
        " and odd: shares of directions, in brackets of variance."
    )
    table.add_column("layer")
    for name in ("channels", "A", "A A = I", "A = I", "even", "odd", "neither"):
        table.add_column(name, justify="right")
    for layer in report.layers:
        dead = f" ({layer.live} live)" if layer.live < layer.channels else ""
        errors = layer.error, layer.involution_error, layer.identity_error
        shares = zip(layer.counts, layer.variances, strict=True)
        table.add_row(
            layer.name,
            f"{layer.channels}{dead}",
            *(f"{error:.3f}" for error in errors),
            *(f"{count:.0%} ({variance:.0%})" for count, variance in shares),
        )
    console = Console()
    console.width = max(console.width, 100)
    console.print(table, highlight=False)
    console.print(report.verdict(), highlight=False, soft_wrap=True)
