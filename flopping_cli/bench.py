"""`flopping bench`: what networks cost on the clock and in memory."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flopping_cli.common import CTRL_C, Quiet, app, progress_console, refusals, say
from flopping_cli.report import Format, chosen_format, print_rows

if TYPE_CHECKING:
    from flopping.bench.records import Record


@app.command()
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(help='The paper\'s names ("E(ViT-S)"), registered names, or FILE.py:ATTRIBUTE.'),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="All rows of the paper's table that memory and --budget allow.")
    ] = False,
    goals: Annotated[
        bool, typer.Option("--goals", help="The networks whose speed-up is promised, and whether it is reached.")
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(help="Compare all with this network; by default E(X), H(X) and I(X) with X.")
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="eager, compiled (default) or compiled-frozen; may be repeated.")
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float32 (default on a CPU), bfloat16, float16 (default on CUDA); may be repeated."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; by default CUDA where there is one.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Images in a batch: 64 on CUDA, 8 on a CPU.")] = None,
    latency: Annotated[bool, typer.Option("--latency", help="One image at a time.")] = False,
    train: Annotated[bool, typer.Option("--train", help="Steps of training instead of inference.")] = False,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Timed rounds: 100 on CUDA; on a CPU 30, or as many as take 50 s, 10 at least."),
    ] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Runs before: 10 on CUDA, 3 on a CPU.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default all cores.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0.1, help="Minutes: what would take longer is left out, and named.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Keep compiled code here; by default it is compiled anew, and thrown away.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Add the records to this file of JSON lines, for the report.")
    ] = None,
    form: Annotated[Format | None, typer.Option("--format", help="What to print; a table by default.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
    quiet: Quiet = False,
) -> None:
    """Measure throughput or latency, and peak memory, of networks beside their ordinary twins.

    The networks run in turn in one process; ratios are of neighbouring runs. Each gets a process of its own for its
    memory. Ctrl-C keeps what was measured.

    Examples: flopping bench "E(ViT-S)"; flopping bench "E(ViT-S)" resnet50 --train -o a.jsonl; flopping bench --paper
    """
    from flopping.bench.goals import goal_cases
    from flopping.bench.measure import Session
    from flopping.bench.plan import cases, check_device, default_device, families, protocol_for, settings
    from flopping.bench.records import to_line
    from flopping.cores import usable_cores

    with refusals():
        if os.name != "posix":
            raise ValueError("flopping bench needs Linux or macOS: it starts and ends processes as these do")
        form = chosen_format(form, json) or Format.table
        names = _names(models, paper, goals)
        if latency and (train or batch not in (None, 1)):
            got = "--train" if train else f"--batch {batch}"
            raise ValueError(f"--latency is inference with batch 1, got {got}")
        on = "cpu" if goals else default_device() if device is None else check_device(device)
        protocol = protocol_for(on)
        protocol = replace(
            protocol,
            batch=1 if latency else batch or protocol.batch,
            warmup=protocol.warmup if warmup is None else warmup,
            repeats=repeats or protocol.repeats,
            seconds=protocol.seconds if repeats is None else None,
        )
        if goals:
            _refuse_with_goals(
                {
                    "--mode": mode,
                    "--dtype": dtype,
                    "--batch": batch,
                    "--threads": threads,
                    "--baseline": baseline,
                    "--device": device,
                    "--train": train,
                    "--latency": latency,
                }
            )
            chosen = goal_cases()
        else:
            modes, dtypes = dict.fromkeys(mode or ["compiled"]), dict.fromkeys(dtype or [protocol.dtype])
            made = settings(modes, dtypes, on, protocol.batch, threads or usable_cores(), train)
            chosen = cases(names, made, baseline)
        check_out(out)
    records: list[Record] = []
    file = RecordFile(out)

    def keep(record: Record) -> None:
        records.append(record)
        file.add([record])
        if form is Format.jsonl:
            typer.echo(to_line(record))

    interrupted = False
    with _bar(quiet) as progress:
        session = Session(
            protocol,
            keep,
            command=command_line(),
            budget=budget and 60 * budget,
            cache=cache,
            device=on,
            progress=progress,
        )
        try:
            session.measure(families(chosen) if paper or goals else [chosen])
        except KeyboardInterrupt:
            interrupted = True
    if records and form is not Format.jsonl:
        print_rows(records, form)
        if goals:
            _print_goals(records)
    whole = file.whole
    if interrupted:
        say(file.interrupted(len(records), len(chosen)))
        raise typer.Exit(CTRL_C)
    if not whole or not any(record.seconds for record in records):
        raise typer.Exit(1)


def _names(models: list[str] | None, paper: bool, goals: bool) -> list[str]:
    from flopping.bench.plan import rows_of_the_paper

    if bool(models) + paper + goals != 1:
        raise ValueError(
            'say what to measure, in one of three ways: names of networks, e.g. "E(ViT-S)", --paper, --goals'
        )
    return models or (rows_of_the_paper() if paper else [])


def _refuse_with_goals(given: dict[str, object]) -> None:
    excluded = [name for name, value in given.items() if value]
    if excluded:
        raise ValueError(f"goals are set for settings of their own: leave out --goals or {', '.join(excluded)}")


class RecordFile:
    """Where records go, if anywhere. If some can't be written, all are still measured and shown."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.written = 0
        self.unwritten: list[OSError] = []

    def add(self, records: list[Record]) -> None:
        from flopping.bench.records import append

        if self.path is not None:
            try:
                append(self.path, records)
                self.written += len(records)
            except OSError as error:
                self.unwritten += [error] * len(records)

    @property
    def whole(self) -> bool:
        """Whether all were written; if not, it is said."""
        from flopping.wording import counted

        if self.unwritten:
            reason = self.unwritten[0].strerror or self.unwritten[0]
            say(f"{counted(len(self.unwritten), 'record')} could not be written to {self.path}: {reason}")
        return not self.unwritten

    def interrupted(self, measured: int, wanted: int) -> str:
        """What is left of the rows that were wanted."""
        from flopping.wording import counted

        kept = f", {counted(self.written, 'record')} kept in {self.path}" if self.written else ""
        return f"Interrupted: {measured} of {wanted} rows were measured{kept}."


def check_out(out: Path | None) -> None:
    """Records are only added to a file that has records, and nobody waits an hour to learn that it can't be written."""
    from flopping.bench.records import read

    if out is not None:
        if out.exists() and (out.is_dir() or out.stat().st_size):
            read(out)
        new = not out.exists()
        with out.open("a", encoding="utf-8"):
            pass
        if new:  # it comes with the first record
            out.unlink()


def command_line() -> str:
    return shlex.join(["flopping", *sys.argv[1:]])


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[str, float], object]]:
    """A bar on standard error: share of the time, what is being done, minutes left."""
    columns = (
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
    )
    from flopping.bench.pace import minutes

    start = monotonic()
    with Progress(*columns, console=progress_console(quiet), transient=True) as bar:
        task = bar.add_task("", total=1.0, left="")

        def progress(text: str, left: float) -> None:
            passed = monotonic() - start
            share = passed / (passed + max(left, 1.0))
            bar.update(task, completed=share, left=f"about {minutes(left)} left")
            if text:
                bar.update(task, description=text)

        yield progress


def _print_goals(records: list[Record]) -> None:
    from flopping.bench.goals import verdicts

    table = Table("network", "mode", "speed-up", "goal", "", title="Goals", title_justify="left")
    marks = {True: "[green]met[/green]", False: "[red]missed[/red]"}
    for v in verdicts(records):
        table.add_row(v.name, v.mode, f"{v.speedup:.2f}", f"{v.goal:.2f}", marks[v.met])
    Console().print(table)
