"""What a network says about photos: read ahead by threads, classified in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from flopping.data.augment import Transformed
from flopping.data.photos import MAX_PIXELS, Failed, Photo, UnreadableError, read_photo
from flopping.deploy.classifier import Classifier
from flopping.errors import UsageError
from flopping.groups import Group, trivial
from flopping.machine import is_out_of_memory, usable_cores
from flopping.models.fuse import fuse

READERS = 4
"""The largest number of threads that read photos: each may hold a very large one."""
Named = str | Path | Photo | Failed
"""A photo to be read, or one that `find_photos` could not find."""


@dataclass(frozen=True)
class Ranked:
    label: str
    number: int
    """Its index among the network's classes."""
    probability: float
    """By softmax: those of all classes sum to 1."""
    logit: float


@dataclass(frozen=True)
class Moved:
    """What the network says about the image moved by an element of a group."""

    same: bool
    label: str
    difference: float
    """The largest difference between the logits of the two, over all classes."""


@dataclass(frozen=True)
class Prediction:
    """What the network says about an image."""

    name: str
    top: tuple[Ranked, ...]
    """The classes with the highest probabilities, the highest first."""
    moved: dict[str, Moved] = field(default_factory=dict)
    """By the names of the group's elements but the identity."""


def predict(
    classifier: Classifier,
    photos: Iterable[Named],
    *,
    top: int = 5,
    batch: int = 32,
    check: Group = trivial,
    max_pixels: int = MAX_PIXELS,
) -> Generator[Prediction | Failed, None, None]:
    """The `top` classes of each photo, or why it can't be used, in the order of the photos.

    A `Failed` of `find_photos` is passed on. Threads read the next photos while the network works on a batch. The
    network also sees exactly the pixels it saw moved by the elements of the group `check`: `flop` for mirror images,
    `classifier.group` for all that the network knows.
    """
    for name, value in (("top", top), ("batch", batch), ("max_pixels", max_pixels)):
        if value < 1:
            raise ValueError(f"{name} is at least 1, got {value}")
    classifier = replace(classifier, model=fuse(classifier.model))
    with closing(_read_ahead(classifier, photos, max_pixels, batch)) as read:
        while found := list(islice(read, batch)):
            images = [image for _, image in found if not isinstance(image, Failed)]
            x = classifier.batch(images) if images else None
            logits = [_logits(classifier, check.act(g, x)) for g in range(check.order)] if x is not None else []
            rows = zip(*logits, strict=True)
            for name, image in found:
                if isinstance(image, Failed):
                    yield image
                else:
                    yield _rank(name, classifier.labels, check.elements, next(rows), top)


def _read_ahead(
    classifier: Classifier, photos: Iterable[Named], max_pixels: int, batch: int
) -> Generator[tuple[str, Transformed | Failed], None, None]:
    """Fitted photos in their order, prefetched up to one batch ahead."""

    def read(photo: Photo | Failed) -> Transformed | Failed:
        if isinstance(photo, Failed):
            return photo
        try:
            return classifier.fit(read_photo(photo, max_pixels))
        except UnreadableError as error:
            return Failed(photo.name, str(error))
        except Exception as error:  # a kind of pixels without a conversion
            return Failed(photo.name, f"its pixels can't be used: {' '.join(str(error).split()) or repr(error)}")

    named = (photo if isinstance(photo, (Photo, Failed)) else Photo(str(photo)) for photo in photos)
    reading: deque[tuple[str, Future[Transformed | Failed]]] = deque()
    readers = ThreadPoolExecutor(min(READERS, max(1, usable_cores() - 1)), thread_name_prefix="photos")

    def submit(number: int) -> None:
        reading.extend((photo.name, readers.submit(read, photo)) for photo in islice(named, number))

    try:
        submit(batch + READERS)
        while reading:
            name, future = reading.popleft()
            found = future.result()
            submit(1)
            yield name, found
    finally:  # also if the caller stops early
        readers.shutdown(cancel_futures=True)


def _rank(
    name: str, labels: tuple[str, ...], elements: Sequence[str], rows: Sequence[Tensor], top: int
) -> Prediction | Failed:
    """A prediction from the logits of an image, moved by each element of a group: the first is the identity."""
    if not all(row.isfinite().all() for row in rows):
        return Failed(name, "the network's answer is not finite: its weights are broken, or still are random")
    row = rows[0]
    best = row.topk(min(top, len(labels)))
    columns = zip(best.indices.tolist(), row.softmax(0)[best.indices].tolist(), best.values.tolist(), strict=True)
    ranked = tuple(Ranked(labels[number], number, share, logit) for number, share, logit in columns)
    moved = {}
    for element, other in zip(elements[1:], rows[1:], strict=True):
        first = int(other.argmax())  # of equal logits `topk` may choose another one
        moved[element] = Moved(first == int(row.argmax()), labels[first], (row - other).abs().max().item())
    return Prediction(name, ranked, moved)


def _logits(classifier: Classifier, x: Tensor) -> Tensor:
    """Rows of logits, on the CPU."""
    try:
        with torch.inference_mode():
            logits: Tensor = classifier.model(x)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UsageError(
            f"--batch {len(x)}: so many images don't fit into the memory of {classifier.device}"
        ) from error
    if logits.shape != (len(x), len(classifier.labels)):
        wanted = (len(x), len(classifier.labels))
        raise UsageError(f"{classifier.name!r} gives logits of {tuple(logits.shape)}, and not {wanted}")
    return logits.float().cpu()
