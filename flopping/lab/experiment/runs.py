"""The runs of an experiment: each is `flopping train` in a process of its own. Finished ones are not run again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from flopping.errors import RunInterruptedError, RunStoppedError, UsageError, as_usage_error, pluralize
from flopping.files import atomic_write, folder_lock
from flopping.lab.experiment.pace import Pace, measure, timed_recipe
from flopping.lab.experiment.plan import ARMS, Pair, Plan, Run
from flopping.machine import Machine, this_machine, usable_cores
from flopping.training.checkpoint import CONFIG
from flopping.training.job import Job, RunOptions
from flopping.training.networks import find_checkpoint
from flopping.training.run import is_free
from flopping.training.run_log import read_log

SETTINGS = "experiment.json"
FORMAT = "flopping-experiment-2"
FINISHED = "finished.json"
AGAIN = "The same command goes on from there"
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Finished:
    """The result of a run."""

    run: Run
    job: Job
    command: str
    """What carried it out, with the variables of the environment that it had of its own."""
    classes: int
    wall: float
    """Seconds since it was started or resumed, with compiling, tests and checkpoints."""
    machine: Machine
    tests: list[dict[str, Any]]
    """The events of its log after every epoch."""

    @property
    def last(self) -> dict[str, Any]:
        return self.tests[-1]

    @property
    def images(self) -> int:
        """Training images that were seen."""
        return int(self.last["step"]) * self.job.recipe.batch_size


class Experiment:
    """The folder of an experiment: its settings, and a folder for each run."""

    def __init__(self, path: Path, plan: Plan, data: str, scale: float) -> None:
        self.path, self.plan, self.data, self.scale = path, plan, data, scale
        self.paces: dict[str, Pace] = {}
        if not 0 < scale < float("inf"):
            raise UsageError(f"--scale is positive, got {scale}")
        if path.exists() and not path.is_dir():
            raise UsageError(f"{str(path)!r} is a file: -o names the folder of the experiment")
        if not (path / SETTINGS).exists():
            if not is_free(path):
                raise UsageError(f"{str(path)!r} holds other files than those of an experiment: name another folder")
            return
        with as_usage_error(KeyError, TypeError, AttributeError, ValueError, context=str(path / SETTINGS)):
            found = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
            self.paces = {name: Pace(**pace) for name, pace in found.pop("paces").items()}
            if {**found, "data": os.path.realpath(found["data"])} != {
                **self._settings(),
                "data": os.path.realpath(data),
            }:
                was = f"{found['experiment']} with --data {found['data']} --scale {found['scale']:g}"
                raise UsageError(f"the folder holds {was}: go on with these, or name another folder")

    def _settings(self) -> dict[str, object]:
        return {"format": FORMAT, "experiment": self.plan.name, "data": self.data, "scale": self.scale}

    def save(self) -> None:
        paces = {name: asdict(pace) for name, pace in self.paces.items()}
        _write_json(self.path / SETTINGS, {**self._settings(), "paces": paces})

    def pace(self, pair: Pair) -> Pace | None:
        """The measured pace of a pair, unless its recipe has changed since."""
        found = self.paces.get(pair.name)
        return found if found is not None and found.recipe == timed_recipe(pair) else None

    def epochs(self, run: Run) -> int:
        """How long a run is; the pace of its pair decides how many epochs fit into the time of X."""
        epochs = max(1, round(run.pair.content.epochs * self.scale))
        return epochs if run.arm != "e-time" else max(1, int(epochs * self.paces[run.pair.name].speedup))

    def command(self, run: Run) -> list[str]:
        """The arguments of `flopping` that start a run, or resume it."""
        where = ["--model", run.model, "--data", self.data, "-o", str(self.path / run.name), "--resume"]
        return ["train", run.pair.recipe, *run.changes(self.epochs(run)), *where]

    def finish(self, run: Run, words: Sequence[str], variables: Mapping[str, str], wall: float, device: str) -> None:
        """Record that a run has finished, and what is not in its own files."""
        folder = self.path / run.name
        config = json.loads((find_checkpoint(folder) / CONFIG).read_text(encoding="utf-8"))
        machine = this_machine(device)
        machine = replace(machine, flags={**variables, **machine.flags})
        command = " ".join(
            [*(f"{name}={value}" for name, value in variables.items()), shlex.join(["flopping", *words])]
        )
        content = {"command": command, "wall": wall, "classes": config["num_classes"], "machine": asdict(machine)}
        _write_json(folder / FINISHED, content)

    def finished(self, run: Run) -> Finished | None:
        """The result of a run, if it has finished. It must be the run that the plan asks for now."""
        folder = self.path / run.name
        if not (folder / FINISHED).exists():
            return None
        with as_usage_error(KeyError, TypeError, ValueError, context=f"{str(folder / FINISHED)!r} can't be read"):
            content = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
            content["machine"] = Machine(**content["machine"])
        kept = Job.read(folder)
        # the machine may have chosen another precision
        recipe = run.pair.content.override([*run.changes(self.epochs(run)), f"precision={kept.recipe.precision}"])
        job = Job(recipe, run.model, self.data).resume(kept, folder)
        tests = [event for event in read_log(folder) if event["kind"] == "epoch"]
        if not tests or "mirrored_top1" not in tests[-1]:
            raise UsageError(f"{str(folder)!r} has finished, but its log has no evaluation of mirrored images")
        return Finished(run, job, tests=tests, **content)

    def all_finished(self) -> list[Finished]:
        return [found for run in self.plan.runs if (found := self.finished(run)) is not None]


@dataclass
class Child:
    """A run under way."""

    run: Run
    command: Sequence[str]
    variables: Mapping[str, str]
    """Of the environment, beyond this process's own."""
    process: subprocess.Popen[bytes]
    started: float


class Runner:
    """Runs what is left of an experiment, `jobs` runs at a time."""

    def __init__(
        self,
        experiment: Experiment,
        options: Sequence[str],
        machine: RunOptions,
        say: Callable[[str], None],
        jobs: int = 1,
    ) -> None:
        self.experiment, self.options, self.machine, self.say, self.jobs = experiment, options, machine, say, jobs
        self.children: list[Child] = []
        self.signals = 0
        """How many were received."""

    def run(self, report: Callable[[], None]) -> None:
        """Measure the paces, run all that has not finished, and call `report` after every run."""
        experiment, runs = self.experiment, self.experiment.plan.runs
        taken = f"another process ({{}}) works in {str(experiment.path)!r}: wait until it ends"
        with folder_lock(experiment.path, taken.format):
            self._measure()
            waiting = [run for run in runs if experiment.finished(run) is None]
            with self._forward_signals():
                while self.children or (waiting and not self.signals):
                    while waiting and len(self.children) < self.jobs and not self.signals:
                        self._start(waiting.pop(0))
                    sleep(POLL_SECONDS)
                    for child in [child for child in self.children if child.process.poll() is not None]:
                        self._end(child)
                        report()
                if waiting:
                    raise RunInterruptedError(f"stopped before run {waiting[0].name}. {AGAIN}")

    def _measure(self) -> None:
        for pair in self.experiment.plan.pairs:
            if self.experiment.pace(pair) is None:
                names = f"{pair.model('x')} and {pair.model('e')}"
                self.say(f"Timing {names} in turn; they are compiled first: a minute or two.")
                try:
                    self.experiment.paces[pair.name] = measure(pair, self.experiment.data, self.machine)
                except KeyboardInterrupt as stop:
                    raise RunInterruptedError(f"stopped while {names} were timed. {AGAIN}") from stop
            self.experiment.save()

    def _start(self, run: Run) -> None:
        """Start a run. Of several side by side, each has its share of the cores and a file for its output."""
        runs, epochs = self.experiment.plan.runs, pluralize(self.experiment.epochs(run), "epoch")
        self.say(f"Run {1 + runs.index(run)} of {len(runs)}: {run.model}, {ARMS[run.arm]}, {epochs}, seed {run.seed}.")
        command, variables = [*self.experiment.command(run), *self.options], {}
        if self.jobs > 1:
            share = usable_cores() // self.jobs
            if "OMP_NUM_THREADS" not in os.environ:
                variables = {"OMP_NUM_THREADS": str(max(1, share))}
            if "--workers" not in command:
                command += ["--workers", str(max(0, min(share - 1, self.machine.workers)))]
        with open(self._output(run), "ab") if self.jobs > 1 else nullcontext() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "flopping", *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                env={**os.environ, **variables},
                start_new_session=True,  # Ctrl-C reaches it through this process only
            )
        self.children.append(Child(run, command, variables, process, monotonic()))

    def _output(self, run: Run) -> Path:
        return self.experiment.path / f"{run.name}.txt"

    def _end(self, child: Child) -> None:
        """Record a run that has finished. If one has failed, stop the others, which save, and raise."""
        code = child.process.wait()
        self.children.remove(child)
        if code == 0:
            wall = monotonic() - child.started
            self.experiment.finish(child.run, child.command, child.variables, wall, self.machine.device)
            return
        interrupted = self.signals > 0
        if not interrupted:
            self._stop()
        while self.children:
            other = self.children[0]
            if other.process.wait() == 0:
                self._end(other)
            else:
                self.children.remove(other)
        if interrupted:
            raise RunInterruptedError(f"stopped in run {child.run.name}. {AGAIN}")
        where = "above" if self.jobs == 1 else f"in {str(self._output(child.run))!r}"
        raise RunStoppedError(f"{child.run.name} ended with code {code}; its output is {where}. {AGAIN}")

    def _stop(self) -> None:
        """Ask all runs to save and end; asked twice, they end at once."""
        self.signals += 1
        for child in self.children:
            child.process.terminate()

    @contextmanager
    def _forward_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop the runs; no other run is started."""
        before = {number: signal.signal(number, lambda *_: self._stop()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _write_json(path: Path, content: object) -> None:
    with atomic_write(path) as place:
        place.write_text(json.dumps(content, indent=1), encoding="utf-8")
