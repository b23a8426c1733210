"""A run from its command to its end: sources, processes, the folder, resuming, and the picture."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import replace
from math import ceil
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from flopping.models.zoo import registered_name
from flopping.training.checkpoint import Checkpoint, Keeper, read_manifest
from flopping.training.curves import CURVES, draw_run
from flopping.training.evaluate import Accuracy
from flopping.training.images import Images
from flopping.training.job import RUN, Job, Machine
from flopping.training.journal import read_log, warn
from flopping.training.precision import usable_precision
from flopping.training.processes import AgreedError, World, world
from flopping.training.run_folder import is_free, reserved
from flopping.training.sources import open_source, require_same_classes
from flopping.training.stops import InterruptedRunError, Signals
from flopping.training.trainer import Trainer

CHUNK = {"cpu": 64, "cuda": 256}
"""Images that go through a network together, if nobody says otherwise."""
IDLE = 1.1
"""So many times its even share of a batch a process may have, where chunks can't be shared evenly."""


def train(job: Job, machine: Machine, folder: Path, console: Console, *, resume: bool = False) -> Accuracy:
    """Train, or go on with training, in this process or in all that `torchrun` started.

    A run that has come to its end gives its result once more, and nothing is changed.
    """
    job.recipe.require_family(job.model)
    registered_name(job.model)  # what there is no network for is refused before images are looked at
    with world(machine.device) as here, ExitStack() as stack:
        signals = Signals(speaks=here.is_main, launched=here.launched, shielded=machine.compile)
        stack.enter_context(signals)
        with here.together():
            require_compiler(machine, here)
            job = _with_precision(job, here, console)
            kept = _kept(job, folder, resume)
        if len(set(here.every(kept is None))) > 1:
            raise AgreedError(f"some processes find a run in {str(folder)!r} and others don't: all need one folder")
        trainer = None
        if kept is None:  # what can't be done is refused before there is a folder
            trainer = _trainer(job, machine, folder, here, console, signals)
            job = trainer.job
        with here.together():
            if here.is_main:
                stack.enter_context(reserved(folder))
                if kept is None:
                    _kept(job, folder, resume=False)  # another process may have begun meanwhile
                    job.write(folder)
        start = None
        if kept is not None:
            job = kept
            start = _newest(folder, here, console)
            result = None if start is None else _result(folder, start.step)
            if result is not None:
                if here.is_main:
                    console.print("This run has come to its end already.", highlight=False)
                    if not (folder / CURVES).exists():
                        _draw(folder, job.model, console)
                return result
        if start is not None:
            without = replace(job, init=None)  # its weights come from the checkpoint
            trainer = _trainer(without, machine, folder, here, console, signals)
            trainer.restore(start)
        trainer = trainer or _trainer(job, machine, folder, here, console, signals)
        _go_on(here, signals)
        result = trainer.run()
        if here.is_main:
            _draw(folder, job.model, console)
        return result


def _go_on(here: World, signals: Signals) -> None:
    """End, if any process was asked to stop before the first step: to open images may take minutes."""
    if any(here.every(signals.asked)):
        raise InterruptedRunError("stopped before the first step: there is nothing to save")


def _trainer(job: Job, machine: Machine, folder: Path, here: World, console: Console, signals: Signals) -> Trainer:
    """The trainer of a job, with its images. Nothing is written."""
    _go_on(here, signals)
    with here.together():
        job = _with_chunk(job, here)
        train, test = (open_source(job.data, split, job.root) for split in ("train", "test"))
        require_same_classes(train, test, job.data)
    _require_one_view(here, train, test)
    _go_on(here, signals)
    for note in filter(None, (train.note, test.note) if here.is_main else ()):
        warn(console, escape(note))
    return Trainer(job, machine, folder, here, train, test, console, signals)


def _require_one_view(here: World, train: Images, test: Images) -> None:
    """Refuse to start where processes find different images: they would do different things, and wait for ever."""
    views = [
        f"{images} training and {tests} test images of {len(classes)} classes"
        for images, tests, classes in here.every((len(train), len(test), train.classes))
    ]
    other = next((rank for rank, view in enumerate(views) if view != views[0]), None)
    if other is not None:
        raise AgreedError(
            f"processes find different data: process 0 has {views[0]}, process {other} has {views[other]}."
            " All need the same files"
        )


def _kept(job: Job, folder: Path, resume: bool) -> Job | None:
    """The job of the run that lies in the folder, if it is to be resumed and there is one."""
    if folder.is_file():
        raise ValueError(f"{str(folder)!r} is a file: -o names the folder of the run")
    exists = (folder / RUN).exists()
    if exists and not resume:
        raise ValueError(f"there is a run in {str(folder)!r}: --resume goes on with it, or name another folder")
    if not exists and not is_free(folder):
        raise ValueError(f"{str(folder)!r} holds other files than those of a run: name another folder")
    return job.continued(Job.read(folder), folder) if exists else None


def has_compiler() -> bool:
    """Whether there is a C++ compiler, which networks on a CPU are compiled with."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def require_compiler(machine: Machine, here: World) -> None:
    """Refuse to compile without a compiler, rather than fail in the first step."""
    if machine.compile and here.device.type == "cpu" and not has_compiler():
        raise ValueError(
            f"no C++ compiler is called {os.environ.get('CXX', 'g++')!r}, and networks on a CPU are compiled with one:"
            " install it, name it by the variable CXX, or go without (--no-compile)"
        )


def _with_precision(job: Job, here: World, console: Console) -> Job:
    """The job in the arithmetic that the machine has."""
    precision, why = usable_precision(job.recipe.precision, here.device)
    if why and here.is_main:
        warn(console, why)
    return replace(job, recipe=job.recipe.override([f"precision={precision}"]))


def _with_chunk(job: Job, here: World) -> Job:
    """The job with as many images at a time as the machine takes."""
    recipe = job.recipe
    chunk = job.chunk or default_chunk(recipe.batch_size, here.size, CHUNK[here.device.type], recipe.mixes)
    if recipe.mixes and chunk % 2:
        raise ValueError(f"mixup and CutMix mix pairs of images: --chunk is even, got {chunk}")
    return replace(job, chunk=chunk)


def default_chunk(batch_size: int, processes: int, most: int, even: bool) -> int:
    """The largest chunk that cuts every process's share of a batch evenly, or leaves processes little idle.

    >>> [default_chunk(2048, processes, 64, even=True) for processes in (1, 3, 64)], default_chunk(50, 2, 64, False)
    ([64, 64, 32], 25)
    >>> default_chunk(25, 1, 64, even=True)
    Traceback (most recent call last):
    ...
    ValueError: a batch of 25 images can't be cut into pairs, which mixup and CutMix mix
    """
    found = [n for n in range(1, min(batch_size, most) + 1) if batch_size % n == 0 and not (even and n % 2)]
    if not found:
        raise ValueError(f"a batch of {batch_size} images can't be cut into pairs, which mixup and CutMix mix")
    images = {n: n * ceil(batch_size / n / processes) for n in found}  # of the process that has most of them
    least: float = min(images.values())
    if least * processes > batch_size:  # none is even, and the smallest chunks, which come closest, are slow
        least = max(least, IDLE * batch_size / processes)
    return max(n for n in found if images[n] <= least)


def _newest(folder: Path, here: World, console: Console) -> Checkpoint | None:
    """The newest good checkpoint of a run: the main process looks for it, and all read the same one."""
    keeper = Keeper(folder)
    step = None
    with here.together():
        if here.is_main:
            newest, problems = keeper.newest()
            step = None if newest is None else newest.step
            instead = "the run starts from the beginning" if step is None else f"the one of step {step} is used"
            for problem in problems:
                warn(console, f"[yellow]Warning:[/yellow] {escape(problem)}; {instead}")
            if step is None and not problems:
                console.print("No checkpoint was written yet: the run starts from the beginning.")
    step = here.every(step)[0]
    with here.together():
        return None if step is None else read_manifest(keeper.place(step))


def _result(folder: Path, step: int) -> Accuracy | None:
    """The result of a run whose newest checkpoint is of a step, if that was its last one."""
    ends = [event for event in read_log(folder) if event.get("kind") == "end" and event.get("step") == step]
    return Accuracy(**ends[-1]["result"]) if ends else None


def _draw(folder: Path, name: str, console: Console) -> None:
    try:
        path = draw_run(folder, name)
    except ValueError as error:  # without matplotlib a run is as good
        console.print(f"No curves: {escape(str(error))}", highlight=False, soft_wrap=True)
    else:
        console.print(f"Curves: {escape(str(path))}", highlight=False, soft_wrap=True)
