"""A run from its command to its end: its folder, its data, its ranks, and resuming."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from math import ceil
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from flopping.data.datasets import open_dataset, require_same_classes
from flopping.data.images import ImageDataset
from flopping.errors import RunInterruptedError, UsageError, as_usage_error
from flopping.files import folder_lock
from flopping.machine import deterministic_algorithms, find_compiler, usable_precision
from flopping.training.checkpoint import Checkpoint, CheckpointManager, read_manifest
from flopping.training.distributed import SharedUsageError, World, init_world
from flopping.training.evaluate import Accuracy
from flopping.training.job import RUN, Job, RunOptions, fingerprint
from flopping.training.networks import describe_mismatch, identify, is_own_code
from flopping.training.run_log import CURVES, LOG, read_log, warn
from flopping.training.signals import StopSignals
from flopping.training.trainer import Trainer

MICRO_BATCH = {"cpu": 64, "cuda": 256}
"""The largest micro-batch by default."""
MAX_IMBALANCE = 1.1
"""The largest share of a batch that one rank may get, relative to an equal share."""


def train(
    job: Job, options: RunOptions, folder: Path, console: Console, *, resume: bool = False, restart: bool = False
) -> Accuracy:
    """Train, or go on with training, in this process or in all that `torchrun` started.

    A complete run returns its result, and nothing is changed. With `restart`, a run whose checkpoints are all corrupted
    starts from the beginning.
    """
    job = replace(job, network=identify(job.model))  # an unknown network is refused before images are opened
    if options.shard and is_own_code(job.model):
        raise UsageError(f"--shard takes networks by name, and {job.model!r} is your own code: train without it")
    with init_world(options.device) as world, ExitStack() as stack:
        signals = StopSignals(verbose=world.is_main, launched=world.launched)
        stack.enter_context(signals)
        stack.enter_context(deterministic_algorithms(options.deterministic))
        with world.raise_on_all_ranks():
            require_compiler(options, world)
            job = _with_precision(job, world, console)
            stored = _find_run(folder, resume)
            moved = stored is not None and (stored.data, stored.root) != (job.data, job.root)
            if stored is not None:
                job = job.resume(stored, folder)
        if len(set(world.all_gather_object(stored is None))) > 1:
            raise SharedUsageError(
                f"some processes find a run in {str(folder)!r} and others don't: all need one folder"
            )
        trainer = None
        if stored is None:  # a job that can't be done is refused before there is a folder
            trainer = _build_trainer(job, options, folder, world, console, signals)
        with world.raise_on_all_ranks():
            if world.is_main:
                stack.enter_context(lock_run(folder))
                if trainer is not None:
                    _find_run(folder, resume=False)  # another process may have begun meanwhile
                    trainer.job.write(folder)
        if trainer is None:
            start = _find_start(folder, world, console, restart)
            result = None if start is None else _find_result(folder, start.step)
            if result is not None:
                if moved:
                    _open_data(job, world)
                if world.is_main:
                    console.print("The run is already complete.", highlight=False)
                return result
            trainer = _build_trainer(job, options, folder, world, console, signals, resumes=start is not None)
            if start is not None:
                trainer.restore(start)
        _stop_if_requested(world, signals)
        return trainer.run()


def _stop_if_requested(world: World, signals: StopSignals) -> None:
    """Stop, if any process received a signal before the first step: opening images may take minutes."""
    if any(world.all_gather_object(signals.requested)):
        raise RunInterruptedError("stopped before the first step: there is nothing to save")


def _build_trainer(
    job: Job,
    options: RunOptions,
    folder: Path,
    world: World,
    console: Console,
    signals: StopSignals,
    *,
    resumes: bool = False,
) -> Trainer:
    """The trainer of a job, with its images. Nothing is written."""
    _stop_if_requested(world, signals)
    with world.raise_on_all_ranks():
        job = _with_micro_batch(job, world)
    train, validation, found = _open_data(job, world)
    _stop_if_requested(world, signals)
    for note in filter(None, (train.note, validation.note) if world.is_main else ()):
        warn(console, escape(note))
    job = replace(job, fingerprint=found)
    trainer = Trainer(job, options, folder, world, train, validation, console, signals, resumes=resumes)
    if world.is_main and not is_own_code(job.model) and (mismatch := describe_mismatch(job.recipe, trainer.model)):
        warn(console, f"[yellow]{mismatch}[/yellow]")
    return trainer


def _open_data(job: Job, world: World) -> tuple[ImageDataset, ImageDataset, str]:
    """The images of a job and their fingerprint, which must be the same on all ranks and as the job has it."""
    with world.raise_on_all_ranks():
        train, validation = (open_dataset(job.data, split, job.root) for split in ("train", "validation"))
        require_same_classes(train, validation, job.data)
        found = fingerprint(train, validation)
    prints = world.all_gather_object(found)
    other = next((rank for rank, each in enumerate(prints) if each != prints[0]), None)
    if other is not None:
        raise SharedUsageError(
            f"processes find different data: process 0 has {prints[0]}, process {other} has {prints[other]}."
            " All need the same files"
        )
    if job.fingerprint not in (None, found):
        raise SharedUsageError(
            f"{job.data!r} is not the data of the run: it has {found}, and the run was started on {job.fingerprint}."
            " Bring the images back, or start another run (--init takes weights along)"
        )
    return train, validation, found


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Within it, no other process may train in the folder, which is made if it isn't there."""
    refusal = "another process ({}) trains in {!r}: wait for its end, or name another folder"
    with folder_lock(folder, lambda holder: refusal.format(holder, str(folder))):
        for name in (RUN, LOG, CURVES):
            for leftover in folder.glob(f".{name}.*"):  # of a writer that was killed
                shutil.rmtree(leftover, ignore_errors=True)
        yield


def is_free(folder: Path) -> bool:
    """Whether a new run may use the folder: it is missing, empty, or holds only hidden files.

    A run that was killed before its first write leaves hidden files.
    """
    return not folder.is_dir() or all(entry.name.startswith(".") for entry in folder.iterdir())


def _find_run(folder: Path, resume: bool) -> Job | None:
    """The job of the run in the folder, if it is to be resumed and there is one."""
    if folder.is_file():
        raise UsageError(f"{str(folder)!r} is a file: -o names the folder of the run")
    with as_usage_error(UnicodeEncodeError, context=f"-o {str(folder)!r} is no name in UTF-8"):
        str(folder).encode()
    exists = (folder / RUN).exists()
    if exists and not resume:
        raise UsageError(f"there is a run in {str(folder)!r}: --resume goes on with it, or name another folder")
    if not exists and not is_free(folder):
        raise UsageError(f"{str(folder)!r} holds other files than those of a run: name another folder")
    return Job.read(folder) if exists else None


def require_compiler(options: RunOptions, world: World) -> None:
    """Refuse to compile without a compiler, rather than fail in the first step."""
    compiler, is_there = find_compiler()
    if options.compile and world.device.type == "cpu" and not is_there:
        raise UsageError(
            f"no C++ compiler is called {compiler!r}, and networks on a CPU are compiled with one: install it, name it"
            " by the variable CXX, or go without (--no-compile)"
        )


def _with_precision(job: Job, world: World, console: Console) -> Job:
    """The job in the arithmetic that the machine has."""
    precision, why = usable_precision(job.recipe.precision, world.device)
    if why and world.is_main:
        warn(console, why)
    return replace(job, recipe=replace(job.recipe, precision=precision))


def _with_micro_batch(job: Job, world: World) -> Job:
    """The job with the default micro-batch, if it has none."""
    recipe = job.recipe
    limit = MICRO_BATCH[world.device.type]
    size = job.micro_batch or default_micro_batch(recipe.batch_size, world.size, limit, recipe.mixes)
    if recipe.mixes and size % 2:
        raise UsageError(f"mixup and CutMix mix pairs of images: --micro-batch is even, got {size}")
    return replace(job, micro_batch=size)


def default_micro_batch(batch_size: int, world_size: int, most: int, in_pairs: bool) -> int:
    """The largest micro-batch that cuts every rank's share of a batch evenly, or leaves ranks little idle.

    With `in_pairs` it is an even number: images are mixed in pairs.

    >>> [default_micro_batch(2048, ranks, 64, in_pairs=True) for ranks in (1, 3, 64)]
    [64, 64, 32]
    >>> default_micro_batch(50, 2, 64, in_pairs=False)
    25
    >>> default_micro_batch(25, 1, 64, in_pairs=True)
    Traceback (most recent call last):
    ...
    flopping.errors.UsageError: a batch of 25 images can't be cut into pairs, which mixup and CutMix mix
    """
    found = [n for n in range(1, min(batch_size, most) + 1) if batch_size % n == 0 and not (in_pairs and n % 2)]
    if not found:
        raise UsageError(f"a batch of {batch_size} images can't be cut into pairs, which mixup and CutMix mix")
    images = {n: n * ceil(batch_size / n / world_size) for n in found}  # of the rank that has most of them
    least: float = min(images.values())
    if least * world_size > batch_size:  # no size gives equal shares; the smallest sizes come closest, but are slow
        least = max(least, MAX_IMBALANCE * batch_size / world_size)
    return max(n for n in found if images[n] <= least)


def _find_start(folder: Path, world: World, console: Console, restart: bool) -> Checkpoint | None:
    """The newest valid checkpoint of a run, which rank 0 looks for and all ranks read."""
    manager = CheckpointManager(folder)
    step = None
    with world.raise_on_all_ranks():
        if world.is_main:
            newest, problems = manager.find_newest(restart=restart)
            step = None if newest is None else newest.step
            instead = "the run starts from the beginning" if step is None else f"the one of step {step} is used"
            for problem in problems:
                warn(console, f"[yellow]Warning:[/yellow] {escape(problem)}; {instead}")
            if step is None and not problems:
                console.print("No checkpoint was written yet: the run starts from the beginning.")
    step = world.broadcast_object(step)
    with world.raise_on_all_ranks():
        return None if step is None else read_manifest(manager.step_folder(step))


def _find_result(folder: Path, step: int) -> Accuracy | None:
    """The result in the log, if the checkpoint is of the last step."""
    for event in reversed(read_log(folder)):
        if event["kind"] == "end" and event["step"] == step:
            with suppress(AttributeError, KeyError, TypeError, ValueError):  # a damaged log: tested again
                return Accuracy.from_dict(event["result"])
    return None
