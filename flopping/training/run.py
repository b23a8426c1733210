"""A run from its command to its end: sources, processes, the folder, resuming, and the picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from flopping.training.checkpoint import Keeper, read_manifest
from flopping.training.curves import draw_run
from flopping.training.evaluate import Accuracy
from flopping.training.job import RUN, Job, Machine
from flopping.training.precision import usable_precision
from flopping.training.processes import World, world
from flopping.training.sources import open_source, require_same_classes
from flopping.training.trainer import Trainer

CHUNK = {"cpu": 64, "cuda": 256}
"""Images that go through a network together, if nobody says otherwise."""


def train(job: Job, machine: Machine, folder: Path, console: Console, *, resume: bool = False) -> Accuracy:
    """Train, or go on with training, in this process or in all that `torchrun` started."""
    job.recipe.require_family(job.model)
    with world(machine.device) as here:
        kept = _kept(job, folder, resume)
        job = kept or _settled(job, here, console)
        images, tests = (open_source(job.data, split, job.root) for split in ("train", "test"))
        require_same_classes(images, tests, job.data)
        for note in filter(None, (images.note, tests.note) if here.is_main else ()):
            console.print(note, highlight=False, soft_wrap=True)
        here.wait()
        if here.is_main and kept is None:
            folder.mkdir(parents=True, exist_ok=True)
            job.write(folder)
        trainer = Trainer(job, machine, folder, here, images, tests, console)
        if kept is not None:
            _restore(trainer, here, console)
        result = trainer.run()
        if here.is_main:
            _draw(folder, job.model, console)
        return result


def _kept(job: Job, folder: Path, resume: bool) -> Job | None:
    """The job of the run that lies in the folder, if it is to be resumed and there is one."""
    if folder.is_file():
        raise ValueError(f"{str(folder)!r} is a file: -o names the folder of the run")
    exists = (folder / RUN).exists()
    if exists and not resume:
        raise ValueError(f"there is a run in {str(folder)!r}: --resume goes on with it, or name another folder")
    if not exists and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{str(folder)!r} holds other files than those of a run: name another folder")
    return job.continued(Job.read(folder), folder) if exists else None


def _settled(job: Job, here: World, console: Console) -> Job:
    """The job with what the machine decides: the arithmetic it has, and how many images it takes at a time."""
    recipe = job.recipe
    precision, why = usable_precision(recipe.precision, here.device)
    if why and here.is_main:
        console.print(why, highlight=False)
    recipe = recipe.override([f"precision={precision}"])
    chunk = job.chunk or default_chunk(recipe.batch_size, here.size, CHUNK[here.device.type], recipe.mixes)
    if recipe.mixes and chunk % 2:
        raise ValueError(f"mixup and CutMix mix pairs of images: --chunk is even, got {chunk}")
    return replace(job, recipe=recipe, chunk=chunk)


def default_chunk(batch_size: int, processes: int, most: int, even: bool) -> int:
    """The largest chunk that cuts every process's share of a batch evenly.

    >>> default_chunk(2048, 3, 64, even=True)
    Traceback (most recent call last):
    ...
    ValueError: a batch of 2048 images can't be shared evenly by 3 processes
    >>> default_chunk(2048, 1, 64, even=True), default_chunk(50, 2, 64, even=False)
    (64, 25)
    """
    share, rest = divmod(batch_size, processes)
    found = [n for n in range(1, min(share, most) + 1) if share % n == 0 and not (even and n % 2)]
    if rest or not found:
        raise ValueError(
            f"a batch of {batch_size} images can't be shared evenly by {processes} processes"
            + (" in pairs, as mixup and CutMix need" if not rest else "")
        )
    return found[-1]


def _restore(trainer: Trainer, here: World, console: Console) -> None:
    """Go on from the newest good checkpoint: the main process looks for it, and all read the same one."""
    keeper = Keeper(trainer.folder)
    step = -1.0
    if here.is_main:
        newest, problems = keeper.newest()
        step = -1.0 if newest is None else newest.step
        for problem in problems:
            console.print(f"[yellow]Warning:[/yellow] {problem}; the one before it is used", highlight=False)
        if newest is None:
            console.print("No checkpoint was written yet: the run starts from the beginning.")
    (step,) = here.sum([step if here.is_main else 0.0])
    if step >= 0:
        trainer.restore(read_manifest(keeper.place(int(step))))


def _draw(folder: Path, name: str, console: Console) -> None:
    try:
        path = draw_run(folder, name)
    except ValueError as error:  # without matplotlib a run is as good
        console.print(f"No curves: {error}", highlight=False)
    else:
        console.print(f"Curves: {path}", highlight=False, soft_wrap=True)
