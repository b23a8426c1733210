"""What a network says about photos: read ahead by threads, classified in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from flopping.classifier import Classifier
from flopping.cores import usable_cores
from flopping.photos import MAX_PIXELS, Failed, Photo, UnreadableError, read_photo
from flopping.training.loader import Transformed

READERS = 4
"""At most so many threads read photos: each may hold a very large one."""


@dataclass(frozen=True)
class Ranked:
    """A class of an image."""

    label: str
    number: int
    """Its place among the network's classes."""
    probability: float
    """By softmax: those of all classes sum to 1."""
    logit: float
    """What the network gave."""


@dataclass(frozen=True)
class Mirrored:
    """What the network says about the mirror image."""

    same: bool
    """Whether its class is the same."""
    label: str
    difference: float
    """The largest difference between the logits of the two, over all classes."""


@dataclass(frozen=True)
class Prediction:
    """What the network says about an image."""

    name: str
    top: tuple[Ranked, ...]
    """The likeliest classes, the first one first."""
    mirrored: Mirrored | None = None


def predict(
    classifier: Classifier,
    photos: Iterable[str | Path | Photo | Failed],
    *,
    top: int = 5,
    batch: int = 32,
    check_mirror: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Generator[Prediction | Failed, None, None]:
    """The likeliest classes of each photo, or why it can't be used, in their order.

    What `find_photos` could not find is passed on. There are at most `top` classes, and no more than the network has.
    Threads read the next photos while the network works on a batch. With `check_mirror` it also sees the mirror images
    of exactly the pixels it saw.
    """
    for name, value in (("top", top), ("batch", batch), ("max_pixels", max_pixels)):
        if value < 1:
            raise ValueError(f"{name} is at least 1, got {value}")
    return _predictions(classifier, photos, min(top, len(classifier.labels)), batch, check_mirror, max_pixels)


def _predictions(
    classifier: Classifier,
    photos: Iterable[str | Path | Photo | Failed],
    top: int,
    batch: int,
    check_mirror: bool,
    max_pixels: int,
) -> Generator[Prediction | Failed, None, None]:
    waiting: list[tuple[str, Transformed | Failed]] = []
    readable = 0
    for name, found in _read_ahead(classifier, photos, max_pixels, batch):
        waiting.append((name, found))
        readable += not isinstance(found, Failed)
        if readable == batch or not readable:
            yield from _answers(classifier, waiting, top, check_mirror)
            waiting, readable = [], 0
    yield from _answers(classifier, waiting, top, check_mirror)


def _read_ahead(
    classifier: Classifier, photos: Iterable[str | Path | Photo | Failed], max_pixels: int, batch: int
) -> Iterator[tuple[str, Transformed | Failed]]:
    """Photos as large as the network takes them, in their order, up to a batch before they are asked for."""

    def read(photo: Photo | Failed) -> Transformed | Failed:
        if isinstance(photo, Failed):
            return photo
        try:
            return classifier.fitted(read_photo(photo, max_pixels))
        except UnreadableError as error:
            return Failed(photo.name, str(error))
        except Exception as error:  # pixels that no conversion is made for
            return Failed(photo.name, f"its pixels can't be used: {' '.join(str(error).split()) or repr(error)}")

    meant = (photo if isinstance(photo, (Photo, Failed)) else Photo(str(photo)) for photo in photos)
    reading: deque[tuple[str, Future[Transformed | Failed]]] = deque()
    readers = ThreadPoolExecutor(min(READERS, max(1, usable_cores() - 1)), thread_name_prefix="photos")
    try:
        reading.extend((photo.name, readers.submit(read, photo)) for photo in islice(meant, batch + READERS))
        while reading:
            name, found = reading.popleft()
            done = found.result()
            reading.extend((photo.name, readers.submit(read, photo)) for photo in islice(meant, 1))
            yield name, done
    finally:  # also if nobody wants the rest
        readers.shutdown(cancel_futures=True)


def _answers(
    classifier: Classifier, waiting: Sequence[tuple[str, Transformed | Failed]], top: int, check_mirror: bool
) -> Iterator[Prediction | Failed]:
    """What the network says about a batch."""
    images = [found for _, found in waiting if not isinstance(found, Failed)]
    answers = iter(_classified(classifier, images, top, check_mirror) if images else ())
    for name, found in waiting:
        answer = found if isinstance(found, Failed) else next(answers)
        if answer is None:
            yield Failed(name, "the network's answer is not finite: its weights are broken, or still are random")
        elif isinstance(answer, Failed):
            yield answer
        else:
            yield Prediction(name, *answer)


def _classified(
    classifier: Classifier, images: Sequence[Transformed], top: int, check_mirror: bool
) -> Iterator[tuple[tuple[Ranked, ...], Mirrored | None] | None]:
    """The likeliest classes of each image of a batch; None where they are no numbers."""
    labels = classifier.labels
    x = classifier.batch(images)
    logits = _logits(classifier, x)
    mirrored = _logits(classifier, x.flip(-1)) if check_mirror else logits
    finite = logits.isfinite().all(1) & mirrored.isfinite().all(1)
    best = logits.topk(top)
    rows = zip(
        best.indices.tolist(),
        logits.softmax(1).gather(1, best.indices).tolist(),
        best.values.tolist(),
        finite.tolist(),
        strict=True,
    )
    others: Iterable[Mirrored | None] = [None] * len(images)
    if check_mirror:
        difference, first = (logits - mirrored).abs().amax(1).tolist(), mirrored.argmax(1)
        same = (first == logits.argmax(1)).tolist()
        others = [
            Mirrored(stays, labels[number], far)
            for stays, number, far in zip(same, first.tolist(), difference, strict=True)
        ]
    for (numbers, probabilities, values, finite), other in zip(rows, others, strict=True):
        ranked = zip(numbers, probabilities, values, strict=True)
        found = tuple(Ranked(labels[number], number, share, value) for number, share, value in ranked)
        yield (found, other) if finite else None


def _logits(classifier: Classifier, x: Tensor) -> Tensor:
    """Logits `(B, classes)` on the CPU."""
    try:
        with torch.inference_mode():
            logits: Tensor = classifier.model(x)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        raise ValueError(
            f"{len(x)} images at a time take more memory than {classifier.device} has: try a smaller --batch"
        ) from error
    if logits.shape != (len(x), len(classifier.labels)):
        raise ValueError(
            f"{classifier.name!r} gives {tuple(logits.shape)} for {len(x)} images and {len(classifier.labels)} classes"
        )
    return logits.float().cpu()
