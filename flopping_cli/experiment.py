"""`flopping experiment`."""

from __future__ import annotations

import json as json_module
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flopping_cli.common import Quiet, app, progress_console, refusals, say
from flopping_cli.train import INTERRUPTED, Compile, Device, Workers, say_stopped


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(help="An experiment by its name, as cifar10, or a file of yours.")],
    data: Annotated[str, typer.Option(help="A folder with train/ and val/ in it, one folder per class.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder of its runs.")],
    report: Annotated[Path, typer.Option(help="The page to write; its figure comes beside it.")],
    scale: Annotated[float, typer.Option(help="Train for so many times the recipes' epochs.")] = 1.0,
    device: Device = "auto",
    workers: Workers = None,
    compile: Compile = True,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")] = 1,
    only_report: Annotated[bool, typer.Option("--only-report", help="Train nothing, write the report anew.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Where the report is, and how many runs it has, as JSON.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Train ordinary networks and their twins, with several seeds, and report what came out.

    First, networks are timed in turn. Runs that have finished are not run again, so the same command goes on after it
    was stopped (Ctrl-C: exit code 3) or killed. The report is written after every run.

    Example: flopping experiment cifar10 --data cifar10/ -o build/experiment-cifar10 --report cifar10.md
    """
    from flopping.bench.drawing import require_matplotlib
    from flopping.experiments.folder import Folder
    from flopping.experiments.page import write
    from flopping.experiments.plan import load
    from flopping.experiments.running import Runner
    from flopping.training.job import Machine
    from flopping.training.loader import default_workers
    from flopping.training.processes import chosen_device
    from flopping.training.stops import InterruptedRunError, StoppedError

    console, progress = Console(stderr=True), progress_console(quiet)
    options = [] if device == "auto" else ["--device", device]
    options += [] if workers is None else ["--workers", str(workers)]
    options += [] if compile else ["--no-compile"]
    words = ["flopping", "experiment", name, "--data", data, "-o", str(output), "--report", str(report)]
    words += [] if scale == 1 else ["--scale", f"{scale:g}"]
    words += [] if jobs == 1 else ["--jobs", str(jobs)]
    command = shlex.join([*words, *options])

    def tell(text: str) -> None:
        say(text, progress)

    with refusals():
        require_matplotlib()
        if report.suffix != ".md":
            raise ValueError(f"the report is a page of Markdown: --report ends in .md, got {str(report)!r}")
        folder = Folder(output, load(name), data, scale)
        options += ["--quiet"] if quiet else []
        machine = Machine(str(chosen_device(device)), default_workers() if workers is None else workers, compile)
        runner = Runner(folder, options, machine, tell, lambda: write(folder, report, command), jobs)
        try:
            if not only_report:
                runner.run()
        except InterruptedRunError as stop:
            say(str(stop))
            raise typer.Exit(INTERRUPTED) from stop
        except StoppedError as stop:
            say_stopped(console, str(stop))
            raise typer.Exit(1) from stop
        write(folder, report, command)
        finished = len(folder.all_finished())
        if not finished:
            raise ValueError(f"nothing has finished in {str(output)!r} yet: there is nothing to report")
    found = {"report": str(report), "finished": finished, "runs": len(folder.plan.runs)}
    typer.echo(json_module.dumps(found) if json else f"The report is {report}")
