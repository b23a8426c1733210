"""How long measuring will take."""

from __future__ import annotations


class Pace:
    """How long things take on this machine: guessed at first, then learned from what was measured.

    >>> pace = Pace()
    >>> pace.learn_start(10.0); pace.learn_run(flops=1e9, seconds=0.5)
    >>> pace.start, pace.run(flops=4e9)
    (10.0, 2.0)
    """

    START, RATE = 30.0, 1e11
    """Seconds, and FLOPs per second, until something better is known."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._work = self._seconds = 0.0

    def learn_start(self, seconds: float) -> None:
        """A process was started, and a network built and compiled in it."""
        self._starts.append(seconds)

    def learn_run(self, flops: float, seconds: float) -> None:
        self._work += flops
        self._seconds += seconds

    @property
    def start(self) -> float:
        return sum(self._starts) / len(self._starts) if self._starts else self.START

    def run(self, flops: float) -> float:
        return flops * self._seconds / self._work if self._seconds else flops / self.RATE
