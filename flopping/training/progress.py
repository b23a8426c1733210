"""Where a run is, and how fast it goes."""

from __future__ import annotations

from dataclasses import dataclass


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
        self.loss_sum += sum(losses)
        self.losses += len(losses)
        self.epoch_loss += sum(losses)
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
