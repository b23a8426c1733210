"""`flopping bench-export`: whether the saving survives export."""

from __future__ import annotations

import json as json_module
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.bench import RecordFile, check_out, command_line
from flopping_cli.common import CTRL_C, Quiet, app, progress_console, refusals, say

if TYPE_CHECKING:
    from flopping.bench.exported import Compared

WIDTH = 80
"""A table that nobody sees in a terminal is at least so wide, and its names are whole."""


@app.command()
def bench_export(
    models: Annotated[
        list[str] | None, typer.Argument(help='Names like "E(ViT-S)"; that and "E(ResMLP-S24)" by default.')
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a batch.")] = 8,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all cores.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Runs of each before.")] = 3,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Add the records to this file of JSON lines, for the report.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    quiet: Quiet = False,
) -> None:
    """Time E(X) against X in ONNX Runtime, interleaved in one process, in float32; graphs are compared with networks.

    Ctrl-C keeps the rows that are finished.

    Examples: flopping bench-export -o exported.jsonl;
    flopping bench-export "E(ViT-B)" "I(ViT-B)" --batch 1 --threads 1 --json
    """
    with refusals():
        from flopping.bench.exported import compared, pairs, records_of
        from flopping.bench.machine import this_machine
        from flopping.cores import usable_cores
        from flopping.export import CheckFailedError
        from flopping.export.onnx_file import onnxruntime_version

        chosen = pairs(models or ["E(ViT-S)", "E(ResMLP-S24)"])
        check_out(out)
        number = threads or usable_cores()
        machine, command = this_machine(others={"onnxruntime": onnxruntime_version()}), command_line()
        began = datetime.now(timezone.utc).isoformat(timespec="seconds")
        file = RecordFile(out)
        rows: list[Compared] = []
        code, last = 0, ""
        try:
            with progress_console(quiet).status("") as status:
                options = {"batch": batch, "threads": number, "repeats": repeats, "warmup": warmup}
                for found in compared(chosen, **options, progress=status.update):
                    if out is not None:
                        file.add(records_of(found, warmup=warmup, machine=machine, command=command, time=began))
                    rows.append(found)
                    if json:
                        typer.echo(json_module.dumps(found.as_dict()))
        except CheckFailedError as error:
            code, last = 1, f"An exported graph is not its network: {error}"
        except KeyboardInterrupt:
            code, last = CTRL_C, file.interrupted(len(rows), len(chosen))
        except OSError as error:  # as a full disk; what is finished is still shown, unless it was already
            if json or not rows:
                raise
            code, last = 1, f"The other rows were not measured: {error}"
    if rows and not json:
        _print(rows)
    if last:
        say(last)
    if not file.whole:
        code = code or 1
    raise typer.Exit(code)


def _print(rows: list[Compared]) -> None:
    from flopping.bench.exported import GOAL
    from flopping.wording import counted

    table = Table()
    table.add_column("network", no_wrap=True)
    for name in ("ms / of X", "speed-up, 95 %", f"{GOAL}x", "MB / of X"):
        table.add_column(name, justify="right", no_wrap=True)
    marks = {True: "[green]yes[/green]", False: "[red]no[/red]"}
    for row in rows:
        speedup = row.speedup
        table.add_row(
            row.pair.name,
            f"{1e3 * row.timing.median:.0f} / {1e3 * row.twin_timing.median:.0f}",
            f"{speedup.value:.2f} [{speedup.low:.2f}, {speedup.high:.2f}]",
            marks[row.met],
            f"{row.megabytes:.0f} / {row.twin_megabytes:.0f}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    console.print(table)
    first = rows[0]
    console.print(
        f"ONNX Runtime, float32, batch {first.batch}, {counted(first.threads, 'thread')}, medians of"
        f" {counted(len(first.timing.seconds), 'round')}. X is the ordinary twin; graphs differ from their networks by"
        f" {max(row.difference for row in rows):.0e} of the largest logit at most.",
        highlight=False,
        soft_wrap=True,
    )
