"""The command line. Heavy imports wait until a command needs them."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from flopping.groups import Group
    from flopping.verify import Row

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Vision networks that know a mirrored image shows the same thing, and do half the arithmetic.",
)

convert = typer.Typer(no_args_is_help=True, help="Rewrite checkpoints from elsewhere, so that timm loads them by name.")
app.add_typer(convert, name="convert")


class DType(str, Enum):
    float32 = "float32"
    float64 = "float64"


class HandOff(str, Enum):
    hybrid = "hybrid"
    abs = "abs"


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"flopping {version('flopping')}")
        raise typer.Exit


@contextmanager
def _refusals() -> Iterator[None]:
    """What the library refuses is a usage error: a message and exit code 2, no traceback."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise typer.BadParameter(str(error)) from error


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Vision networks that know a mirrored image shows the same thing, and do half the arithmetic."""


@app.command()
def demo() -> None:
    """Check, count and time an equivariant transformer block beside an ordinary one.

    Example: flopping demo
    """
    from flopping.demo import demo as run

    run(Console())


@app.command()
def verify(
    target: Annotated[
        str,
        typer.Argument(
            help="'layers' for all layers of the library, the name of one (Linear), MODULE:ATTRIBUTE or"
            " FILE.py:ATTRIBUTE for your own module or a function that makes it, or a timm model."
        ),
    ],
    group: Annotated[
        str | None, typer.Option(help="Check this group, by default the one the network declares.")
    ] = None,
    img_size: Annotated[
        int | None, typer.Option(min=1, help="Size of the test image, where the network doesn't say.")
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Precision of weights and image.")] = DType.float32,
    tol: Annotated[float | None, typer.Option(help="Largest relative error that passes.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep the weights; else all get random values.")] = False,
    depth: Annotated[int | None, typer.Option(help="Show layers nested this deep, by default 2.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per layer.")] = False,
) -> None:
    """Show the equivariance error of every layer, and name the first that breaks. Exit code 1 if one does.

    Examples: flopping verify layers; flopping verify Attention --group octic; flopping verify my_net.py:build
    """
    import torch

    from flopping.groups import flop, get_group
    from flopping.targets import example_input, load, try_size
    from flopping.testing import group_of, randomize_
    from flopping.verify import first_break, layer_names, verify_layers
    from flopping.verify import verify as run

    precision = getattr(torch, dtype.value)
    with _refusals():
        chosen = None if group is None else get_group(group)
        if target == "layers" or target in layer_names():
            if img_size is not None or as_is or depth is not None:
                raise ValueError(f"--img-size, --as-is and --depth are for networks, got the layer {target!r}")
            rows = verify_layers(layer=None if target == "layers" else target, group=chosen, dtype=precision, tol=tol)
            model = None
        else:
            model = load(target).to(precision)
            x = example_input(model, img_size, precision)
            if img_size is not None:
                try_size(model, x, img_size)
    checked = chosen
    if model is not None:
        checked = chosen or group_of(model) or flop
        rows = run(model if as_is else randomize_(model), x, group=chosen, tol=tol)
        if all(row.passed is None for row in rows):
            typer.echo("Nothing to check: no layer claims to follow a group.", err=True)
            raise typer.Exit(2)
    broken = first_break(rows)
    if json:
        for row in rows:
            error = row.error if row.error is None or isfinite(row.error) else None  # JSON has no infinity
            typer.echo(json_module.dumps({**asdict(row), "error": error, "passed": row.passed}))
    else:
        deepest = 2 if depth is None else depth
        caption = f"checked: {_elements(checked)}" if checked else "checked: each group that a layer supports"
        _print_rows([row for row in rows if row.depth <= deepest or row is broken], broken, len(rows), caption)
    raise typer.Exit(1 if broken else 0)


def _elements(group: Group) -> str:
    """The group and what it does to an image, apart from leaving it alone."""
    moves = ", ".join(group.elements[1:])
    return f"the group {group}" if moves == group.name else f"the group {group} ({moves})"


def _print_rows(rows: list[Row], broken: Row | None, total: int, caption: str) -> None:
    console = Console()
    table = Table("layer", "type", "error", "tolerance", "", caption=caption, caption_justify="left")
    marks = {True: "[green]pass[/green]", False: "[red]FAIL[/red]", None: "no claim"}
    for row in rows:
        error = "" if row.error is None else f"{row.error:.1e}"
        table.add_row(row.name, row.layer, error, f"{row.tolerance:.1e}", marks[row.passed])
    console.print(table)
    if broken is not None:
        where = f"{broken.name} ({broken.layer})"
        console.print(f"[red]The first layer that breaks is {where}, with error {broken.error:.1e}.[/red]")
    else:
        console.print(f"No layer breaks; {len(rows)} of {total} shown.")


@app.command()
def bench_layers(
    width: Annotated[int, typer.Option(help="Channels; heads have 64.")] = 768,
    group: Annotated[str, typer.Option(help="The group of the equivariant layers.")] = "flop",
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Time equivariant layers against ordinary ones, interleaved in one run, in float32.

    Example: flopping bench-layers --repeats 100
    """
    import torch
    from rich.progress import Progress

    from flopping.bench.layers import bench_building, caption
    from flopping.bench.layers import bench_layers as run
    from flopping.groups import get_group

    torch.set_num_threads(threads)
    with _refusals(), Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("eager, then compiled", total=2 * repeats)
        results = [*run(width, get_group(group), repeats=repeats, progress=lambda: bar.advance(task)), bench_building()]
    columns = "layer", "mode", "ordinary ms", "equivariant ms", "speed-up", "goal", ""
    table = Table(*columns, caption=caption(width, repeats), caption_justify="left")
    marks = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}
    for r in results:
        if json:
            typer.echo(json_module.dumps({**asdict(r), "met": r.met}))
        goal = "" if r.bar is None else f"{r.bar:.2f}"
        times = f"{r.ordinary_ms:.2f}", f"{r.equivariant_ms:.2f}", f"{r.speedup:.2f}"
        table.add_row(r.name, r.mode, *times, goal, marks[r.met])
    if not json:
        console = Console()
        console.print(table)
        console.print(f"{threads} threads, torch {torch.__version__}.")


@convert.command("reference")
def convert_reference(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A checkpoint of the paper's code: .pth, .safetensors.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT.safetensors", help="Where the weights go.")],
    num_heads: Annotated[
        int | None, typer.Option(min=1, help="Heads of a transformer whose width is none of the paper's.")
    ] = None,
    img_size: Annotated[
        str | None, typer.Option(metavar="H[,W]", help="Size of images, where the grid of tokens isn't square.")
    ] = None,
    handoff: Annotated[
        HandOff | None, typer.Option(help="What happens before ordinary blocks that follow equivariant ones.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Rewrite a checkpoint of the paper's reference code, and show the line of Python that loads it.

    Example: flopping convert reference vit_s.pth -o vit_s.safetensors
    """
    from flopping.checkpoints import convert_reference as run

    with _refusals():
        made = run(
            source,
            out,
            num_heads=num_heads,
            img_size=None if img_size is None else _size(img_size),
            handoff=None if handoff is None else handoff.value,
            overwrite=force,
        )
    paper = "" if made.paper is None else f"{made.paper}, "
    arguments = f" with {made.arguments}" if made.args else ""
    typer.echo(f"{paper}registered as {made.name}{arguments}.")
    typer.echo("It is loaded, after `import flopping, timm`, by:")
    typer.echo(made.line)


def _size(text: str) -> int | tuple[int, int]:
    """Height and width from `H` or `H,W`."""
    numbers = [int(number) if number.isdecimal() else 0 for number in text.split(",")]
    if len(numbers) > 2 or not all(numbers):
        raise ValueError(f"--img-size is one positive number or two, as in 224 or 224,288; got {text!r}")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])
