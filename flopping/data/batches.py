"""Batches of images by worker processes: augmented, stacked, with a report of images that can't be read.

B batch, C channels, H height, W width.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flopping.data.augment import Preparation, Transformed, stack_images
from flopping.data.decode import convert_image
from flopping.data.images import ImageDataset
from flopping.data.order import Key, MicroBatchSampler, seed_generators
from flopping.errors import RunStoppedError, UnreadableDataError
from flopping.machine import usable_cores

PADDING = -1
"""The label of an image that only fills a batch, or could not be read: it counts for nothing."""
PADDING_KEY: Key = (0, 0)
TRIES = 50
"""How many images in a row may be unreadable."""
MOST_WORKERS = 8
_workers: WeakSet[BaseProcess] = WeakSet()


class Batch(NamedTuple):
    """Images `(B, C, H, W)`, their labels `(B,)`, and the indices of images that could not be read.

    A tuple, because torch's DataLoader pins the memory of tensors in one, so that copies to a GPU are asynchronous.
    """

    images: Tensor
    """As bytes, until they are normalised on the network's device."""
    labels: Tensor
    unreadable: list[int]


class TimedBatches(Iterator[Batch]):
    """Batches, and how many seconds they were waited for."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches, self.seconds = batches, 0.0

    def __next__(self) -> Batch:
        before = monotonic()
        batch = next(self.batches)
        self.seconds += monotonic() - before
        return batch


class WorkerLostError(RunStoppedError):
    """A worker process was killed."""


class DataSource:
    """A rank's share of the training images, one micro-batch at a time. Worker processes live as long as the source."""

    def __init__(
        self, dataset: ImageDataset, preparation: Preparation, sampler: MicroBatchSampler, workers: int
    ) -> None:
        self.sampler, self.preparation = sampler, preparation
        self.loader = _create_loader(dataset, preparation, workers, sampler, training=True)

    def start(self, epoch: int, step: int) -> Iterator[Batch]:
        """The micro-batches of an epoch from a step on: the same ones whether or not those before were read."""
        self.sampler.start_at(epoch, step)
        return _run_workers(self.loader, self.preparation)


def read_evaluation_batches(
    dataset: ImageDataset, preparation: Preparation, batch_size: int, workers: int, rank: int = 0, world_size: int = 1
) -> Iterator[Batch]:
    """A rank's share of all images, each once, in full batches; every rank has as many batches."""
    keys = [(index, 1 + index) for index in range(len(dataset))]
    keys += [PADDING_KEY] * (-len(keys) % (batch_size * world_size))
    mine = keys[rank::world_size]
    chosen = [mine[start : start + batch_size] for start in range(0, len(mine), batch_size)]
    return _run_workers(_create_loader(dataset, preparation, workers, chosen, training=False), preparation)


def read_sample(dataset: ImageDataset, preparation: Preparation, number: int) -> Tensor:
    """`number` images, or all if there are fewer, evenly spaced over the dataset."""
    number = min(number, len(dataset))
    keys = [(index, 1 + index) for index in (i * len(dataset) // number for i in range(number))]
    loader = _create_loader(dataset, preparation, 0, [keys], training=False)
    return next(_run_workers(loader, preparation)).images


class IndexedBatches(Dataset[Batch | UnreadableDataError]):
    """Transformed images by lists of keys. Random numbers of an image depend on its key alone.

    In training, the next readable image takes the place of one that can't be read; in evaluation it counts for
    nothing. Where there is none, the error takes the place of the batch: torch would pass on its text only.
    """

    def __init__(self, dataset: ImageDataset, preparation: Preparation, *, training: bool) -> None:
        self.dataset, self.transform, self.mode = dataset, preparation.transform, preparation.mode
        self.training = training

    def __getitem__(self, keys: list[Key]) -> Batch | UnreadableDataError:
        images: list[Transformed] = []
        labels: list[int] = []
        unreadable: list[int] = []
        for key in keys:
            if key == PADDING_KEY and images:
                images.append(images[0])
                labels.append(PADDING)
                continue
            try:
                image, label, is_replaced = self._read(key[0], unreadable)
            except UnreadableDataError as error:
                return error
            seed_generators(key[1])
            images.append(self.transform(image))
            counts = self.training or not is_replaced
            labels.append(label if counts and key != PADDING_KEY else PADDING)
        return Batch(stack_images(images), torch.tensor(labels), unreadable)

    def _read(self, index: int, unreadable: list[int]) -> tuple[Image.Image, int, bool]:
        """The image at an index or the next readable one, its label, and whether it is another image."""
        for tries in range(TRIES):
            place = (index + tries) % len(self.dataset)
            try:
                image, label = self.dataset.read(place)
                return convert_image(image, self.mode), label, tries > 0
            except Exception:  # damaged files raise more kinds of errors than Pillow documents
                unreadable.append(place)
        raise UnreadableDataError(
            f"{TRIES} images in a row can't be read, from {self.dataset.locate(index)} on: are these images?"
        )


# -- worker processes


def default_workers() -> int:
    """One worker process per core that is left after one for training, at most 8.

    `torchrun` says how many ranks share the machine.
    """
    cores = usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, min(cores - 1, MOST_WORKERS))


def _create_loader(
    dataset: ImageDataset, preparation: Preparation, workers: int, sampler: Iterable[list[Key]], *, training: bool
) -> DataLoader[Any]:
    """torch's DataLoader of whole batches, each made by one worker process."""
    return DataLoader(
        IndexedBatches(dataset, preparation, training=training),
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        pin_memory=preparation.device.type == "cuda",
        persistent_workers=training and workers > 0,
        worker_init_fn=_handle_signals,
    )


def _run_workers(loader: DataLoader[Any], preparation: Preparation) -> Iterator[Batch]:
    """The batches of a loader, normalised on the device. A worker that is killed raises a `WorkerLostError`."""
    with detect_lost_workers(loader.num_workers):
        before = multiprocessing.active_children()
        batches = iter(loader)
        _workers.update(child for child in multiprocessing.active_children() if child not in before)
        for batch in batches:
            if isinstance(batch, UnreadableDataError):
                raise batch
            yield batch._replace(images=preparation.normalise(batch.images))


@contextmanager
def detect_lost_workers(workers: int) -> Iterator[None]:
    """Within it, a worker process that is killed raises a `WorkerLostError`.

    torch raises a plain RuntimeError for it, at any moment: its handler of SIGCHLD does, not only the wait for a batch.
    """
    try:
        yield
    except RuntimeError as error:
        lost = [worker for worker in _workers if worker.exitcode]
        if not lost:
            raise
        _workers.difference_update(lost)
        code = lost[0].exitcode or 0
        how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        raise WorkerLostError(
            f"a process that reads images has ended ({how}), most often because memory is short: use fewer of them"
            f" (--workers, {workers} now), or give them more memory"
        ) from error


def _handle_signals(_: int) -> None:
    """Let a worker end only when its parent says so.

    Terminals, torchrun and batch systems signal all processes at once. The parent handles the signal, and ends its
    workers by SIGTERM.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
    else:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the parent may block it


def _exit_with(parent: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)
