"""`flopping doctor`."""

from __future__ import annotations

import signal
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from flopping_cli.common import CTRL_C, Quiet, app, print_json, progress_console, say
from flopping_cli.train import Device

if TYPE_CHECKING:
    from flopping.lab.doctor import Result

STYLES = {"pass": "green", "FAIL": "red", "no": "yellow"}


@app.command()
def doctor(
    device: Device = "auto",
    json: Annotated[bool, typer.Option("--json", help="One JSON object: machine, results, sentence.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check that every architecture runs here: forward, training, compiled, mixed precision, saved (minutes).

    Each check runs in a process of its own, so a crash is a row of the table. The last line is for a bug report. Exit
    code 1 if a check fails; a precision that the machine doesn't have is no failure.

    Examples: flopping doctor; flopping doctor --device cpu --json
    """
    from flopping.errors import pluralize
    from flopping.lab.doctor import describe_machine, examine, plan, sentence
    from flopping.training.distributed import resolve_device

    on = str(resolve_device(device))
    results: list[Result] = []
    interrupted, machine = False, dict[str, str]()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Progress(console=progress_console(quiet), transient=True) as bar:
        task = bar.add_task("the machine", total=None)
        try:
            machine = describe_machine(on)
            checks = plan(on)
            with closing(examine(checks)) as examined:
                for number, check in enumerate(checks):
                    what = f"{check.network}, {check.name}"
                    bar.update(task, description=what, total=len(checks), completed=number)
                    results.append(result := next(examined))
                    took = "" if result.seconds is None else f", {result.seconds:.1f} s"
                    say(f"{number + 1} of {len(checks)}: {what}: {result.status}{took}", bar.console)
        except KeyboardInterrupt:  # by SIGINT or SIGTERM
            interrupted = True
        finally:
            signal.signal(signal.SIGTERM, before)
    report = sentence(machine, results)
    if json:
        found = {"machine": machine, "results": [asdict(result) for result in results], "sentence": report}
        print_json([found])
    else:
        _print(machine, results, report)
    if interrupted:
        say(f"Interrupted after {pluralize(len(results), 'check')}.")
        raise typer.Exit(CTRL_C)
    if any(result.status == "FAIL" for result in results):
        raise typer.Exit(1)


def _print(machine: dict[str, str], results: list[Result], report: str) -> None:
    console = Console()
    for name, text in machine.items():
        console.print(Text(f"{name + ':':<12}{text}"), soft_wrap=True)
    table = Table("network", "check", "result", "seconds")
    table.columns[-1].justify = "right"
    for result in results:
        seconds = "" if result.seconds is None else f"{result.seconds:.1f}"
        table.add_row(result.network, result.check, Text(result.status, STYLES[result.status]), seconds)
    console.print(table)
    problems = {f"{result.check}: {result.problem}" for result in results if result.status == "no"}
    problems |= {f"{r.network}, {r.check}: {r.problem}" for r in results if r.status == "FAIL"}
    for problem in sorted(problems):
        console.print(Text(problem), soft_wrap=True)
    console.print("For a bug report:", Text(report, "bold"), soft_wrap=True)
