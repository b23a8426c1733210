"""`flopping verify` and `flopping count`: a network layer by layer."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import ImgSize, Json, Quiet, app, print_json, progress_console, say

if TYPE_CHECKING:
    from torch import nn

    from flopping.cost.count import Count
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
    img_size: ImgSize = None,
    dtype: Annotated[DType, typer.Option(help="Precision of weights and image.")] = DType.float32,
    tol: Annotated[float | None, typer.Option(min=0.0, help="Largest relative error that passes.")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Keep the weights; else all get random values.")] = False,
    depth: Annotated[int | None, typer.Option(min=0, help="Show layers nested this deep, by default 2.")] = None,
    json: Json = False,
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
    with progress_console(quiet).status("Checking"):
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
        print_json({**asdict(row), "passed": row.passed} for row in rows)
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


@app.command()
def count(
    target: Annotated[
        str,
        typer.Argument(
            help='A model by the paper\'s name, e.g. "E(ViT-S)", or its registered one; MODULE:ATTRIBUTE or'
            " FILE.py:ATTRIBUTE for your own module or a function that makes it."
        ),
    ],
    depth: Annotated[
        int | None, typer.Option(min=0, help="Show layers nested this deep, by default 2; all with --json.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="A training step: forward and backward pass.")] = False,
    batch: Annotated[int, typer.Option(min=1, max=2**20, help="Images that share the work on weights.")] = 1,
    img_size: ImgSize = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show the multiply-adds and FLOPs of every layer, for one image; beside E(X), those of X.

    Examples: flopping count "E(ViT-S)"; flopping count "E(ViT-S)" --train --batch 64; flopping count my_net.py:build
    """
    with progress_console(quiet).status("Counting"):
        model, counted, shape = _count(target, img_size, batch, train)
        ordinary = _ordinary_name(target)
        beside = None if ordinary is None else _count(ordinary, img_size, batch, train)[1]
    found = {"": counted, **counted.layers}
    rows: list[dict[str, Any]] = [  # layers that did something
        {
            "name": name,
            "layer": type(module).__name__,
            "depth": name.count(".") + 1 if name else 0,
            "macs": found[name].macs,
            "flops": found[name].flops,
            "share": found[name].flops / counted.flops if name else 1.0,
        }
        for name, module in model.named_modules()
        if name in found
    ]
    whole, *rows = rows
    deepest = depth if depth is not None or json else 2
    shown = [row for row in rows if deepest is None or row["depth"] <= deepest]
    if json:
        if beside is not None:
            whole |= {"ordinary": ordinary, "ordinary_macs": beside.macs, "ordinary_flops": beside.flops}
            whole["ratio"] = counted.flops / beside.flops
        print_json([*shown, whole])
        return
    step = "A training step" if train else "A forward pass"
    caption = (
        f"{step}, for one image{f' of {batch}' if batch > 1 else ''}, of {shape}, in millions. FLOPs follow the paper:"
        " multiply-adds (MACs) and elementwise work. A layer includes those inside it;"
        f" {len(shown)} of {len(rows)} are shown{', more by --depth' if len(shown) < len(rows) else ''}."
    )
    table = Table("layer", "type", caption=caption, caption_justify="left")
    for name in ("MACs M", "FLOPs M", "share"):
        table.add_column(name, justify="right")
    for row in (*shown, whole):
        if row is whole:
            table.add_section()
        figures = f"{row['macs'] / 1e6:,.2f}", f"{row['flops'] / 1e6:,.2f}", f"{row['share']:.1%}"
        table.add_row(row["name"] or "total", row["layer"], *figures)
    console = Console()
    longest = max((len(row["name"] + row["layer"]) for row in shown), default=0)
    console.width = max(console.width, longest + 50)  # names are never cut
    console.print(table)
    if beside is not None:
        console.print(
            f"{ordinary} has {beside.macs / 1e6:,.2f} M MACs and {beside.flops / 1e6:,.2f} M FLOPs:"
            f" this is {counted.macs / beside.macs:.3f} and {counted.flops / beside.flops:.3f} of it."
        )


def _count(target: str, img_size: int | None, batch: int, train: bool) -> tuple[nn.Module, Count, str]:
    """Load a network without memory for its weights, where that is possible, and count it, for an input of a shape."""
    import torch

    from flopping.cost.count import count as run
    from flopping.errors import as_usage_error, own_code
    from flopping.models.targets import example_input, load_on_meta

    model = load_on_meta(target, img_size)
    x = example_input(model, img_size, torch.float32)
    sizes = tuple(x.shape[1:]) if isinstance(x, torch.Tensor) else tuple(tuple(part.shape[1:]) for part in x)
    context = f"{type(model).__name__} can't be counted for an input of {sizes}"
    kinds = AssertionError, RuntimeError, TypeError, ValueError
    with own_code(context) if ":" in target else as_usage_error(*kinds, context=context):
        return model, run(model, sizes, batch, training=train), " x ".join(map(str, sizes))


def _ordinary_name(target: str) -> str | None:
    """The paper's X of E(X), H(X) and I(X).

    >>> _ordinary_name("e(vit-s)"), _ordinary_name("ViT-S"), _ordinary_name("resnet18")
    ('ViT-S', None, None)
    """
    from flopping.models import names_in_paper, ordinary_twin, registered_name

    twin = None if ":" in target else ordinary_twin(registered_name(target))
    return None if twin is None else names_in_paper()[twin]
