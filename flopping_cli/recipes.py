"""`flopping recipes`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.common import Json, Quiet, app, print_json, show_status

if TYPE_CHECKING:
    from flopping.training.recipe import Recipe


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
    with show_status("Reading recipes", quiet):
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

    def short(name: str) -> str:
        ordinary = ordinary_name(name)
        if name not in results() or ordinary != ordinary_name(recipe.model):
            return name
        return split_name(name)[1]

    return ", ".join(f"{short(name)} {top1:.1f}" for name, top1 in recipe.about.expected.items())
