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
        self._guess = self.START
        self._starts: list[float] = []
        self._work = self._seconds = 0.0

    def guess_start(self, seconds: float) -> None:
        """What to expect until one was measured."""
        self._guess = seconds

    def learn_start(self, seconds: float) -> None:
        """A process was started, and a network built and compiled in it."""
        self._starts.append(seconds)

    def learn_run(self, flops: float, seconds: float) -> None:
        self._work += flops
        self._seconds += seconds

    @property
    def start(self) -> float:
        return sum(self._starts) / len(self._starts) if self._starts else self._guess

    def run(self, flops: float) -> float:
        return flops * self._seconds / self._work if self._seconds else flops / self.RATE


def minutes(seconds: float) -> str:
    """A time to read.

    >>> minutes(50.4), minutes(95.0), minutes(119.7)
    ('50 s', '1 min 35 s', '2 min 00 s')
    """
    whole, rest = divmod(round(seconds), 60)
    return f"{whole} min {rest:02} s" if whole else f"{rest} s"
