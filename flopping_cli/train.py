"""`flopping train` and `flopping eval`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from flopping_cli.common import (
    CTRL_C,
    INTERRUPTED,
    Average,
    Json,
    OwnCode,
    Quiet,
    app,
    is_rank0,
    print_json,
    progress_console,
    report_unreadable,
    say,
    stopped,
    wait_for_rank0,
)

if TYPE_CHECKING:
    from flopping.training.evaluate import Accuracy
    from flopping.training.job import Job

Data = Annotated[
    str,
    typer.Option(
        help="A folder with train/ and val/ in it, one folder per class; fashion-mnist; or a name that timm knows:"
        " torch/NAME, hfds/NAME, wds/NAME."
    ),
]
Root = Annotated[str | None, typer.Option(help="Where the data set of that name lies.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:NUMBER, or auto.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=256,
        help="Processes that read images, for each that trains; by default one for each other core, at most 8.",
    ),
]
RecipeName = Annotated[str, typer.Argument(help="A recipe by its name (flopping recipes), or a file of yours.")]
Changes = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Fields of the recipe to change.")]
Model = Annotated[
    str,
    typer.Option(help='A network, as "E(ViT-B)", or your own, as my_net.py:build; by default the recipe\'s.'),
]
MicroBatch = Annotated[
    int | None, typer.Option(min=1, help="Images that go through the network together; part of the result.")
]
Compile = Annotated[bool, typer.Option(help="Compile the network.")]
TestGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Also test images moved by all elements of this group: flop, flip, rot180, flipflop, rot90 or octic; by"
        " default the network's, and flop for an ordinary network.",
    ),
]


def build_job(
    recipe: str,
    changes: list[str] | None,
    data: str,
    model: str,
    root: str | None,
    micro_batch: int | None,
    init: str | None = None,
    new_head: bool = False,
) -> Job:
    """The job of a command line: a recipe by its name, with changes, for a network and data."""
    from flopping.errors import UsageError
    from flopping.training.job import Job
    from flopping.training.recipe import load

    found = load(recipe).override(changes or [])
    if not data:
        raise UsageError("--data says where the images are: a folder with train/ and val/ in it, or fashion-mnist")
    if not (model or found.model):
        raise UsageError(f"recipe {recipe!r} names no network: name one by --model")
    if new_head and init is None:
        raise UsageError("--new-head goes with --init, which says what weights to start from")
    return Job(found, model or found.model, data, root, micro_batch, init, new_head)


@app.command(context_settings={"allow_interspersed_args": True})
def train(
    recipe: RecipeName,
    changes: Changes = None,
    data: Data = "",
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder of the run.")] = Path("runs/run"),
    model: Model = "",
    root: Root = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder, if there is one.")
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="With --resume: start anew if all checkpoints are corrupted.")
    ] = False,
    init: Annotated[
        str | None,
        typer.Option(help="Weights to start from: a file, a checkpoint, a run, or a name that timm has weights for."),
    ] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="With --init: a new classifier, even for as many classes.")
    ] = False,
    micro_batch: MicroBatch = None,
    device: Device = "auto",
    workers: Workers = None,
    compile: Compile = True,
    shard: Annotated[bool, typer.Option("--shard", help="Spread the network over processes (FSDP).")] = False,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Only algorithms that give the same bits every time (slower)."),
    ] = False,
    save_steps: Annotated[int | None, typer.Option(min=1, help="Save after so many steps, too.")] = None,
    save_minutes: Annotated[float, typer.Option(min=0.0, help="Save after so many minutes, too.")] = 10.0,
    log_steps: Annotated[int, typer.Option(min=1, help="Steps per line of the log.")] = 10,
    test_epochs: Annotated[int, typer.Option(min=1, help="Epochs per test.")] = 1,
    group: TestGroup = None,
    unreadable_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Stop when a larger share of the images can't be read.")
    ] = 0.01,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a network by a recipe. Under torchrun, on all processes that it starts.

    Every epoch ends with a test and a checkpoint in the run's folder. SIGINT (Ctrl-C) and SIGTERM end the step, save,
    and end with exit code 3; --resume goes on from there, or from wherever a run was killed, with the same result. A
    run that can't go on (the loss is not finite, the disk is full, too many images can't be read) ends with code 1.

    Examples: flopping train deit3_base --model "E(ViT-B)" --data imagenet/ -o runs/e-vit-b;
    flopping train deit3_base epochs=100 lr=1e-3 --data imagenet/ -o runs/short --resume;
    torchrun --nproc-per-node 8 -m flopping train deit3_huge --model "H(ViT-H)" --data imagenet/ -o runs/h --shard
    """
    from flopping.data.batches import default_workers
    from flopping.errors import UsageError
    from flopping.functional import tune_cpu
    from flopping.lab.curves import show_curves
    from flopping.training.checkpoint import CheckpointManager
    from flopping.training.job import RunOptions
    from flopping.training.run import train as run

    console = Console(stderr=True)
    if restart and not resume:
        raise UsageError("--restart goes with --resume, which says to go on with a run")
    job = build_job(recipe, changes, data, model, root, micro_batch, init, new_head)
    workers = default_workers() if workers is None else workers
    options = RunOptions(
        device=device,
        workers=workers,
        compile=compile,
        shard=shard,
        deterministic=deterministic,
        save_steps=save_steps,
        save_minutes=save_minutes,
        log_steps=log_steps,
        test_epochs=test_epochs,
        group=group,
        unreadable_share=unreadable_share,
    )
    tune_cpu()
    with report_end(console, output):
        result = run(job, options, output, progress_console(quiet), resume=resume, restart=restart)
        if is_rank0():
            show_curves(output, job.model, progress_console(quiet))
    if not is_rank0():
        return
    best = CheckpointManager(output).best()
    if json:
        chosen = None if best is None else {"step": best.step, "top1": best.score}
        print_json([{"run": str(output), "weights": "last", **result.as_dict(), "best": chosen}])
    else:
        show_accuracy(f"{name_network(job.model)}, the last weights ({output / 'last'})", "validation images", result)
        if best is not None and best.score is not None:
            typer.echo(
                f"The best weights ({output / 'best'}): top-1 {best.score:.2f} % after step {best.step}. They were"
                " chosen on these images, so expect less on others."
            )


def name_network(model: str) -> str:
    """A network by the paper's name and the registered one."""
    from flopping.models.zoo import names_in_paper, paper_names

    registered = paper_names().get(model, model)
    paper = names_in_paper().get(registered)
    return registered if paper is None else f"{paper} ({registered})"


def count_changed(number: int) -> str:
    from flopping.errors import pluralize

    return f"{pluralize(number, 'image')} {'gets' if number == 1 else 'get'} another class"


def show_accuracy(what: str, images: str, found: Accuracy) -> None:
    typer.echo(f"{what} on {found.images} {images}:")
    top5 = "" if found.top5 is None else f", top-5 {found.top5:.2f} %"
    typer.echo(f"  top-1 {found.top1:.2f} %{top5}")
    for element, moved in found.moved.items():
        typer.echo(f"  {name_element(element)}: top-1 {moved.top1:.2f} %; {count_changed(moved.changed)}")
    if len(found.moved) > 1:
        typer.echo(f"  {count_changed(found.changed or 0)} from at least one element")


def name_element(element: str) -> str:
    """An element of a group, as results call it."""
    return "mirrored" if element == "flop" else element


@contextmanager
def report_end(console: Console, output: Path, again: str = "--resume") -> Iterator[None]:
    """Report why a run ends before its last step; every reason has an exit code. `again` is what goes on with it."""
    from flopping.errors import PeerLostError, RunInterruptedError, RunStoppedError, UsageError
    from flopping.files import DISK_FULL
    from flopping.training.checkpoint import CheckpointManager

    try:
        yield
    except RunInterruptedError as stop:
        _end(INTERRUPTED, f"{stop}. {again.capitalize()} goes on", console, stop)
    except KeyboardInterrupt as stop:  # the second one
        _end(CTRL_C, f"Ended at once; what was saved before is in {str(output)!r}", console, stop)
    except PeerLostError as stop:  # every rank reports it: rank 0 may be gone
        say(stopped(str(stop)), console)
        raise typer.Exit(1) from stop
    except RunStoppedError as stop:
        _end(1, stopped(str(stop)), console, stop)
    except UsageError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            _end(1, stopped(f"{error.strerror}. Free some space, then go on with {again}"), console, error)
        if is_rank0() and (good := CheckpointManager(output).checkpoints()):
            say(stopped(f"{type(error).__name__}. The last good checkpoint is {str(good[0].folder)!r}"), console)
        raise


def _end(code: int, text: str | Text, console: Console, cause: BaseException) -> NoReturn:
    """End this rank with an exit code, after rank 0 has printed the reason."""
    if is_rank0():
        say(text, console)
    wait_for_rank0()
    raise typer.Exit(code) from cause


@app.command(name="eval")
def evaluate(
    target: Annotated[str, typer.Argument(help="A run, one of its checkpoints, or a folder that timm's models save.")],
    data: Data = "",
    root: Root = None,
    move: Annotated[
        bool,
        typer.Option(
            "--move/--no-move", "--mirror/--no-mirror", help="Test images moved by each element of the group, too."
        ),
    ] = True,
    group: TestGroup = None,
    average: Average = False,
    code: OwnCode = None,
    batch: Annotated[int, typer.Option(min=1, max=2**20, help="Images at a time.")] = 100,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Test a trained network: accuracy on the test images, as they are and moved by each element of the group.

    The group is the network's own; the images of an ordinary network are mirrored. Under torchrun, on all ranks.

    Examples: flopping eval runs/e-vit-b --data imagenet/; flopping eval runs/e-vit-b/last --data imagenet/ --json;
    flopping eval runs/vit-b --data imagenet/ --group octic
    """
    from rich.progress import Progress

    from flopping.data.batches import default_workers
    from flopping.errors import PeerLostError, RunStoppedError, UsageError
    from flopping.functional import tune_cpu
    from flopping.training.evaluate import evaluate_checkpoint

    if not data:
        raise UsageError("--data says where the images are: a folder with val/ in it, or fashion-mnist")
    if group is not None and not move:
        raise UsageError(f"--no-move tests no moved images, and --group {group} asks for them: leave one of them out")
    workers = default_workers() if workers is None else workers
    tune_cpu()
    try:
        with Progress(console=progress_console(quiet or not is_rank0()), transient=True) as bar:
            task = bar.add_task("testing", total=None)
            found = evaluate_checkpoint(
                *(Path(target), data, root, device, workers, batch),
                move=move,
                group=group,
                average=average,
                code=code,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except RunStoppedError as error:
        if is_rank0() or isinstance(error, PeerLostError):
            say(f"Nothing was tested: {error}")
        wait_for_rank0()
        raise typer.Exit(1) from error
    if not is_rank0():
        return
    result = found.accuracy
    if json:
        about = {"checkpoint": str(found.folder), "model": found.model, "weights": found.weights}
        print_json([{**about, **result.as_dict()}])
    else:
        what = f"{name_network(found.model)}, the {found.weights} weights ({found.folder})"
        show_accuracy(what, f"images ({found.images})", result)
        if found.weights == "best":
            typer.echo(
                "If the run was validated on these images, its best weights were chosen on them: expect less on others."
            )
    report_unreadable(found.unreadable)
