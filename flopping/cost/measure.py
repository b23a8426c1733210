"""Measuring networks in child processes, which may crash: memory in one process each, time interleaved in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from flopping.cost.protocol import Protocol
from flopping.cost.records import Memory, Record
from flopping.cost.timing import Timing
from flopping.cost.worker import NOISE
from flopping.errors import pluralize
from flopping.machine import explain_exit, precision_problem

CACHE = "TORCHINDUCTOR_CACHE_DIR"


class ChildProcess:
    """A process that does one job and reports events, one line of JSON each; its module calls `worker.main`.

    It ignores keyboard interrupts. It ends when the job is done, when the context is left, or when the caller dies.
    """

    def __init__(
        self, job: Mapping[str, Any], environment: Mapping[str, str], module: str = "flopping.cost.worker"
    ) -> None:
        self.failure: str | None = None
        self.stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, **environment},
            text=True,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead: `problem` says why
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()

    def __enter__(self) -> ChildProcess:
        return self

    def stop(self) -> None:
        """Kill it, and the compilers that it started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.process.wait()
        for file in (self.stderr, self.process.stdin, self.process.stdout):
            assert file is not None
            with suppress(BrokenPipeError):
                file.close()

    def events(self) -> Iterator[dict[str, Any]]:
        """What it reports until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == "failed":
                self.failure = event["problem"]
            else:
                yield event

    @property
    def problem(self) -> str | None:
        """Why it ended, unless the job was done."""
        code = self.process.wait()
        if code == 0 or self.failure is not None:
            return self.failure
        self.stderr.seek(0)
        last = [line for line in self.stderr if line.strip()][-1:]
        return explain_exit(code, "".join(last))


class Session:
    """Measures groups of networks, and passes every record to `sink` when its group is done.

    The networks of a group run interleaved. Compiled code goes to the folder `cache`, or to an empty one that is
    removed in the end, so that compile times are those of a first time. On a keyboard interrupt, the rounds measured
    so far become records that say so, and the interrupt is raised again. `progress` gets a text and the share of the
    group's work that is done.
    """

    def __init__(
        self,
        protocol: Protocol,
        sink: Callable[[Record], object],
        *,
        cache: Path | None = None,
        progress: Callable[[str, float], object] = lambda text, share: None,
    ) -> None:
        self.protocol, self.sink, self.progress, self.cache = protocol, sink, progress, cache

    def measure(self, group: Sequence[Record]) -> None:
        """Fill in records that `plan_records` made."""
        with tempfile.TemporaryDirectory(prefix="flopping-bench-", ignore_cleanup_errors=True) as empty:
            self.folder = Path(empty)
            self._measure(group)

    def _measure(self, group: Sequence[Record]) -> None:
        run, warmup = uuid4().hex[:12], self.protocol.warmup
        self.records = {str(key): replace(record, run=run, warmup=warmup) for key, record in enumerate(group)}
        self.problems: dict[str, str] = {}
        self.rounds: list[dict[str, float]] = []
        interrupted = True
        try:
            for key in self.records:
                self._prepare(key)
            self._measure_time()
            interrupted = False
        finally:
            for key, record in self.records.items():
                seconds = tuple(times[key] for times in self.rounds if key in times)
                if interrupted and key not in self.problems:
                    if not seconds and record.memory is None:
                        continue
                    self.problems[key] = f"interrupted after {pluralize(len(seconds), 'round')}"
                products = tuple(times[NOISE] for times in self.rounds if NOISE in times)
                noise = Timing(products).spread if seconds and products else None
                problem = self.problems.get(key, record.problem)
                self.sink(replace(record, seconds=seconds, noise=noise, problem=problem))

    def _prepare(self, key: str) -> None:
        """Size, FLOPs, compile time and memory, in a process of its own; what cannot run is only described."""
        record = self.records[key]
        self.progress(f"compiling, measuring memory of {record.name}", int(key) / len(self.records) / 2)
        problem = precision_problem(record.setting.dtype, torch.device(record.setting.device))
        if problem is not None:
            self.problems[key] = problem
        runs = problem is None
        with self._start("memory", [key], runs=runs) as child:
            for event in child.events():
                if event.pop("event") == "memory":
                    event["memory"] = Memory(**event["memory"]) if event["memory"] else None
                else:
                    event["input_size"] = tuple(event["input_size"])
                self.records[key] = replace(self.records[key], **event)
            if runs and child.problem is not None:
                self.problems[key] = child.problem

    def _measure_time(self) -> None:
        """All in turn in one process. If one network crashes it while it is prepared, start again without that one."""
        while waiting := [key for key in self.records if key not in self.problems]:
            preparing = None
            with self._start("time", waiting, **asdict(self.protocol)) as child:
                for event in child.events():
                    if event["event"] == "round":
                        self.rounds.append(event["seconds"])
                        done, repeats = len(self.rounds), self.protocol.repeats
                        self.progress(f"round {done} of {repeats}", (1 + done / repeats) / 2)
                    elif event["event"] == "problem":
                        self.problems[event["key"]] = event["problem"]
                    else:
                        preparing = event.get("key")
                        self.progress("warming up", 0.5)
                problem = child.problem
            if problem is None:
                return
            for key in waiting if preparing is None else [preparing]:
                self.problems.setdefault(key, f"{problem}, after {pluralize(len(self.rounds), 'round')}")

    def _start(self, job: str, keys: Sequence[str], **more: Any) -> ChildProcess:
        records = {key: self.records[key] for key in keys}
        cases = [{"key": key, "model": r.model, "setting": asdict(r.setting)} for key, r in records.items()]
        return ChildProcess({"job": job, "cases": cases, **more}, {CACHE: os.path.realpath(self.cache or self.folder)})
