"""`flopping report`, and the table of records that `flopping bench` shows, too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flopping_cli.common import Force, Json, Quiet, app, print_json, progress_console

if TYPE_CHECKING:
    from flopping.cost.records import Record


Wide = Annotated[bool, typer.Option("--wide", help="A table with all columns, wider than 80 characters.")]


@app.command()
def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="What `flopping bench -o FILE` wrote."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.md", help="Write a page; its figure comes beside it.")
    ] = None,
    wide: Wide = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show saved measurements beside the paper's: as a table, or as a page with a figure.

    Examples: flopping report bench.jsonl; flopping report *.jsonl -o report.md; flopping report a.jsonl --json
    """
    from flopping.errors import UsageError, as_usage_error

    if output is not None and json:
        raise UsageError(f"--json prints, and -o {output} writes a page: choose one of them")
    if output is None and force:
        raise UsageError("--force is for the page that -o names")
    with progress_console(quiet).status("Reading"):
        from flopping.cost.records import read
        from flopping.lab.report.comparison import compare

        with as_usage_error(OSError):
            records = [record for path in files for record in read(path)]
    if output is None:
        if json:
            print_json(row.figures for row in compare(records))
        else:
            print_table(records, wide)
        return
    from flopping.files import require_output, require_writable
    from flopping.lab.drawing import require_matplotlib
    from flopping.lab.report.page import write_page

    require_matplotlib()
    require_output(output, ".md", force)
    require_writable(output.with_suffix(".png"), force)
    with progress_console(quiet).status("Drawing"):
        write_page(compare(records), output)
    typer.echo(f"The report is {output}")


def print_table(records: list[Record], wide: bool) -> None:
    from flopping.lab.report import tables
    from flopping.lab.report.comparison import compare

    tables.show(compare(records), Console(), wide)
