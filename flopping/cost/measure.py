"""Measuring networks in child processes, which may crash: memory in one process each, time interleaved in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import torch

from flopping.cost.plan import Case, Protocol
from flopping.cost.records import Memory, Record
from flopping.cost.timing import Timing
from flopping.cost.worker import NOISE
from flopping.errors import pluralize
from flopping.machine import explain_exit, precision_problem, this_machine

CACHE = "TORCHINDUCTOR_CACHE_DIR"
MAX_PARALLEL_PROCESSES = 4
"""Processes that compile and measure memory at the same time, on a CPU."""


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

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.stderr.close()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def stop(self) -> None:
        """Kill it, and the compilers that it started."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

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

    The networks of a group run interleaved. After `budget` seconds no further group is begun. Compiled code goes to the
    folder `cache`, or to an empty one that is removed in the end, so that compile times are those of a first time. On
    a keyboard interrupt, the rounds measured so far become records that say so, and the interrupt is raised again.
    `progress` gets a text and the share of the work that is done.
    """

    def __init__(
        self,
        protocol: Protocol,
        sink: Callable[[Record], object],
        *,
        command: str = "",
        budget: float | None = None,
        cache: Path | None = None,
        device: str = "cpu",
        progress: Callable[[str, float], object] = lambda text, share: None,
    ) -> None:
        self.protocol, self.sink, self.command, self.progress = protocol, sink, command, progress
        self.budget, self.cache, self.machine = budget, cache, this_machine(device)
        self.children: set[ChildProcess] = set()
        self.stopped = False

    def measure(self, groups: Sequence[Sequence[Case]]) -> None:
        began, start = datetime.now(timezone.utc).isoformat(timespec="seconds"), monotonic()
        with tempfile.TemporaryDirectory(prefix="flopping-bench-", ignore_cleanup_errors=True) as empty:
            self.environment = {CACHE: empty if self.cache is None else str(self.cache.resolve())}
            for number, group in enumerate(groups):
                self.done, self.share = number / len(groups), 1 / len(groups)
                late = self.budget is not None and monotonic() - start > self.budget
                self._measure_group(group, began, late)

    def _measure_group(self, group: Sequence[Case], began: str, late: bool) -> None:
        run = uuid4().hex[:12]
        self.records = {str(key): self._empty_record(case, run, began) for key, case in enumerate(group)}
        self.failures: dict[str, str] = {}
        self.rounds: list[dict[str, float]] = []
        for key, case in zip(self.records, group, strict=True):
            problem = precision_problem(case.setting.dtype, torch.device(case.setting.device))
            if late or problem is not None:
                self.failures[key] = problem or "not measured: the time budget was used up"
        interrupted = ""
        try:
            self._measure_memory()
            self._measure_time()
        except BaseException as error:
            interrupted = "interrupted" if isinstance(error, KeyboardInterrupt) else f"stopped by {error!r}"
            raise
        finally:
            for key, record in self.records.items():
                seconds = tuple(times[key] for times in self.rounds if key in times)
                problem = self.failures.get(key)
                if interrupted and problem is None:
                    if not seconds and record.memory is None:
                        continue
                    problem = f"{interrupted} after {pluralize(len(seconds), 'round')}"
                noise = Timing(tuple(times[NOISE] for times in self.rounds)).spread if seconds else None
                self.sink(replace(record, seconds=seconds, noise=noise, problem=problem or record.problem))

    def _empty_record(self, case: Case, run: str, began: str) -> Record:
        return Record(
            model=case.model,
            paper=case.paper,
            baseline=case.baseline,
            setting=case.setting,
            input_size=(),
            params=0,
            flops=None,
            macs=None,
            seconds=(),
            run=run,
            warmup=self.protocol.warmup,
            compile_seconds=None,
            memory=None,
            noise=None,
            problem=None,
            machine=self.machine,
            command=self.command,
            time=began,
        )

    def _measure_memory(self) -> None:
        """Size, FLOPs, compile time and memory, in a process each; several side by side, but one at a time on a GPU."""
        self._report("compiling, measuring memory", 0.0)
        on_cpu = all(record.setting.device == "cpu" for record in self.records.values())
        workers = min(self.machine.cores, MAX_PARALLEL_PROCESSES) if on_cpu else 1
        with ThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(self._measure_memory_of, key) for key in self.records]
            try:
                for number, future in enumerate(futures, 1):
                    future.result()
                    self._report("compiling, measuring memory", number / len(futures) / 2)
            except BaseException:
                self.stopped = True
                for child in list(self.children):
                    child.stop()
                pool.shutdown(cancel_futures=True)
                raise
        if workers > 1:  # the processes beside it may have taken the memory
            for key in [key for key, problem in self.failures.items() if "out of memory" in problem]:
                del self.failures[key]
                self._measure_memory_of(key)

    def _measure_memory_of(self, key: str) -> None:
        runs = key not in self.failures
        with self._child("memory", [key], runs=runs) as child:
            for event in child.events():
                if event.pop("event") == "memory":
                    event["memory"] = Memory(**event["memory"]) if event["memory"] else None
                else:
                    event["input_size"] = tuple(event["input_size"])
                self.records[key] = replace(self.records[key], **event)
            if runs and not self.stopped and child.problem is not None:
                self.failures[key] = child.problem

    def _measure_time(self) -> None:
        """All in turn in one process. If one network crashes it while it is prepared, start again without that one."""
        while waiting := [key for key in self.records if key not in self.failures]:
            preparing = None
            with self._child("time", waiting, **asdict(self.protocol)) as child:
                for event in child.events():
                    if event["event"] == "round":
                        self.rounds.append(event["seconds"])
                        done, repeats = len(self.rounds), self.protocol.repeats
                        self._report(f"round {done} of {repeats}", (1 + done / repeats) / 2)
                    elif event["event"] == "problem":
                        self.failures[event["key"]] = event["problem"]
                    else:
                        preparing = event.get("key")
                        self._report("warming up", 0.5)
                problem = child.problem
            if problem is None:
                return
            for key in waiting if preparing is None else [preparing]:
                self.failures.setdefault(key, f"{problem}, after {pluralize(len(self.rounds), 'round')}")

    def _report(self, text: str, share: float) -> None:
        self.progress(text, self.done + share * self.share)

    @contextmanager
    def _child(self, job: str, keys: Sequence[str], **more: Any) -> Iterator[ChildProcess]:
        records = {key: self.records[key] for key in keys}
        cases = [{"key": key, "model": r.model, "setting": asdict(r.setting)} for key, r in records.items()]
        with ChildProcess({"job": job, "cases": cases, **more}, self.environment) as child:
            self.children.add(child)
            try:
                if self.stopped:
                    child.stop()
                yield child
            finally:
                self.children.discard(child)
