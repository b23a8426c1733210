"""Ctrl-C and SIGTERM: a run ends its step and saves, and a second signal ends it at once."""

from __future__ import annotations

import os
import signal
from _thread import interrupt_main
from threading import Thread, get_ident
from types import FrameType

STOP = frozenset({signal.SIGINT, signal.SIGTERM})
WAKE = signal.SIGURG
"""Interrupts what a thread waits for; a process without a handler ignores it."""


class StopSignals:
    """Sets `requested` when SIGINT or SIGTERM arrives; the second one raises KeyboardInterrupt.

    A launcher such as `torchrun` repeats signals: under it the second one means the same as the first.

    Terminals and batch systems signal every process of a run, also the compilers that it starts, and a compiler that
    dies ends the step with an error. Child processes inherit blocked signals, so SIGINT and SIGTERM are blocked, and a
    thread waits for them.
    """

    def __init__(self, *, verbose: bool, launched: bool) -> None:
        self.verbose, self.launched = verbose, launched
        self.requested = False
        self.action = "ending before the first step"
        """What the first signal leads to, for the message."""

    def __enter__(self) -> StopSignals:
        handlers = {WAKE: lambda number, frame: None, **dict.fromkeys(STOP, self._receive)}
        self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP, WAKE})
        self._thread = Thread(target=self._listen, args=(get_ident(),), daemon=True)
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {WAKE})
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread.ident is not None
        signal.pthread_kill(self._thread.ident, WAKE)
        self._thread.join()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _listen(self, main: int) -> None:
        """Call `_receive` in the main thread for every signal, until `__exit__` wakes this one."""
        while (number := signal.sigwait({*STOP, WAKE})) != WAKE:
            interrupt_main(signal.Signals(number))
            signal.pthread_kill(main, WAKE)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self.launched:
            raise KeyboardInterrupt
        if not self.requested and self.verbose:  # a plain write: a buffered one may be interrupted by this signal
            again = "" if self.launched else "; once more to end at once"
            os.write(2, f"\n{signal.Signals(number).name}: {self.action}{again}\n".encode())
        self.requested = True
