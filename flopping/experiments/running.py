"""All runs of an experiment, one after another, each in a process of its own; finished ones are not run again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import mean
from time import monotonic
from types import FrameType

from flopping.bench.pace import minutes
from flopping.experiments.folder import Finished, Folder
from flopping.experiments.plan import Arm, Run
from flopping.lock import LOCK as LOCK
from flopping.lock import locked as only_one
from flopping.training.checkpoint import CONFIG
from flopping.training.stops import InterruptedRunError, StoppedError
from flopping.training.trained import checkpoint_folder

CHILD = "flopping.experiments.child"
PATIENCE = 180.0
"""Seconds that a run whose experiment was killed has for its last step, for which it may compile, and to save."""


class Runner:
    """Carries out what is left of an experiment."""

    def __init__(
        self,
        folder: Folder,
        options: Sequence[str],
        device: str,
        say: Callable[[str], None],
        report: Callable[[], None],
    ) -> None:
        self.folder, self.options, self.device, self.say, self.report = folder, options, device, say, report
        self.process: subprocess.Popen[bytes] | None = None
        self.asked: int | None = None

    def run(self) -> None:
        """Run all that has not finished, and write the report after every run."""
        folder, runs = self.folder, self.folder.plan.runs
        with locked(folder.path, self.say) as lock, self._signals():
            folder.begin()
            for number, run in enumerate(runs, 1):
                if folder.finished(run) is not None:
                    continue
                self.say(
                    f"Run {number} of {len(runs)}: {run.model}, {_words(run.arm)}, {folder.epochs(run)} epochs, seed"
                    f" {run.seed}. {left(runs, folder.all_finished())}"
                )
                started = monotonic()
                command = [*folder.command(run), *self.options]
                self._carry_out(run, command, lock)
                config = checkpoint_folder(folder.path / run.name) / CONFIG
                classes = json.loads(config.read_text(encoding="utf-8"))["num_classes"]
                folder.finish(run, command, monotonic() - started, classes, self.device)
                self.report()

    def _carry_out(self, run: Run, command: Sequence[str], lock: int) -> None:
        again = "The same command goes on from there"
        if self.asked is None:
            with subprocess.Popen(
                [sys.executable, "-m", CHILD, *command],
                stdin=subprocess.PIPE,  # never written to: it closes when this process ends, however that comes about
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt from the keyboard comes through this process alone
                pass_fds=(lock,),
            ) as self.process:
                if self.asked is not None:  # since it was looked at
                    self.process.send_signal(self.asked)
                code = self.process.wait()
            if code == 0:
                return
            if self.asked is None:
                raise StoppedError(f"{run.name} ended with code {code}; what it said is above. {again}")
        raise InterruptedRunError(f"stopped in run {run.name}. {again}")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Asked to stop, let the run save what it has, and start no other."""

        def forward(number: int, frame: FrameType | None) -> None:
            self.asked = number
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(number)

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


def left(runs: Sequence[Run], finished: Sequence[Finished]) -> str:
    """How much time what is left will take, from what finished runs took."""
    if not finished:
        return "How long all of them take is known after the first."
    done = [found.run for found in finished]
    seconds = sum(expected(run, finished) for run in runs if run not in done)
    return f"About {minutes(seconds)} left for all that have not finished."


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
