"""`flopping bench`: time and memory of networks; time of layers and of loading images; launches of kernels."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from flopping_cli.common import (
    CTRL_C,
    Commands,
    Json,
    Quiet,
    app,
    print_json,
    progress_console,
    say,
    stopped,
)
from flopping_cli.report import Wide, print_table
from flopping_cli.train import (
    Changes,
    Compile,
    Data,
    Device,
    MicroBatch,
    Model,
    RecipeName,
    Root,
    Workers,
    build_job,
)

if TYPE_CHECKING:
    from flopping.cost.records import Record


class Mode(str, Enum):
    eager = "eager"
    operations = "operations"
    compiled = "compiled"
    blocks = "blocks"
    frozen = "compiled-frozen"
    graph = "reduce-overhead"
    autotune = "max-autotune"
    exported = "onnxruntime"


class Precision(str, Enum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class BenchGroup(Commands):
    """Passes arguments that begin with none of its commands to `networks`; `export` is one of its modes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == ["export"]:
            args = ["networks", "--mode", Mode.exported.value, *args[1:]]
        elif not args or args[0] not in self.commands:
            args = ["networks", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(cls=BenchGroup, help="Measure networks; or layers, loading of images, launches of kernels.")
app.add_typer(bench, name="bench")
MARKS = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}


@bench.command()
def networks(
    models: Annotated[
        list[str] | None,
        typer.Argument(help='The paper\'s names ("E(ViT-S)"), registered names, or FILE.py:ATTRIBUTE.'),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="All rows of the paper's table, small networks first.")
    ] = False,
    goals: Annotated[
        bool, typer.Option("--goals", help="Every speed-up that is promised, and whether it is reached.")
    ] = False,
    own: Annotated[
        bool,
        typer.Option("--own", help="Beside X also E(X) with the trivial group: X with all that makes E(X) fast."),
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(help="Compare all with this network; by default E(X), H(X) and I(X) with X.")
    ] = None,
    mode: Annotated[list[Mode] | None, typer.Option(help="compiled by default; may be repeated.")] = None,
    dtype: Annotated[
        list[Precision] | None, typer.Option(help="float32 by default, on CUDA float16; may be repeated.")
    ] = None,
    device: Device = "auto",
    batch: Annotated[
        int | None, typer.Option(min=1, max=2**20, help="Images in a batch: 64 on CUDA, 8 on a CPU; 1 for latency.")
    ] = None,
    train: Annotated[bool, typer.Option("--train", help="Steps of training instead of inference.")] = False,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Timed rounds: 100 on CUDA; on a CPU 30, or as many as take 50 s, 15 at least."),
    ] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Runs before: 10 on CUDA, 3 on a CPU.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=4096, help="CPU threads; by default all cores.")] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=1e6,
            help="With --paper or --goals: minutes after which no family is begun. With -o the next call goes on.",
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Keep compiled code here; by default it is compiled anew, and thrown away.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", help="Add the records to this file of JSON lines, for the report.")
    ] = None,
    wide: Wide = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure throughput or latency, and peak memory, of networks beside their ordinary twins.

    The networks run in turn in one process; ratios are of neighbouring runs. Each gets a process of its own for its
    memory. Ctrl-C keeps what was measured. With --paper and --goals, what the file of -o has is not measured again.
    `flopping bench layers`, `loader` and `launches` measure other things.

    Examples: flopping bench "E(ViT-S)"; flopping bench "E(ViT-S)" resnet50 --train -o a.jsonl; flopping bench --paper;
    flopping bench "E(ViT-S)" --mode onnxruntime
    """
    from importlib.metadata import version

    from flopping.cost.protocol import CPU_PROTOCOL, PAPER_PROTOCOL, group_by_baseline, paper_networks, plan_records
    from flopping.cost.records import EXPORTED, TASKS, RecordFile, Setting, is_measured, to_line
    from flopping.deploy.exporter import require_onnx
    from flopping.errors import UsageError, pluralize
    from flopping.lab.bench.goals import goals as all_goals
    from flopping.lab.bench.measure_networks import measure_groups
    from flopping.machine import this_machine, usable_cores
    from flopping.training.distributed import resolve_device

    if bool(models) + paper + goals != 1:
        raise UsageError(
            'say what to measure, in one of three ways: names of networks, e.g. "E(ViT-S)", --paper, --goals'
        )
    if budget is not None and models:
        raise UsageError(f"--budget is for --paper or --goals, got --budget {budget:g} and names of networks")
    modes = list(dict.fromkeys(each.value for each in mode or [Mode.compiled]))
    dtypes = list(dict.fromkeys(each.value for each in dtype or ()))
    exported = EXPORTED in modes
    if train and "compiled-frozen" in modes:
        raise UsageError("compiled-frozen makes constants of the weights, so it can't train: use another mode")
    on = "cpu" if goals or (modes == [EXPORTED] and device == "auto") else str(resolve_device(device))
    if "reduce-overhead" in modes and not on.startswith("cuda"):
        raise UsageError(f"reduce-overhead launches CUDA graphs, and the device is {on}: use another mode")
    if goals or exported:
        require_onnx()
    if exported and (train or on != "cpu" or {*dtypes} - {"float32"}):
        raise UsageError("exported networks run in ONNX Runtime: inference on the CPU in float32, nothing else")
    shared: dict[str, Any] = {
        "machine": this_machine(on, others={"onnxruntime": version("onnxruntime")} if exported else None),
        "command": shlex.join(["flopping", *sys.argv[1:]]),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    protocol = PAPER_PROTOCOL if on.startswith("cuda") else CPU_PROTOCOL
    protocol = replace(
        protocol,
        batch=batch or protocol.batch,
        warmup=protocol.warmup if warmup is None else warmup,
        repeats=repeats or protocol.repeats,
        seconds=protocol.seconds if repeats is None else None,
    )
    if goals:
        fixed = {"--mode": mode, "--dtype": dtype, "--batch": batch, "--threads": threads, "--baseline": baseline}
        fixed |= {"--device": device != "auto", "--train": train, "--own": own}
        if excluded := [name for name, value in fixed.items() if value]:
            raise UsageError(f"goals are set for settings of their own: leave out --goals or {', '.join(excluded)}")
        groups = [goal.plan(**shared) for goal in all_goals()]
    else:
        settings = [
            Setting(each, TASKS[train], on, precision, protocol.batch, threads or usable_cores())
            for each in modes
            for precision in dtypes or [protocol.dtype]
        ]
        chosen = plan_records(models or paper_networks(), settings, baseline, own, **shared)
        groups = group_by_baseline(chosen) if paper else [chosen]
    file = RecordFile(out, say)
    known = [] if models else file.known
    groups = [group for group in groups if not all(is_measured(record, known) for record in group)]
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        file.add(record)
        if json:
            typer.echo(to_line(record))

    interrupted, left = False, 0
    columns = BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=progress_console(quiet), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        try:
            left = measure_groups(
                groups,
                protocol,
                keep,
                seconds=budget and 60 * budget,
                cache=cache,
                progress=lambda text, share: bar.update(task, description=text, completed=share),
            )
        except KeyboardInterrupt:
            interrupted = True
    if records and not json:
        print_table(records, wide)
    if goals and not json:
        print_goals([*known, *records])
    if interrupted:
        kept = f", {pluralize(file.written, 'record')} kept in {out}" if file.written else ""
        say(f"Interrupted: {len(records)} of {sum(map(len, groups))} rows were measured{kept}.")
        raise typer.Exit(CTRL_C)
    if left:
        again = "the same command goes on" if out else "with -o FILE a second call would go on"
        say(f"The minutes are over, and {pluralize(left, 'comparison')} left: {again}.")
    wrong_export = any(record.problem and record.setting.mode == EXPORTED for record in records)
    if file.unwritten or wrong_export or (groups and not any(record.seconds for record in records)):
        raise typer.Exit(1)


def print_goals(records: list[Record]) -> None:
    """Every goal, with what was measured."""
    from flopping.lab.bench.goals import goal_results, launch_results

    table = Table("what", "measured", "goal", "result", title="Goals", title_justify="left")
    for what, found, goal, met in (*goal_results(records), *launch_results()):
        table.add_row(what, found, goal, MARKS[met])
    Console().print(table)


@bench.command()
def layers(
    only: Annotated[
        list[str] | None, typer.Argument(help="Layers by the beginning of their names; by default all.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=4096, help="CPU threads.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of interleaved runs.")] = 50,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time equivariant layers against ordinary ones, interleaved in one run, in float32.

    Examples: flopping bench layers --repeats 100; flopping bench layers Conv2d
    """
    import torch

    from flopping.lab.bench.bench_layers import bench_layers, caption, select_runs
    from flopping.machine import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()
    with Progress(console=progress_console(quiet), transient=True) as bar:
        runs = select_runs(only or ())
        task = bar.add_task(", then ".join(dict.fromkeys(run.mode for run in runs)), total=len(runs) * repeats)
        results = list(bench_layers(runs, repeats, progress=lambda: bar.advance(task)))
    if json:
        print_json({**asdict(r), "met": r.met} for r in results)
        return
    columns = "name", "mode", "ordinary ms", "equivariant ms", "speed-up", "goal", ""
    table = Table(*columns, caption=caption(repeats), caption_justify="left")
    for r in results:
        times = f"{r.ordinary_ms:.2f}", f"{r.equivariant_ms:.2f}", f"{r.speedup:.2f} [{r.low:.2f}, {r.high:.2f}]"
        table.add_row(r.name, r.mode, *times, "" if r.goal is None else f"{r.goal:.2f}", MARKS[r.met])
    Console().print(table, f"{threads} threads, torch {torch.__version__}.")


@bench.command()
def loader(
    recipe: RecipeName,
    changes: Changes = None,
    data: Data = "",
    model: Model = "",
    root: Root = None,
    micro_batch: MicroBatch = None,
    device: Device = "auto",
    workers: Workers = None,
    compile: Compile = True,
    seconds: Annotated[float, typer.Option(min=0.01, max=86400, help="How long each of the three is timed.")] = 10.0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time how fast images are read and augmented, how fast a network trains, and both together.

    Examples: flopping bench loader deit3_base --model "E(ViT-B)" --data imagenet/;
    flopping bench loader fashion_vit --data fashion-mnist --workers 0
    """
    from flopping.data.batches import default_workers
    from flopping.errors import RunStoppedError
    from flopping.functional import tune_cpu
    from flopping.lab.bench.bench_loader import measure
    from flopping.training.job import RunOptions

    job = build_job(recipe, changes, data, model, root, micro_batch)
    tune_cpu()  # as in training
    options = RunOptions(device, default_workers() if workers is None else workers, compile)
    try:
        found = measure(job, options, progress_console(quiet), seconds)
    except RunStoppedError as stop:
        say(stopped(str(stop)))
        raise typer.Exit(1) from stop
    if json:
        print_json([found.as_dict()])
        return
    table = Table("what", "images/s", "how")
    table.add_row("loader", f"{found.loader:.0f}", f"{found.workers} worker processes, on {found.cores} cores")
    table.add_row("network", f"{found.network:.0f}", f"training steps of {job.model} on images that are in memory")
    table.add_row("together", f"{found.together:.0f}", f"{100 * found.waiting:.1f} % of the time spent on waiting")
    Console(highlight=False).print(table, found.verdict)


@bench.command()
def launches(
    models: Annotated[list[str] | None, typer.Argument(help='Names like "E(ViT-S)", which is the default.')] = None,
    batch: Annotated[int, typer.Option(min=1, max=2**20, help="Images in a batch.")] = 8,
    compile: Annotated[bool, typer.Option(help="Also what torch's compiler makes of it: a minute.")] = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Count kernels and bytes of one forward pass of E(X), in its inference form, beside those of X.

    Counted are the operations of torch that run, and the kernels that its compiler makes of a block, for this device.

    Examples: flopping bench launches; flopping bench launches "E(ResMLP-S24)" --no-compile
    """
    from flopping.lab.bench.launches import count_launches

    with progress_console(quiet).status("Counting"):
        rows = [row for name in models or ["E(ViT-S)"] for row in count_launches(name, batch, compile)]
    if json:
        print_json(row._asdict() for row in rows)
        return
    table = Table("network", "mode", caption=f"Bytes are of float32, for a batch of {batch}.", caption_justify="left")
    for name in ("launches", "of X", "MB per block", "of X"):
        table.add_column(name, justify="right")
    for row in rows:
        share, moved = f"{row.launches / row.x_launches:.2f}", f"{row.bytes / row.x_bytes:.2f}"
        table.add_row(row.name, row.mode, str(row.launches), share, f"{row.bytes / 1e6:.1f}", moved)
    Console().print(table)
