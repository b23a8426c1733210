"""All runs of an experiment, each in a process of its own, one after another or several side by side.

Finished ones are not run again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import monotonic, sleep
from types import FrameType

from flopping.bench.pace import minutes
from flopping.cores import usable_cores
from flopping.experiments.folder import Finished, Folder
from flopping.experiments.pace import measure
from flopping.experiments.plan import Arm, Run
from flopping.lock import LOCK as LOCK
from flopping.lock import locked as only_one
from flopping.training.checkpoint import CONFIG
from flopping.training.job import Machine
from flopping.training.stops import InterruptedRunError, StoppedError
from flopping.training.trained import checkpoint_folder
from flopping.wording import counted

CHILD = "flopping.experiments.child"
AGAIN = "The same command goes on from there"
PATIENCE = 180.0
"""Seconds that a run whose experiment was killed has for its last step, for which it may compile, and to save."""
LOOK = 0.05
"""Seconds between two looks at whether a run has ended."""


@dataclass
class Child:
    """A run that is under way."""

    run: Run
    command: Sequence[str]
    environment: Mapping[str, str]
    """What it has beyond this process's own."""
    process: subprocess.Popen[bytes]
    started: float
    asked: int = 0
    """How often it was asked to stop: at the second time it ends at once, and saves nothing."""

    def ask(self, times: int, number: int = signal.SIGTERM) -> None:
        """Let it know that it was asked so often."""
        while self.asked < times:
            self.asked += 1
            if self.process.poll() is None:
                self.process.send_signal(number)


class Runner:
    """Carries out what is left of an experiment, `jobs` runs at a time."""

    def __init__(
        self,
        folder: Folder,
        options: Sequence[str],
        machine: Machine,
        say: Callable[[str], None],
        report: Callable[[], None],
        jobs: int = 1,
    ) -> None:
        self.folder, self.options, self.machine, self.say, self.report = folder, options, machine, say, report
        self.jobs = jobs
        self.children: list[Child] = []
        self.asked = 0
        """How often this process was asked to stop."""

    def run(self) -> None:
        """Measure what has not been measured, run all that has not finished, and write the report after every run."""
        folder, runs = self.folder, self.folder.plan.runs
        with locked(folder.path, self.say) as lock, self._signals():
            folder.begin()
            self._measure()
            waiting = [run for run in runs if folder.finished(run) is None]
            while waiting or self.children:
                while waiting and len(self.children) < self.jobs and not self.asked:
                    run = waiting.pop(0)
                    self.say(
                        f"Run {1 + runs.index(run)} of {len(runs)}: {run.model}, {_words(run.arm)},"
                        f" {counted(folder.epochs(run), 'epoch')}, seed {run.seed}."
                        f" {left(runs, folder.all_finished(), self.jobs)}"
                    )
                    self._start(run, lock)
                if self.asked and not self.children:
                    raise InterruptedRunError(f"stopped before run {waiting[0].name}. {AGAIN}")
                sleep(LOOK)
                self._look()

    def _measure(self) -> None:
        """Time the networks of each pair before anything else runs here."""
        for pair in self.folder.plan.pairs:
            if self.folder.pace(pair) is None and not self.asked:
                names = f"{pair.model(Arm.ORDINARY)} and {pair.model(Arm.EQUIVARIANT)}"
                self.say(f"Timing {names} in turn; they are compiled first: a minute or two.")
                pace = measure(pair, self.folder.settings.data, self.machine, lambda _: self.asked > 0)
                if not self.asked:
                    self.folder.keep_pace(pair, pace)
        if self.asked:
            raise InterruptedRunError(f"stopped while networks were timed. {AGAIN}")

    def _start(self, run: Run, lock: int) -> None:
        """Start a run. Where several run side by side, each has its share of the cores and a file for its words."""
        command = [*self.folder.command(run), *self.options]
        own: dict[str, str] = {}
        if self.jobs > 1:
            share = usable_cores() // self.jobs
            own = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(max(1, share))}
            readers = str(max(0, min(share - 1, self.machine.workers)))
            command += [] if "--workers" in command else ["--workers", readers]
        with open(self._said(run), "ab") if self.jobs > 1 else nullcontext() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", CHILD, *command],
                stdin=subprocess.PIPE,  # never written to: it closes when this process ends, however that comes about
                stdout=subprocess.DEVNULL,
                stderr=output,
                env={**os.environ, **own},
                start_new_session=True,  # an interrupt from the keyboard comes through this process alone
                pass_fds=(lock,),
            )
        child = Child(run, command, own, process, monotonic())
        self.children.append(child)
        child.ask(self.asked)  # if it was asked for since it was looked at

    def _said(self, run: Run) -> Path:
        """Where the words of runs go that run side by side."""
        return self.folder.path / f"{run.name}.txt"

    def _look(self) -> None:
        """Write down what has ended. If it did so before its time, let the others save, and end."""
        for child in [child for child in self.children if child.process.poll() is not None]:
            code = self._ended(child)
            if code:
                asked = self.asked > 0
                self._end_all()
                if asked:
                    raise InterruptedRunError(f"stopped in run {child.run.name}. {AGAIN}")
                where = "above" if self.jobs == 1 else f"in {str(self._said(child.run))!r}"
                raise StoppedError(f"{child.run.name} ended with code {code}; what it said is {where}. {AGAIN}")

    def _ended(self, child: Child) -> int:
        """The exit code of a run, which may still have to end; if it has come to its end, that is written down."""
        with child.process:
            code = child.process.wait()
        self.children.remove(child)
        if code == 0:
            folder, run = self.folder, child.run
            config = checkpoint_folder(folder.path / run.name) / CONFIG
            classes = json.loads(config.read_text(encoding="utf-8"))["num_classes"]
            wall = monotonic() - child.started
            folder.finish(run, child.command, child.environment, wall, classes, self.machine.device)
            self.report()
        return code

    def _end_all(self) -> None:
        """Ask all runs to save and to end, unless that was done, and wait until they have."""
        for child in self.children:
            child.ask(1)
        while self.children:
            self._ended(self.children[0])

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Asked to stop, let the runs save what they have, and start no other."""

        def forward(number: int, frame: FrameType | None) -> None:
            self.asked += 1
            if self.asked == 1:
                os.write(2, b"\nEnding; what runs is saved first. Once more ends it at once.\n")  # nothing is buffered
            elif not self.children:  # networks are timed, and nothing of it is kept
                raise KeyboardInterrupt
            for child in self.children:
                child.ask(self.asked, number)

        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def locked(folder: Path, say: Callable[[str], None]) -> AbstractContextManager[int]:
    """A lock on the folder, for this process and those that inherit it; the system frees it when all have ended."""
    works = f"another process works in {str(folder)!r}"
    return only_one(
        folder,
        lambda holder: f"{works} ({holder}): wait until it ends",
        inherited=True,
        patience=PATIENCE,
        waits=lambda: say(f"{works[0].upper()}{works[1:]}: waiting for it to end."),
    )


def left(runs: Sequence[Run], finished: Sequence[Finished], jobs: int) -> str:
    """How much time what is left will take, so many runs at a time, from what finished runs took."""
    if not finished:
        return "How long all of them take is known after the first."
    done = [found.run for found in finished]
    seconds = sum(expected(run, finished) for run in runs if run not in done)
    return f"About {minutes(seconds / jobs)} left for all that have not finished."


def expected(run: Run, finished: Sequence[Finished]) -> float:
    """Seconds that a run will take: as others of its kind, or of its pair, or of any."""
    same = [f for f in finished if f.run.pair == run.pair and f.run.arm is run.arm]
    # E(X) for the time of X takes that time
    like = Arm.ORDINARY if run.arm is Arm.LONGER else run.arm
    pair = [f for f in finished if f.run.pair == run.pair and f.run.arm is like]
    arm = [f for f in finished if f.run.arm is like]
    return mean(max(f.wall, f.seconds) for f in (same or pair or arm or list(finished)))


def _words(arm: Arm) -> str:
    return {
        Arm.ORDINARY: "ordinary",
        Arm.EQUIVARIANT: "as many epochs as X",
        Arm.LONGER: "for the training time of X",
    }[arm]
