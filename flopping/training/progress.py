"""Where a run is, and how fast it goes."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS = 1.0
"""After so long at the latest, a step included, it is noticed that a run was asked to stop."""


@dataclass
class Progress:
    """Where a run is, and what it has seen on the way."""

    step: int = 0
    epochs: int = 0
    """Epochs that were ended: tested, if that was due, and saved."""
    events: int = 0
    """Lines of the log."""
    loss_sum: float = 0.0
    """Of the steps since the last line of the log."""
    losses: int = 0
    epoch_loss: float = 0.0
    """Sum over the steps of the epoch."""
    images: int = 0
    """How many images were read."""
    timed_images: int = 0
    timed_seconds: float = 0.0
    """Time spent on so many of them: without tests, checkpoints, and the first step of a process, which compiles."""

    def add(self, losses: list[float], images: int) -> None:
        self.step += len(losses)
        self.losses += len(losses)
        for loss in losses:  # one by one: the sums don't depend on how many come at a time
            self.loss_sum += loss
            self.epoch_loss += loss
        self.images += images

    @property
    def speed(self) -> float:
        """Images per second."""
        return self.timed_images / self.timed_seconds if self.timed_seconds else 0.0

    @property
    def seconds(self) -> float:
        """What the training so far takes at that speed."""
        return self.images / self.speed if self.speed else 0.0


@dataclass
class Window:
    """Time since the last line of the log, and how much of it was spent on waiting for images."""

    images: int = 0
    seconds: float = 0.0
    waiting: float = 0.0

    @property
    def speed(self) -> float | None:
        """Images per second."""
        return self.images / self.seconds if self.seconds else None

    @property
    def waiting_share(self) -> float | None:
        return self.waiting / self.seconds if self.seconds else None


class Pace:
    """How many steps are done before what they gave is looked at: as many as take a second, and at most so many.

    Steps that are a multiple of a mark are always looked at, so that lines of the log don't depend on the pace.

    >>> pace = Pace(10, (4, None))
    >>> [pace.is_due(steps, 8) for steps in (1, 2)], [pace.set(seconds) for seconds in (70.0, 0.3, 0.01)]
    ([True, True], [1, 3, 10])
    >>> [steps for steps in range(1, 11) if pace.is_due(steps, 7)]
    [1, 5, 9, 10]
    """

    def __init__(self, most: int, marks: tuple[int | None, ...]) -> None:
        self.most, self.marks = most, [mark for mark in marks if mark is not None]
        self.steps = 1

    def set(self, seconds: float) -> int:
        """Go by what a step takes, which is the same number in all processes."""
        self.steps = max(1, min(self.most, int(SECONDS / seconds))) if seconds > 0 else self.most
        return self.steps

    def is_due(self, steps: int, before: int) -> bool:
        """Whether to look after so many steps, and as many before them."""
        return steps >= self.steps or any((before + steps) % mark == 0 for mark in self.marks)
