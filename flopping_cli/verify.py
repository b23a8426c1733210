"""`flopping verify`."""

from __future__ import annotations

import json as json_module
from contextlib import nullcontext
from dataclasses import asdict
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Quiet, app, say, show_status

if TYPE_CHECKING:
    from flopping.groups import Group
    from flopping.testing.verify import Row


class DType(str, Enum):
    float32 = "float32"
    float64 = "float64"


@app.command()
def verify(
    target: Annotated[
        str,
        typer.Argument(
            help="'layers' for all layers of the library, the name of one (Linear), MODULE:ATTRIBUTE or"
            " FILE.py:ATTRIBUTE for your own module or a function that makes it, or a model by its registered name"
            ' or the paper\'s, e.g. "E(ViT-S)".'
        ),
    ],
    group: Annotated[
        str | None, typer.Option(help="Check this group, by default the one the network declares.")
    ] = None,
    img_size: Annotated[
        int | None, typer.Option(min=1, max=8192, help="Size of the test image, where the network doesn't say.")
    ] = None,
    dtype: Annotated[DType, typer.Option(help="Precision of weights and image.")] = DType.float32,
    tol: Annotated[float | None, typer.Option(min=0.0, help="Largest relative error that passes.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep the weights; else all get random values.")] = False,
    depth: Annotated[int | None, typer.Option(min=0, help="Show layers nested this deep, by default 2.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per layer.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show the equivariance error of every layer, and name the first that breaks. Exit code 1 if one does.

    Examples: flopping verify layers; flopping verify Attention --group octic; flopping verify my_net.py:build
    """
    import torch

    from flopping.errors import UsageError, as_usage_error, own_code
    from flopping.groups import flop, get_group
    from flopping.models.targets import example_input, load
    from flopping.testing import group_of, randomize_
    from flopping.testing import run as run_model
    from flopping.testing.cases import LAYERS
    from flopping.testing.verify import first_break, verify_layers
    from flopping.testing.verify import verify as run

    if tol is not None and not isfinite(tol):
        raise UsageError(f"--tol is a number of 0 or more, got {tol}")
    precision = getattr(torch, dtype.value)
    with show_status("Checking", quiet):
        checked = None if group is None else get_group(group)
        if checked is not None and len(checked.elements) == 1:
            raise UsageError(f"--group {group} moves nothing, so there is nothing to check: name another group")
        if target in ("ToRegular", "Concat"):
            raise UsageError(f"{target} gives up the group: its result follows none, so there is nothing to check")
        if target == "layers" or target in LAYERS:
            if img_size is not None or as_is or depth is not None:
                raise UsageError(f"--img-size, --as-is and --depth are for networks, got the layer {target!r}")
            layer = None if target == "layers" else target
            rows = verify_layers(layer=layer, group=checked, dtype=precision, tol=tol)
        else:
            model = load(target, layers=LAYERS).to(precision)
            kinds = AssertionError, MemoryError, OverflowError, RuntimeError, TypeError, ValueError
            refuses = f"{type(model).__name__} refuses --img-size {img_size}"
            with (
                own_code(f"{target!r} can't be run") if ":" in target else nullcontext(),
                as_usage_error(*kinds if img_size is not None else (), context=refuses),
            ):
                x = example_input(model, img_size, precision)
                run_model(model, x)
            model = model if as_is else randomize_(model)
            # a group that is asked for may turn the image to a shape that the network, which takes x, refuses
            refuses = f"{type(model).__name__} can't be checked for {checked}"
            with as_usage_error(*kinds if checked is not None else (), context=refuses):
                rows = run(model, x, group=checked, tol=tol)
            checked = checked or group_of(model) or flop
    if all(row.passed is None for row in rows):
        say("Nothing to check: no layer claims to follow a group.")
        raise typer.Exit(2)
    broken = first_break(rows)
    if json:
        for row in rows:
            error = row.error if row.error is None or isfinite(row.error) else None  # JSON has no infinity
            typer.echo(json_module.dumps({**asdict(row), "error": error, "passed": row.passed}))
    else:
        deepest = 2 if depth is None else depth
        caption = f"checked: {_elements(checked)}" if checked else "checked: all groups of the pixel grid"
        _print_rows([row for row in rows if row.depth <= deepest or row is broken], broken, len(rows), caption)
    raise typer.Exit(1 if broken else 0)


def _elements(group: Group) -> str:
    """The group and what it does to an image, apart from leaving it alone."""
    moves = ", ".join(group.elements[1:])
    return f"the group {group}" if moves == group.name else f"the group {group} ({moves})"


def _print_rows(rows: list[Row], broken: Row | None, total: int, caption: str) -> None:
    console = Console()
    table = Table("layer", "type", "error", "tolerance", "result", caption=caption, caption_justify="left")
    marks = {True: "[green]pass[/green]", False: "[red]FAIL[/red]", None: "no claim"}
    for row in rows:
        error = "" if row.error is None else f"{row.error:.1e}"
        table.add_row(row.name, row.layer, error, f"{row.tolerance:.1e}", marks[row.passed])
    console.print(table)
    if broken is not None:
        where = f"{broken.name} ({broken.layer})"
        console.print(f"[red]The first layer that breaks is {where}, with error {broken.error:.1e}.[/red]")
    else:
        whole = "" if rows[-1].passed is not None else " The whole claims nothing: a hand-off gave the group up."
        more = ", more by --depth" if len(rows) < total else ""
        console.print(f"No layer breaks; {len(rows)} of {total} shown{more}.{whole}")
