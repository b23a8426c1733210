"""Accuracy on images, also moved by each element of a group; images that can't be read, of which all ranks learn."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from timm.data import resolve_model_data_config
from torch import Tensor
from torch.nn.functional import cross_entropy

from flopping.checkpoints.weight_files import CONFIG
from flopping.data.batches import PADDING, Batch, detect_lost_workers, read_evaluation_batches
from flopping.data.datasets import open_dataset
from flopping.data.images import ImageDataset
from flopping.errors import RunStoppedError, StopRequested, UnreadableDataError, UsageError, pluralize, shorten
from flopping.groups import Group, trivial
from flopping.training.distributed import World, init_world
from flopping.training.networks import group_to_test, open_checkpoint
from flopping.training.preprocessing import preparation_of


@dataclass(frozen=True)
class MovedAccuracy:
    """The result for images that are moved by one element of a group."""

    top1: float
    changed: int
    """How many images are classified otherwise than before they were moved."""


@dataclass(frozen=True)
class Accuracy:
    """The share of images whose class the network put first (top-1) or among the first five (top-5), in per cent."""

    images: int
    top1: float
    loss: float
    top5: float | None = None
    """None for networks with at most five classes."""
    changed: int | None = None
    """How many images get another class when some element of the group moves them."""
    moved: dict[str, MovedAccuracy] = field(default_factory=dict)
    """By the names of the group's elements but the identity."""

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, {})}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Accuracy:
        """What `as_dict` gave, in this version or in older ones, which know mirrored images alone."""
        values = dict(values)
        moved = values.pop("moved", {})
        if "mirrored_top1" in values:
            moved = {"flop": {"top1": values.pop("mirrored_top1"), "changed": values["changed"]}}
        return cls(**values, moved={name: MovedAccuracy(**each) for name, each in moved.items()})


def accuracy(
    forward: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    world: World,
    autocast: Callable[[], AbstractContextManager[object]],
    *,
    dtype: torch.dtype = torch.float32,
    group: Group = trivial,
    on_batch: Callable[[Batch], None] = lambda _: None,
) -> Accuracy:
    """Count right answers over all processes, for images and for images moved by each element of a group.

    Images without a class (below 0) only fill a batch.
    """
    # images, top-1, top-5, loss, changed, then top-1 and changed for each element but the identity: added up on the
    # device, which is waited for at the end only
    totals = torch.zeros(3 + 2 * group.order, dtype=torch.float64, device=world.device)
    classes = 0
    with torch.no_grad():
        for batch in batches:
            x = batch.images.to(world.device, dtype, non_blocking=True)
            labels = batch.labels.to(world.device, non_blocking=True)
            counted = labels >= 0
            with autocast():
                logits = forward(x).to(dtype)
            classes = logits.shape[1]
            first = logits.argmax(1)  # of equal logits `topk` may choose another one
            among_best = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
            loss = cross_entropy(logits, labels, reduction="sum", ignore_index=PADDING)
            counts = [counted.sum(), (first == labels).sum(), among_best.sum(), loss]
            any_changed = torch.zeros_like(counted)
            for_elements = []
            for element in range(1, group.order):
                with autocast():  # contiguous, because compiled code is made for one order of strides
                    other = forward(group.act(element, x).contiguous()).argmax(1)
                changed = (other != first) & counted
                any_changed |= changed
                for_elements += [(other == labels).sum(), changed.sum()]
            counts += [any_changed.sum(), *for_elements]
            totals += torch.stack([count.double() for count in counts])
            on_batch(batch)
    total, right, among, loss_sum, changed_sum, *sums = world.all_reduce(totals.tolist())
    if not total:
        raise UnreadableDataError("not one image could be read: is this the right folder of validation or test images?")
    return Accuracy(
        int(total),
        100 * right / total,
        loss_sum / total,
        100 * among / total if classes > 5 else None,
        int(changed_sum) if group.order > 1 else None,
        {
            name: MovedAccuracy(100 * rights / total, int(changes))
            for name, rights, changes in zip(group.elements[1:], sums[::2], sums[1::2], strict=True)
        },
    )


@dataclass(frozen=True)
class Evaluation:
    """The accuracy of a checkpoint, and the images that could not be read."""

    folder: Path
    weights: str
    """averaged, best (of a run, chosen by their accuracy), last (of a run), or saved if they are none of these."""
    model: str
    images: str
    """The images it was tested on."""
    accuracy: Accuracy
    unreadable: list[str]


def evaluate_checkpoint(
    path: Path,
    data: str,
    root: str | None,
    device: str,
    workers: int,
    batch_size: int,
    *,
    move: bool,
    group: str | None,
    average: bool,
    code: str | None = None,
    progress: Callable[[int, int], object],
) -> Evaluation:
    """Accuracy of a trained network on the test images of a data set, over all ranks if `torchrun` started them.

    With `move` it is also tested on images that are moved by the elements of a group: the one that is named, or the
    network's own, or flop for an ordinary network. `progress` is called with the number of images that are done.
    """
    with init_world(device) as world, world.detect_lost_peers():
        with world.raise_on_all_ranks():
            folder, model, config = open_checkpoint(path, average=average, code=code)
            model.eval().to(world.device)
            source = open_dataset(data, "test", root)
            labels = _labels(config, folder, source.classes, data)
            preparation = preparation_of(model, world.device)
            size = resolve_model_data_config(model)["input_size"][1:]
            moving = group_to_test(model, group, size) if move else trivial
            loader = read_evaluation_batches(source, preparation, batch_size, workers, world.rank, world.size)
        unreadable: set[int] = set()
        done = 0

        def report(batch: Batch) -> None:
            nonlocal done
            unreadable.update(batch.unreadable)
            done = min(done + world.size * len(batch.labels), len(source))
            progress(done, len(source))

        batches = stop_on_all_ranks(loader, world, lambda: False)
        named = (batch._replace(labels=labels[batch.labels]) for batch in batches)
        with detect_lost_workers(workers):
            found = accuracy(model, named, world, nullcontext, group=moving, on_batch=report)
        lost = sorted(set().union(*world.all_gather_object(unreadable)))
    links = (name for name in ("best", "last") if os.path.realpath(folder.parent.parent / name) == str(folder))
    weights = "averaged" if average else next(links, "saved")
    return Evaluation(
        folder, weights, config["architecture"], source.name, found, [source.locate(index) for index in lost]
    )


def _labels(config: Mapping[str, Any], folder: Path, classes: Sequence[str], data: str) -> Tensor:
    """The network's number of each class of the data, found by its name; padding stays padding."""
    known = config.get("label_names")
    if config.get("num_classes") != len(classes):
        raise UsageError(
            f"{str(folder)!r} knows {config.get('num_classes')} classes, and {data!r} has {len(classes)}: test it on"
            " the data it was trained for, or train a new classifier (flopping train --init ...)"
        )
    if isinstance(known, list):
        known = list(map(str, known))
    elif isinstance(known, (str, int, float)):
        raise UsageError(f"label_names in {str(folder / CONFIG)!r} is a list of names, got {known!r}")
    else:  # a network that was saved without names
        return torch.tensor([*range(len(classes)), PADDING])
    strange = [name for name in classes if name not in known]
    if strange:
        raise UsageError(
            f"{str(folder)!r} knows no class {strange[0]!r} of {data!r}; its classes are {', '.join(known[:5])}"
            f"{', ...' if len(known) > 5 else ''}, as label_names in its {CONFIG} say: give the data the same names"
        )
    return torch.tensor([*(known.index(name) for name in classes), PADDING])


READ_ERRORS = (RunStoppedError, OSError, RuntimeError, ValueError)
"""Errors after which a rank cannot read on: there is no readable image, a file system is gone, a worker was killed."""


class UnreadableImages:
    """The images of a run that could not be read. The run goes on without them, up to a share of training images."""

    def __init__(self, train: ImageDataset, validation: ImageDataset, world: World, share: float) -> None:
        self.train, self.validation, self.world, self.share = train, validation, world, share
        self.known: set[int] = set()
        """Training images that could not be read, on any rank."""
        self.found: set[int] = set()
        """Those that only this rank knows of yet."""
        self.tests: set[int] = set()
        """Images of the last test that this rank could not read."""

    def record(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Batches for training, whose unreadable images are recorded."""
        for batch in batches:
            self.found.update(batch.unreadable)
            yield batch

    def gather(self) -> None:
        """Gather unreadable images from all ranks; stop above the allowed share."""
        self.known |= set().union(*self.world.all_gather_object(self.found))
        self.found.clear()
        if len(self.known) > self.share * len(self.train):
            raise RunStoppedError(
                f"{len(self.known)} of {len(self.train)} training images can't be read, more than"
                f" --unreadable-share {self.share:g} allows: {shorten(_locate(self.train, self.known))}. Replace them"
                " by good ones and go on with --resume, or allow more: with --unreadable-share 1 a run does without"
                " them, and lists all at its end"
            )

    def summarize(self) -> tuple[list[str], list[str]]:
        """At the end of a run: warnings, and where all of them lie. All ranks take part."""
        tests = set().union(*self.world.all_gather_object(self.tests))
        warnings, places = [], []
        for dataset, indices, kind, meanwhile in (
            (self.train, self.known, "training image", "replaced by other images"),
            (self.validation, tests, "validation image", "left out"),
        ):
            here = _locate(dataset, indices)
            places += here
            if here:
                warnings.append(
                    f"[yellow]{pluralize(len(here), kind)} could not be read[/yellow], {meanwhile}:"
                    f" {escape(shorten(here))}. Put good images there before the next run."
                )
        return warnings, places


def _locate(dataset: ImageDataset, indices: set[int]) -> list[str]:
    return [dataset.locate(index) for index in sorted(indices)]


def pad_after_read_error(
    batches: Iterator[Batch], blank: Callable[[], Batch], report: Callable[[str], None]
) -> Iterator[Batch]:
    """Batches for one of several ranks. Once reading fails, it reports the reason and goes on with blank batches.

    The other ranks wait for its share of the step, and learn of the problem afterwards.
    """
    try:
        yield from batches
    except READ_ERRORS as error:
        report(str(error) or repr(error))
        while True:
            yield blank()


def stop_on_all_ranks(batches: Iterable[Batch], world: World, stop_requested: Callable[[], bool]) -> Iterator[Batch]:
    """Batches of a test. It ends on all ranks if reading fails on one, or if one is asked to stop."""
    iterator = iter(batches)
    while True:
        batch = problem = None
        try:
            batch = next(iterator, None)
        except READ_ERRORS as error:
            if world.size == 1:
                raise
            problem = str(error) or repr(error)
        failed, stopped = world.all_reduce([float(problem is not None), float(stop_requested())])
        if failed:
            raise RunStoppedError(world.first_problem(problem))
        if batch is None:  # on all ranks: all have as many batches
            return
        if stopped:
            raise StopRequested
        yield batch
