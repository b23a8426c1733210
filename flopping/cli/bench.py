"""`flopping bench-layers` and `flopping bench-models`: speed-ups side by side."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flopping.cli.common import app, refusals

if TYPE_CHECKING:
    from flopping.bench.layers import Result


class Mode(str, Enum):
    eager = "eager"
    compiled = "compiled"


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
    with refusals(), Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("eager, then compiled", total=2 * repeats)
        results = [*run(width, get_group(group), repeats=repeats, progress=lambda: bar.advance(task)), bench_building()]
    _print_results(results, caption(width, repeats), threads, json)


@app.command()
def bench_models(
    models: Annotated[
        list[str] | None, typer.Argument(help='The paper\'s names, e.g. "ViT-S" or "E(ViT-S)"; six by default.')
    ] = None,
    mode: Annotated[list[Mode] | None, typer.Option(help="Eager or compiled; both by default.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a batch; goals are set for 8.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads; goals are set for 2.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Time E(X) against X, interleaved in one run, in float32, without gradients.

    Example: flopping bench-models "ViT-S" "ResMLP-S24" --mode compiled
    """
    import torch

    from flopping.bench.models import GOALS
    from flopping.bench.models import bench_models as run

    torch.set_num_threads(threads)
    console = Console(stderr=True)
    modes = [m.value for m in mode or list(Mode)]
    with refusals(), console.status("") as status:
        results = list(run(models or list(GOALS), modes, batch, repeats, status.update))
    caption = (
        f"Medians of {repeats} rounds, in which X and E(X) run in turn; the speed-up is the median of the ratios of"
        f" each round. Batch {batch}, float32, no gradients. X is timm's; timm has no ResMLP-B24, ResMLP-L24 and"
        " ConvNeXt (iso.), whose X are ours with the trivial group. E(ResMLP) has quick GELU, X the exact one."
    )
    _print_results(results, caption, threads, json)


def _print_results(results: list[Result], caption: str, threads: int, json: bool) -> None:
    """A table of speed-ups, or JSON lines."""
    import torch

    columns = "name", "mode", "ordinary ms", "equivariant ms", "speed-up", "goal", ""
    table = Table(*columns, caption=caption, caption_justify="left")
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
