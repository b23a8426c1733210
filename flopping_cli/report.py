"""`flopping report`."""

from __future__ import annotations

import json as json_module
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flopping_cli.common import Quiet, app, progress_console, show_status

if TYPE_CHECKING:
    from flopping.cost.records import Record


class Format(str, Enum):
    table = "table"
    markdown = "markdown"
    latex = "latex"
    jsonl = "jsonl"


Wide = Annotated[bool, typer.Option("--wide", help="A table with all columns, wider than 80 characters.")]


@app.command()
def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="What `flopping bench -o FILE` wrote."),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="DIR", help="Build a page here: index.html, tables, figures.")
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="What is printed where there is no -o; a table by default.")
    ] = None,
    wide: Wide = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files in DIR that aren't of a report.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
    quiet: Quiet = False,
) -> None:
    """Show saved measurements beside the paper's: as a table, or as a page with figures.

    Examples: flopping report bench.jsonl; flopping report *.jsonl -o report; flopping report a.jsonl --format latex
    """
    from flopping.errors import UsageError, as_usage_error

    form = chosen_format(form, json)
    if out is not None and form is not None:
        raise UsageError(f"--format {form.value} is printed and -o {out} writes all formats: choose one of them")
    if out is None and force:
        raise UsageError("--force is for the folder that -o names")
    with show_status("Reading", quiet):
        from flopping.cost.records import read

        with as_usage_error(OSError):
            records = [record for path in files for record in read(path)]
    if out is None:
        print_rows(records, form or Format.table, wide)
    else:
        _build(records, out, force, quiet)


def chosen_format(form: Format | None, json: bool) -> Format | None:
    """The format that two options ask for."""
    from flopping.errors import UsageError

    if json and form not in (None, Format.jsonl):
        raise UsageError(f"--json is --format jsonl, got --format {form.value} too")
    return Format.jsonl if json else form


def print_rows(records: list[Record], form: Format, wide: bool = False) -> None:
    """Measurements as text on standard output."""
    from flopping.lab.report import tables
    from flopping.lab.report.comparison import compare

    rows = compare(records)
    if form is Format.table:
        tables.show(rows, Console(), wide)
    elif form is Format.jsonl:
        for row in rows:
            typer.echo(json_module.dumps(row.figures, allow_nan=False))
    else:
        write = tables.markdown if form is Format.markdown else tables.latex
        typer.echo(write(rows), nl=False)


def _build(records: list[Record], out: Path, force: bool, quiet: bool) -> None:
    from rich.progress import Progress

    from flopping.lab.drawing import require_matplotlib
    from flopping.lab.report.figures import paper_costs
    from flopping.lab.report.report_folder import PAGE, build, require_folder, write
    from flopping.models.paper import results

    require_matplotlib()
    require_folder(out, force)
    with Progress(console=progress_console(quiet), transient=True) as bar:
        task = bar.add_task("counting the paper's networks", total=len(results()))
        costs = paper_costs(lambda: bar.advance(task))
    write(out, build(records, costs), force)
    typer.echo(f"The report is {out / PAGE}")
