"""Work in a process of its own, which may crash, run out of memory or be stopped, and the caller lives on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any

WORKER = "flopping.bench.worker"


class ChildProcess:
    """A worker that gets a job, and more to do as it goes on, and answers with events, one line of JSON each.

    A keyboard interrupt reaches the caller alone, who decides. The worker ends when the job is done, when the context
    is left, and also when the caller dies: it watches its standard input.
    """

    def __init__(self, job: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        self.failure: str | None = None
        self.said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            env={**os.environ, **(environment or {})},
            text=True,
            start_new_session=True,
        )
        self.send(job)

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell it something. If it is dead, `problem` says why."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.said.close()

    def stop(self) -> None:
        """End it now, with the compilers that it started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def events(self, deadline: float | None = None) -> Iterator[dict[str, Any]]:
        """What it answers until it ends. Raises TimeoutError when the clock (`monotonic`) passes the deadline."""
        lines: Queue[str | None] = Queue()
        Thread(target=self._read, args=(lines,), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=None if deadline is None else max(0.0, deadline - monotonic()))
            except Empty:
                raise TimeoutError from None
            if line is None:
                return
            event = json.loads(line)
            if event["event"] == "failed":
                self.failure = event["problem"]
            else:
                yield event

    def _read(self, lines: Queue[str | None]) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # closed, because the context was left
            for line in self.process.stdout:
                lines.put(line)
        lines.put(None)

    @property
    def problem(self) -> str | None:
        """Why it ended, if not because the job was done."""
        code = self.process.wait()
        if code == 0 or self.failure is not None:
            return self.failure
        if code < 0:
            return f"the process was killed by {_signal(-code)}"
        self.said.seek(0)
        last = [line.strip() for line in self.said if line.strip()][-1:]
        return f"the process ended with code {code}{': ' if last else ''}{''.join(last)}"


_MEANING = {
    signal.SIGILL: "the processor doesn't know an instruction that it advertises",
    signal.SIGKILL: "most likely the system ran out of memory",
    signal.SIGSEGV: "memory that doesn't belong to it",
}


def _signal(number: int) -> str:
    """Name and meaning of a signal.

    >>> _signal(4)
    "SIGILL: the processor doesn't know an instruction that it advertises"
    """
    try:
        found = signal.Signals(number)
    except ValueError:
        return f"signal {number}"
    return f"{found.name}: {_MEANING[found]}" if found in _MEANING else found.name
