"""`flopping experiment`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flopping_cli.common import INTERRUPTED, Json, Quiet, app, print_json, progress_console, say, stopped
from flopping_cli.train import Compile, Device, Workers


@app.command()
def experiment(
    name: Annotated[
        str, typer.Argument(help="An experiment by its name: cifar10, cifar10_resnet, rotations; or a file of yours.")
    ],
    data: Annotated[str, typer.Option(help="A folder with train/ and val/, one folder per class; or fashion-mnist.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder of its runs.")],
    report: Annotated[Path, typer.Option(help="The page to write; its figure comes beside it.")],
    scale: Annotated[float, typer.Option(help="Train for so many times the recipes' epochs.")] = 1.0,
    device: Device = "auto",
    workers: Workers = None,
    compile: Compile = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train ordinary networks and their twins, with several seeds, and report what came out.

    First, networks are timed in turn. Runs that have finished are not run again, so the same command goes on after it
    was stopped (Ctrl-C: exit code 3) or killed. The report is written after every run.

    Example: flopping experiment cifar10 --data cifar10/ -o build/experiment-cifar10 --report cifar10.md
    """
    from flopping.data.batches import default_workers
    from flopping.errors import RunInterruptedError, RunStoppedError, UsageError
    from flopping.functional import tune_cpu
    from flopping.lab.drawing import require_matplotlib
    from flopping.lab.experiment.plan import load
    from flopping.lab.experiment.runs import Experiment
    from flopping.lab.experiment.summary import write_report
    from flopping.training.distributed import resolve_device
    from flopping.training.job import RunOptions

    options = [] if device == "auto" else ["--device", device]
    options += [] if workers is None else ["--workers", str(workers)]
    options += [] if compile else ["--no-compile"]
    words = ["flopping", "experiment", name, "--data", data, "-o", str(output), "--report", str(report)]
    words += [] if scale == 1 else ["--scale", f"{scale:g}"]
    command, progress = shlex.join([*words, *options]), progress_console(quiet)
    require_matplotlib()
    if report.suffix != ".md":
        raise UsageError(f"the report is a page of Markdown: --report ends in .md, got {str(report)!r}")
    found = Experiment(output, load(name), data, scale)
    options += ["--quiet"] if quiet else []
    tune_cpu()  # as in the runs
    run_options = RunOptions(str(resolve_device(device)), default_workers() if workers is None else workers, compile)
    try:
        found.run(options, run_options, lambda text: say(text, progress), lambda: write_report(found, report, command))
    except RunInterruptedError as stop:
        say(str(stop))
        raise typer.Exit(INTERRUPTED) from stop
    except RunStoppedError as stop:
        say(stopped(str(stop)), Console(stderr=True))
        raise typer.Exit(1) from stop
    write_report(found, report, command)
    if json:
        print_json([{"report": str(report), "runs": len(found.plan.runs)}])
    else:
        typer.echo(f"The report is {report}")
