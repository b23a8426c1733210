"""`flopping bench export`: time of exported networks."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping_cli.bench import MARKS, Out, RecordFile, Threads, bench, origin
from flopping_cli.common import CTRL_C, Quiet, progress_console, say

if TYPE_CHECKING:
    from flopping.lab.bench.bench_export import Compared


@bench.command()
def export(
    models: Annotated[
        list[str] | None, typer.Argument(help='Names like "E(ViT-S)"; that and "E(ResMLP-S24)" by default.')
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=2**20, help="Images in a batch.")] = 8,
    threads: Threads = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Runs of each before.")] = 3,
    out: Out = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    quiet: Quiet = False,
) -> None:
    """Time E(X) against X in ONNX Runtime, interleaved in one process, in float32; graphs are compared with networks.

    Ctrl-C keeps the rows that are finished.

    Examples: flopping bench export -o exported.jsonl;
    flopping bench export "E(ViT-B)" "I(ViT-B)" --batch 1 --threads 1 --json
    """
    from importlib.metadata import version

    from flopping.deploy import CheckFailedError
    from flopping.deploy.formats import require_modules
    from flopping.lab.bench.bench_export import compare_all, pairs
    from flopping.machine import usable_cores

    require_modules()
    shared = origin(onnxruntime=version("onnxruntime"))
    chosen = pairs(models or ["E(ViT-S)", "E(ResMLP-S24)"], batch, threads or usable_cores(), **shared)
    file = RecordFile(out)
    rows: list[Compared] = []
    code, last = 0, ""
    try:
        with progress_console(quiet).status("") as status:
            for found in compare_all(chosen, repeats=repeats, warmup=warmup, progress=status.update):
                file.add([found.x, found.e])
                rows.append(found)
                if json:
                    typer.echo(json_module.dumps(found.as_dict()))
    except CheckFailedError as error:
        code, last = 1, f"An exported graph is not its network: {error}"
    except KeyboardInterrupt:
        code, last = CTRL_C, file.interrupted(len(rows), len(chosen))
    if rows and not json:
        _print_exported(rows)
    if last:
        say(last)
    raise typer.Exit(code or bool(file.unwritten))


def _print_exported(rows: list[Compared]) -> None:
    from flopping.cost.timing import Timing
    from flopping.errors import pluralize
    from flopping.lab.bench.goals import GOAL_OF_EXPORT as GOAL

    table = Table()
    table.add_column("network", no_wrap=True)
    for name in ("ms / of X", "speed-up, 95 %", f"{GOAL}x", "MB / of X"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.e.name,
            f"{1e3 * Timing(row.e.seconds).median:.0f} / {1e3 * Timing(row.x.seconds).median:.0f}",
            f"{row.speedup.value:.2f} [{row.speedup.low:.2f}, {row.speedup.high:.2f}]",
            MARKS[row.met],
            f"{row.megabytes:.0f} / {row.x_megabytes:.0f}",
        )
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 80)  # names are whole
    console.print(table)
    setting, rounds = rows[0].e.setting, len(rows[0].e.seconds)
    console.print(
        f"ONNX Runtime, float32, batch {setting.batch}, {pluralize(setting.threads, 'thread')}, medians of"
        f" {pluralize(rounds, 'round')}. X is the ordinary twin; graphs differ from their networks"
        f" by {max(row.difference for row in rows):.0e} of the largest logit at most.",
        highlight=False,
        soft_wrap=True,
    )
