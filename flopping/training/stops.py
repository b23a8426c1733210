"""How a run ends before its last step: asked to, or because it can't go on."""

from __future__ import annotations

import os
import signal
from collections import deque
from threading import Thread, get_ident
from types import FrameType, TracebackType

ASKING = frozenset({signal.SIGINT, signal.SIGTERM})
"""The signals that ask a run to stop."""
BELL = signal.SIGURG
"""What the thread that waits for them wakes the main one with; a process that has no use for it doesn't notice it."""


class StoppedError(Exception):
    """A run that ended before its last step, in a way that its owner should know of."""


class AloneError(StoppedError):
    """One of several processes has stopped, and could not tell the others: it speaks itself, and is waited for no more.

    What started them notices it, and ends the others.
    """


class InterruptedRunError(StoppedError):
    """A run that was asked to stop, and has saved all it knows."""


class AskedError(Exception):
    """A test that was left unfinished, because the run was asked to stop."""


class UnreadableError(StoppedError):
    """A run whose images can't be used. Its message is one line.

    torch raises what a worker raised once more, with the text of a traceback before the message.

    >>> UnreadableError("Caught it in a worker.\\nTraceback:\\n  line 1\\nflopping.UnreadableError: no images\\n").args
    ('no images',)
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.strip().rpartition(f"{type(self).__name__}: ")[2])


class Signals:
    """Asked to stop by SIGINT or SIGTERM, a run ends its step, saves and ends; asked again, it ends at once.

    A launcher as `torchrun` may pass on a signal that a process has got already, and kills those that take too long:
    under it, to be asked twice means the same as once.

    Terminals and batch systems signal all processes of a run. `shielded`, those that it starts within take no notice:
    a C++ compiler that was ended would end the step in an error, and other processes would wait for it. They inherit
    what the thread that starts them blocks, so both signals are blocked here, and a thread of their own waits for them.
    """

    def __init__(self, *, speaks: bool, launched: bool, shielded: bool = False) -> None:
        self.speaks, self.launched, self.shielded = speaks, launched, shielded
        self.asked = False
        self.doing = "ending before the first step"
        """What being asked leads to, in words."""
        self.heard: deque[int] = deque()

    def __enter__(self) -> Signals:
        self.process = os.getpid()
        self.before = {number: signal.signal(number, self._ask) for number in ASKING}
        if self.shielded:
            self.before[BELL] = signal.signal(BELL, self._ring)
            self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*ASKING, BELL})
            self.listener = Thread(target=self._listen, args=(get_ident(),), daemon=True)
            self.listener.start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {BELL})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shielded:
            assert self.listener.ident is not None
            signal.pthread_kill(self.listener.ident, BELL)
            self.listener.join()
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.shielded:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def _listen(self, main: int) -> None:
        """Pass on to the main thread what comes, until the bell rings here."""
        while (number := signal.sigwait({*ASKING, BELL})) != BELL:
            self.heard.append(number)
            signal.pthread_kill(main, BELL)  # which also ends what it waits for

    def _ring(self, number: int, frame: FrameType | None) -> None:
        while self.heard:
            self._ask(self.heard.popleft(), frame)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a process that is about to become one that reads images
            return
        if self.asked and self.launched:
            return
        if self.asked:
            for every in ASKING:
                signal.signal(every, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
            raise KeyboardInterrupt
        self.asked = True
        if self.speaks:  # a plain write, because the signal may have come in the middle of a buffered one
            again = "" if self.launched else "; once more to end at once"
            os.write(2, f"\n{signal.Signals(number).name}: {self.doing}{again}\n".encode())
