"""Measuring: every precision tried first, memory in a process each, time interleaved in one, and nothing lost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import count as numbers
from pathlib import Path
from time import monotonic
from typing import Any

from flopping.bench.child import ChildProcess
from flopping.bench.machine import available_memory, this_machine
from flopping.bench.pace import Pace, minutes
from flopping.bench.plan import Case, Protocol, families
from flopping.bench.probe import probe
from flopping.bench.records import Memory, Record, Setting
from flopping.bench.state import State, alive, bytes_needed, job_of, jobs_of, new_run
from flopping.bench.timing import Timing
from flopping.bench.worker import NOISE

CACHE = "TORCHINDUCTOR_CACHE_DIR"
MEMORY_RUNS = 4
"""Runs of a network in the process that measures its memory."""
MOST_SIDE_BY_SIDE = 4
"""Processes that measure memory, and compile, at one time."""
TRIALS_PER_START = 4
"""To start and compile a network takes so many times as long as trying a precision; a guess, until one was compiled."""
FEWEST_ROUNDS = 5
"""With less time than these would take, a network isn't begun."""


class Session:
    """Measures cases group by group, and hands every record to `sink` as soon as it is complete.

    A keyboard interrupt stops the processes; the rounds measured so far go to `sink` as records that say so, and then
    the interrupt goes on. `budget` is the time in seconds after which nothing new is begun and what runs is cut off.
    Compiled code goes to the folder `cache`, or to one that is empty at first and removed in the end, so that compile
    times are those of a first time. `device` is whose name is recorded. `progress` gets a text and the seconds that are
    left, as far as can be told.
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
        progress: Callable[[str, float], object] | None = None,
    ) -> None:
        self.protocol, self.sink, self.command = protocol, sink, command
        self.progress = progress or (lambda text, left: None)
        self.budget, self.cache = budget, cache
        self.pace = Pace()
        self.machine = this_machine(device)
        self.precisions: dict[tuple[str, str], str | None] = {}
        self.children: set[ChildProcess] = set()
        self.side_by_side = min(self.machine.cores, MOST_SIDE_BY_SIDE)
        self.states: list[State] = []
        self.stopped = False

    def measure(self, groups: Sequence[Sequence[Case]]) -> None:
        """Measure every group; the cases of a group run interleaved, as far as they fit into memory together."""
        self.began = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.deadline = None if self.budget is None else monotonic() + self.budget
        keys = numbers()
        runs = [new_run() for _ in groups]  # also of what is never timed: its memory is compared within its group
        grouped = [
            [State(case, str(next(keys)), run=run) for case in group] for run, group in zip(runs, groups, strict=True)
        ]
        self.states = [state for group in grouped for state in group]
        with _compile_cache(self.cache) as self.environment:
            self._examine(self.states)
            for group in grouped:
                try:
                    self._measure(group)
                    for state in group:
                        self._finish(state)
                except BaseException as error:
                    self._stop_children()
                    why = "interrupted" if isinstance(error, KeyboardInterrupt) else f"stopped by {error!r}"
                    for state in group:
                        if state.stage != "done" and (state.seconds or state.memory or state.problem):
                            state.problem = state.problem or f"{why} after {len(state.seconds)} rounds"
                            self._finish(state)
                    raise

    def _examine(self, states: list[State]) -> None:
        """What is known before anything is measured: sizes and work, and which precisions run here."""
        self._say("trying precisions, counting")
        with ThreadPoolExecutor(1) as pool:
            described = pool.submit(self._describe, states)
            try:
                problems = [self._try_precision(state.case.setting) for state in states]
                described.result()
            except BaseException:
                self._stop_children()
                raise
        for state, problem in zip(states, problems, strict=True):
            state.problem = problem or state.problem

    def _measure(self, group: list[State]) -> None:
        self.stopped = False
        try:
            self._keep_budget(alive(group))
            self._memory_and_time(alive(group))
        except TimeoutError:
            self._stop_children()
            for state in alive(group):
                state.problem = f"the time budget was used up after {len(state.seconds)} rounds"

    def _memory_and_time(self, states: list[State]) -> None:
        """Memory and time. While the memory of some is measured, others are prepared for the timing already."""
        if not states:
            return
        timed: list[State] = []
        with self._child({"job": "time"}, states[0].case.setting) as child:

            def prepare(state: State) -> None:
                # a GPU belongs to one process at a time, or the peaks of memory would be in each other's way
                if state.case.setting.device == "cpu" and self._fit([*timed, state]):
                    timed.append(state)
                    child.send(job_of(state))

            self._fill_memory(states, prepare)
            if timed and len(timed) == len(alive(states)):
                self._take_time(timed, child)
                return
        for together in self._that_fit(alive(states)):
            self._take_time(together)

    def _finish(self, state: State) -> None:
        state.stage = "done"
        self.sink(
            Record(
                model=state.case.model,
                paper=state.case.paper,
                baseline=state.case.baseline,
                setting=state.case.setting,
                input_size=state.input_size,
                params=state.params,
                flops=state.flops,
                macs=state.macs,
                seconds=tuple(state.seconds),
                run=state.run,
                warmup=self.protocol.warmup,
                compile_seconds=state.compile_seconds,
                memory=state.memory,
                noise=Timing(tuple(state.noise)).spread if state.noise else None,
                problem=state.problem or state.remark,
                machine=self.machine,
                command=self.command,
                time=self.began,
            )
        )

    def _try_precision(self, setting: Setting) -> str | None:
        """Why a precision can't be used here; found out once, by a process that may crash."""
        key = setting.device, setting.dtype
        if key not in self.precisions:
            start = monotonic()
            problem = probe(setting, lambda job: self._child(job, setting))
            self.pace.guess_start(TRIALS_PER_START * (monotonic() - start))
            self.precisions[key] = problem
        return self.precisions[key]

    def _describe(self, states: list[State]) -> None:
        found = {state.key: state for state in states}
        with self._child({"job": "describe", "cases": jobs_of(states)}, states[0].case.setting) as child:
            for event in child.events():
                state = found.pop(event["key"])
                if event["event"] == "problem":
                    state.problem = event["problem"]
                else:
                    state.params, state.input_size = event["params"], tuple(event["input_size"])
                    state.flops, state.macs, state.modules = event["flops"], event["macs"], event["modules"]
                    state.remark = event["remark"]
            for state in found.values():
                state.problem = child.problem

    def _keep_budget(self, states: list[State]) -> None:
        """Leave out what can't be measured in the time that is left."""
        if self.deadline is None:
            return
        left = self.deadline - monotonic()
        by_case = {state.case: state for state in states}
        for family in families(by_case):
            needed = sum(self._seconds_for(by_case[case], FEWEST_ROUNDS) for case in family)
            if needed <= left:
                left -= needed
                continue
            for case in family:
                by_case[case].problem = (
                    f"not measured: it needs about {minutes(needed)} with what it is compared with, and"
                    f" {minutes(max(0.0, left))} of the time budget are left"
                )

    def _fill_memory(self, states: list[State], filled: Callable[[State], object]) -> None:
        """Memory, in a process each. They compile side by side, the largest first, and leave it to the timing."""
        if any(state.case.setting.device != "cpu" for state in states):
            self.side_by_side = 1
        with ThreadPoolExecutor(self.side_by_side) as pool:
            order = sorted(states, key=lambda state: -state.modules)
            futures = {pool.submit(self._fill_memory_of, state): state for state in order}
            try:
                for future in as_completed(futures):
                    future.result()
                    if futures[future].problem is None:
                        filled(futures[future])
            except BaseException:
                for future in futures:
                    future.cancel()
                self._stop_children()
                raise
        for state in states:  # it may have been a neighbour who took the memory
            if self.side_by_side > 1 and state.problem is not None and "memory" in state.problem:
                state.problem = None
                self._fill_memory_of(state)
                if state.problem is None:
                    filled(state)

    def _fill_memory_of(self, state: State) -> None:
        start = monotonic()
        self._say(f"{state.case.paper or state.case.model}: compiling, memory")
        job = {"job": "memory", "case": job_of(state), "setting": asdict(state.case.setting)}
        with self._child(job, state.case.setting) as child:
            for event in child.events(self.deadline):
                state.compile_seconds = event["compile_seconds"]
                state.memory = Memory(**event["memory"]) if event["memory"] else None
            if not self.stopped:  # or it was we who ended the process
                state.problem = child.problem
        state.stage = "filled"
        self.pace.learn_start(monotonic() - start)
        self._say("")

    def _that_fit(self, states: list[State]) -> Iterator[list[State]]:
        """All together, or family by family where the memory is too small for all."""
        if self._fit(states):
            yield states
            return
        by_case = {state.case: state for state in states}
        for family in families(by_case):
            together = [by_case[case] for case in family]
            if self._fit(together):
                yield together
                continue
            for state in together:
                state.problem = (
                    f"not timed: with what it is compared with it needs about {bytes_needed(together) / 2**30:.1f} GiB,"
                    f" {available_memory() / 2**30:.1f} GiB are free"
                )

    def _fit(self, states: list[State]) -> bool:
        on_gpu = any(state.case.setting.device != "cpu" for state in states)
        return (
            on_gpu or bytes_needed(states) <= available_memory()
        )  # on a GPU, what doesn't fit becomes a row that says so

    def _take_time(self, states: list[State], prepared: ChildProcess | None = None) -> None:
        """All in turn in one process. If one of them brings it down at the start, it begins again without that one."""
        run = new_run()
        waiting = list(states)
        while waiting:
            for state in waiting:
                state.run = run
            if prepared is not None:
                culprit, problem = self._take_time_in(prepared, waiting)
                prepared = None
            else:
                with self._child({"job": "time"}, waiting[0].case.setting) as child:
                    for state in waiting:
                        child.send(job_of(state))
                    culprit, problem = self._take_time_in(child, waiting)
            if problem is None:
                return
            measured = culprit is None or any(state.seconds for state in waiting)
            for state in waiting if measured else [state for state in waiting if state.key == culprit]:
                state.problem = state.problem or f"{problem}, after {len(state.seconds)} rounds"
            waiting = alive(waiting)

    def _take_time_in(self, child: ChildProcess, states: list[State]) -> tuple[str | None, str | None]:
        """Which network was being prepared when the process died, and why it did."""
        by_key = {state.key: state for state in states}
        preparing = None
        repeats = self._repeats(states)
        child.send({"go": repeats, "seconds": self.protocol.seconds, "fewest": self.protocol.fewest})
        for event in child.events(self.deadline):
            if event["event"] == "begin":
                preparing = event["key"]
                by_key[preparing].stage = "ready"
                case = by_key[preparing].case
                self._say(f"{case.paper or case.model}: warming up")
            elif event["event"] == "problem":
                by_key[event["key"]].problem = event["problem"]
            elif event["event"] == "ready":
                preparing = None
            else:
                seconds: dict[str, float] = event["seconds"]
                for state in alive(states):
                    state.seconds.append(seconds[state.key])
                    state.noise.append(seconds[NOISE])
                    self.pace.learn_run(state.work, seconds[state.key])
                self._say(f"round {len(alive(states)[0].seconds)} of {repeats}")
        return preparing, child.problem

    def _repeats(self, states: list[State]) -> int:
        """As many rounds as were asked for, or as the budget allows."""
        if self.deadline is None:
            return self.protocol.repeats
        prepare = len(states) * self.pace.start / 2
        a_round = sum(self.pace.run(state.work) for state in states)
        possible = (self.deadline - monotonic() - prepare) / max(a_round, 1e-9) - self.protocol.warmup
        return max(1, min(self.protocol.repeats, int(0.8 * possible)))

    def _seconds_for(self, state: State, repeats: int) -> float:
        """What is still to be done for a case, in seconds."""
        run = self.pace.run(state.work)
        rounds = (repeats - len(state.seconds)) * run
        prepare = self.pace.start / 2 + self.protocol.warmup * run
        fill = (self.pace.start + MEMORY_RUNS * run) / self.side_by_side
        return {"new": fill + prepare + rounds, "filled": prepare + rounds, "ready": rounds, "done": 0.0}[state.stage]

    def _say(self, text: str) -> None:
        alive = [state for state in self.states if state.problem is None]
        left = sum(self._seconds_for(state, self.protocol.repeats) for state in alive)
        self.progress(text, left if self.deadline is None else min(left, self.deadline - monotonic()))

    @contextmanager
    def _child(self, job: Mapping[str, Any], setting: Setting) -> Iterator[ChildProcess]:
        message = {"threads": setting.threads, "warmup": self.protocol.warmup, **job}
        with ChildProcess(message, self.environment) as child:
            self.children.add(child)
            try:
                if self.stopped:
                    child.stop()
                yield child
            finally:
                self.children.discard(child)

    def _stop_children(self) -> None:
        self.stopped = True
        for child in list(self.children):
            child.stop()


@contextmanager
def _compile_cache(given: Path | None) -> Iterator[dict[str, str]]:
    """Where processes keep what they compile. Always said, since torch's compiler sets the variable for itself."""
    if given is not None:
        yield {CACHE: str(given.resolve())}
        return
    folder = tempfile.mkdtemp(prefix="flopping-bench-")
    try:
        yield {CACHE: folder}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
