"""How a run ends before its last step: asked to, or because it can't go on."""

from __future__ import annotations

import errno
import os
import signal
from types import FrameType, TracebackType

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""How the system says that there is no room on a disk."""


class StoppedError(Exception):
    """A run that ended before its last step, in a way that its owner should know of."""


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
    """

    def __init__(self, *, speaks: bool, launched: bool) -> None:
        self.speaks, self.launched = speaks, launched
        self.asked = False

    def __enter__(self) -> Signals:
        self.process = os.getpid()
        self.before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:  # a process that is about to become one that reads images
            return
        if self.asked and self.launched:
            return
        if self.asked:
            for every in self.before:
                signal.signal(every, signal.SIG_DFL)
            raise KeyboardInterrupt
        self.asked = True
        if self.speaks:  # a plain write, because the signal may have come in the middle of a buffered one
            again = "" if self.launched else "; once more to end at once"
            os.write(2, f"\n{signal.Signals(number).name}: ending the step and saving{again}\n".encode())
