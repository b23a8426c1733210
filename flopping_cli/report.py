"""`flopping report`, and the files of records that `flopping bench` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flopping_cli.common import Force, Json, Quiet, app, print_json, say, show_status

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
    with show_status("Reading", quiet):
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
    with show_status("Drawing", quiet):
        write_page(compare(records), output)
    typer.echo(f"The report is {output}")


def print_table(records: list[Record], wide: bool) -> None:
    from flopping.lab.report import tables
    from flopping.lab.report.comparison import compare

    tables.show(compare(records), Console(), wide)


class RecordFile:
    """The file of records, if one was asked for. If some cannot be written, measuring goes on.

    A file that has other content than records, or cannot be written, is refused before the work begins.
    """

    def __init__(self, path: Path | None) -> None:
        from flopping.cost.records import read
        from flopping.errors import as_usage_error
        from flopping.files import require_regular

        self.path, self.written, self.unwritten = path, 0, 0
        self.known: list[Record] = []
        if path is not None:
            require_regular(path)
            new = not path.exists()
            if not new and path.stat().st_size:
                self.known = read(path)
            with as_usage_error(OSError), path.open("a", encoding="utf-8"):
                pass
            if new:  # it comes with the first record; a link to it stays
                path.resolve().unlink()

    def add(self, record: Record) -> None:
        from flopping.cost.records import append

        if self.path is not None:
            try:
                append(self.path, [record])
                self.written += 1
            except OSError as error:
                self.unwritten += 1
                say(f"A record could not be written to {self.path}: {error.strerror or error}")
