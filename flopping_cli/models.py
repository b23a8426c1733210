"""`flopping models` and `flopping recipes`: what the package has."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Json, Quiet, app, print_json, progress_console

if TYPE_CHECKING:
    from flopping.training.recipe import Recipe


@app.command()
def models(
    pattern: Annotated[
        str, typer.Argument(help='Which ones: a registered name or one of the paper, with wildcards ("E(*)").')
    ] = "*",
    group: Annotated[str | None, typer.Option(help="Only networks whose first block follows this group.")] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Also MACs, and the published figures: 120 columns.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List all networks by group: the paper's name, the registered name, parameters and FLOPs.

    Examples: flopping models; flopping models "E(*)" --wide; flopping models --group octic --json
    """
    with progress_console(quiet).status("Reading figures"):
        from flopping.cost.overview import describe_columns, first_group, match_names, network_row
        from flopping.errors import UsageError
        from flopping.groups import get_group, grid_groups
        from flopping.models.zoo import closest

    chosen = match_names(pattern)
    if not chosen:
        raise UsageError(f"no network fits {pattern!r}{closest(pattern)}")
    if group is not None:
        wanted = get_group(group).name
        chosen = {name: paper for name, paper in chosen.items() if first_group(name) == wanted}
        if not chosen:
            raise UsageError(f"no network that fits {pattern!r} follows {group}; without --group there are some")
    found = [network_row(name, paper) for name, paper in chosen.items()]
    if json:
        more = ("group", "params_met", "flops_met")
        print_json(asdict(r) | {name: getattr(r, name) for name in more} for r in found)
        return
    marks = {True: "[green]met[/green]", False: "[red]above[/red]", None: ""}
    columns = ["name", "registered name", "params M", "FLOPs G"]
    columns += ["MACs G", "published M", "", "published G", ""] if wide else []
    table = Table(box=None, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="left" if place < 2 else "right", header_style="bold")
    order = list(grid_groups())
    found.sort(key=lambda r: (order.index(r.group), r.family))
    for name, rows in groupby(found, attrgetter("group")):
        table.add_row(f"[bold]{name}[/bold]")
        for r in rows:
            p = r.reported
            figures = (None, None) if p is None else (p.params_m, p.flops_g)
            reported = ["" if p is None or n is None else f"{n:.{p.digits}f}" for n in figures]
            cells = [f"{r.params / 1e6:.2f}", f"{r.flops / 1e9:.3f}", f"{r.macs / 1e9:.3f}"]
            cells += [reported[0], marks[r.params_met], reported[1], marks[r.flops_met]]
            table.add_row((r.paper or "").removeprefix(f"{name} "), r.name, *cells[: len(columns) - 2])
        table.add_section()
    console = Console()
    console.width = max(console.width, 120 if wide else 80)  # names are never cut
    console.print(table)
    console.print(describe_columns(found, wide), highlight=False)


@app.command()
def recipes(
    name: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="One of them, or a file of yours that ends in .yaml.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Fields to change, as for `flopping train`.")
    ] = None,
    fields: Annotated[bool, typer.Option("--fields", help="What fields a recipe has, and what they mean.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="More columns, for 120 characters.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the recipes for training, or show one as YAML, checked and with fields changed.

    Examples: flopping recipes; flopping recipes deit3_base; flopping recipes mine.yaml lr=1e-3 epochs=100;
    flopping recipes --fields
    """
    with progress_console(quiet).status("Reading recipes"):
        from flopping.errors import UsageError
        from flopping.training.recipe import documentation, load, names, text_of

    if fields and name is not None:
        raise UsageError(f"--fields is about all recipes, got {name!r} too")
    columns = "field", "default", "meaning"
    if fields and json:
        print_json(dict(zip(columns, row, strict=True)) for row in documentation())
    elif fields:
        table = Table(*columns, caption="Without a default: must be given.", caption_justify="left")
        for row in documentation():
            table.add_row(*row)
        Console().print(table)
    else:
        chosen = names() if name is None else [name]
        found = {each: load(each).override(changes or ()) for each in chosen}
        if json:
            print_json({"recipe": each, **asdict(recipe)} for each, recipe in found.items())
        elif name is None:
            _list(found, wide)
        else:
            typer.echo(found[name].to_yaml() if changes else text_of(name), nl=False)


def _list(found: dict[str, Recipe], wide: bool) -> None:
    caption = "X is an ordinary network; E, H and I are its twins."
    more = ("network", "batch", "optimizer") if wide else ()
    table = Table("recipe", *more, "epochs", "lr", "expected top-1 %", caption=caption, caption_justify="left")
    for name, r in found.items():
        cells = (r.model or "any", str(r.batch_size), r.optimizer) if wide else ()
        table.add_row(name, *cells, str(r.epochs), f"{r.lr:g}", _accuracies(r))
    Console().print(table)


def _accuracies(recipe: Recipe) -> str:
    """X 83.1, E 82.2: twins of the recipe's own network by their letters, others by their names."""
    from flopping.models.paper import ordinary_name, results, split_name

    own = ordinary_name(recipe.model)
    letters = {name: split_name(name)[1] for name in results() if ordinary_name(name) == own}
    return ", ".join(f"{letters.get(name, name)} {top1:.1f}" for name, top1 in recipe.about.expected.items())
