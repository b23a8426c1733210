"""Accuracy on test images and on their mirror images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from flopping.training.loader import FILLER, Batch
from flopping.training.processes import World
from flopping.training.stops import UnreadableError


@dataclass(frozen=True)
class Accuracy:
    """Of how many images the right class came first, or among the first five; in per cent."""

    images: int
    top1: float
    top5: float
    loss: float
    mirrored_top1: float | None = None
    """The same for mirrored images."""
    changed: int | None = None
    """How many images are classified otherwise when they are mirrored."""

    def as_dict(self) -> dict[str, float | int]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def accuracy(
    forward: Callable[[Tensor], Tensor],
    batches: Iterable[Batch],
    world: World,
    precision: Callable[[], AbstractContextManager[object]],
    *,
    dtype: torch.dtype = torch.float32,
    mirror: bool = False,
    each: Callable[[Batch], None] = lambda _: None,
) -> Accuracy:
    """Count right answers over all processes; images without a class (below 0) only fill a batch."""
    images = right = among = changed = mirrored = 0
    loss = 0.0
    with torch.no_grad():
        for batch in batches:
            x = batch.images.to(world.device, dtype, non_blocking=True)
            labels = batch.labels.to(world.device)
            counted = labels >= 0
            with precision():
                logits = forward(x).to(dtype)
            best = logits.topk(min(5, logits.shape[1])).indices
            hits = best == labels[:, None]
            images += int(counted.sum())
            right += int(hits[:, 0].sum())
            among += int(hits.sum())
            loss += float(cross_entropy(logits, labels, reduction="sum", ignore_index=FILLER))
            if mirror:
                with precision():
                    other = forward(x.flip(-1)).argmax(1)
                mirrored += int((other == labels).sum())
                changed += int(((other != best[:, 0]) & counted).sum())
            each(batch)
    sums = world.sum([images, right, among, loss, mirrored, changed])
    total = sums[0]
    if not total:
        raise UnreadableError("not one test image could be read: is the folder of test images the right one?")
    return Accuracy(
        int(total),
        100 * sums[1] / total,
        100 * sums[2] / total,
        sums[3] / total,
        100 * sums[4] / total if mirror else None,
        int(sums[5]) if mirror else None,
    )
