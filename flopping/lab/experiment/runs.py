"""The runs of an experiment: each is `flopping train` in a process of its own. Finished ones are not run again."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic.dataclasses import dataclass as checked_dataclass
from rich.console import Console

from flopping.checkpoints.weight_files import CONFIG
from flopping.cost.timing import Interval, interleave
from flopping.data.batches import detect_lost_workers
from flopping.data.datasets import open_dataset
from flopping.errors import RunInterruptedError, RunStoppedError, UsageError, as_usage_error, pluralize
from flopping.files import folder_lock, read_json, write_json
from flopping.groups import get_group
from flopping.lab.bench.bench_loader import WARM, build_trainer, repeat_epochs
from flopping.lab.experiment.plan import Pair, Plan, Run
from flopping.machine import Machine, this_machine
from flopping.training.job import Job, RunOptions
from flopping.training.networks import find_checkpoint
from flopping.training.recipe import About
from flopping.training.run import is_free
from flopping.training.run_log import read_log
from flopping.training.trainer import Trainer

SETTINGS = "experiment.json"
FORMAT = "flopping-experiment-3"
FINISHED = "finished.json"
AGAIN = "The same command goes on from there"
ROUNDS = 40
STEPS = 4
"""Training steps of each network in a round."""


@checked_dataclass(frozen=True)
class Pace:
    """Training images per second of a pair's first arm, and how many times as many each arm takes: medians."""

    first: float
    gains: dict[str, Interval]
    """By the arms' names, with 95 % confidence intervals."""
    rounds: int
    threads: int
    recipes: dict[str, str]
    """What was timed, from `timed_recipes`."""


@dataclass(frozen=True)
class Finished:
    run: Run
    job: Job
    command: str
    classes: int
    machine: Machine
    tests: list[dict[str, Any]]
    """The events of its log after every epoch."""

    @property
    def last(self) -> dict[str, Any]:
        return self.tests[-1]

    @property
    def figures(self) -> dict[str, float]:
        """Accuracy for each element of the group, the mean of all and of those that move images; changed answers."""
        moved = {name: each["top1"] for name, each in self.last["moved"].items()}
        every = {"identity": self.last["top1"], **moved}
        return {**every, "all": mean(every.values()), "moved": mean(moved.values()), "changed": self.last["changed"]}

    @property
    def images(self) -> int:
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
        found = read_json(path / SETTINGS)
        with as_usage_error(KeyError, TypeError, AttributeError, ValueError, context=str(path / SETTINGS)):
            if found["format"] != FORMAT:
                raise UsageError(f"it is of another version ({found['format']!r}, not {FORMAT!r}): name another folder")
            paces = {name: Pace(**pace) for name, pace in found.pop("paces").items()}
            same = os.path.realpath(found["data"]) == os.path.realpath(data)
            if same and {**found, "data": data} == self._settings():
                self.paces = paces
            elif any((path / run.name).exists() for run in plan.runs):
                was = f"{found['experiment']} with --data {found['data']} --scale {found['scale']:g}"
                raise UsageError(f"the folder holds {was}: go on with these, or name another folder")

    def _settings(self) -> dict[str, object]:
        return {"format": FORMAT, "experiment": self.plan.name, "data": self.data, "scale": self.scale}

    def pace(self, pair: Pair) -> Pace | None:
        """The measured pace of a pair, unless its recipe has changed since."""
        found = self.paces.get(pair.name)
        return found if found is not None and found.recipes == timed_recipes(self.plan, pair) else None

    def epochs(self, run: Run) -> int:
        """How long a run is; the pace of its pair decides how many epochs fit into the time of the first arm."""
        epochs = max(1, round(run.pair.content.epochs * self.scale))
        fitting = self.paces[run.pair.name].gains[run.arm.name].value if run.arm.fill_time else 1.0
        return max(1, int(epochs * fitting))

    def run(
        self, options: Sequence[str], run_options: RunOptions, say: Callable[[str], None], report: Callable[[], None]
    ) -> None:
        """Measure the paces, run all that has not finished, and call `report` after every run."""
        for split in ("train", "test"):
            open_dataset(self.data, split)  # data that cannot be read is refused before the folder is created
        taken = f"another process ({{}}) works in {str(self.path)!r}: wait until it ends"
        with folder_lock(self.path, taken.format):
            self._measure(run_options, say)
            runs = self.plan.runs
            for number, run in enumerate(runs, 1):
                if self.finished(run) is None:
                    epochs = pluralize(self.epochs(run), "epoch")
                    note = f" ({run.arm.note})" if run.arm.note else ""
                    network = run.arm.label or run.model
                    say(f"Run {number} of {len(runs)}: {network}, {epochs}{note}, seed {run.seed}.")
                    self._train(run, options, run_options.device)
                    report()

    def _measure(self, options: RunOptions, say: Callable[[str], None]) -> None:
        for pair in self.plan.pairs:
            if self.pace(pair) is None:
                names = " and ".join(dict.fromkeys(arm.label or pair.model(arm) for arm in self.plan.arms))
                first = "; they are compiled first: a minute or two" if options.compile else ""
                say(f"Timing {names} in turn{first}.")
                try:
                    self.paces[pair.name] = measure_pace(self.plan, pair, self.data, options)
                except KeyboardInterrupt as stop:
                    raise RunInterruptedError(f"stopped while {names} were timed. {AGAIN}") from stop
            paces = {name: asdict(pace) for name, pace in self.paces.items()}
            write_json(self.path / SETTINGS, {**self._settings(), "paces": paces})

    def _train(self, run: Run, options: Sequence[str], device: str) -> None:
        """Start or resume a run, wait for it, and record what is not in its own files."""
        folder = self.path / run.name
        words = ["train", run.pair.recipe, *run.changes(self.epochs(run)), "--model", run.model, "--data", self.data]
        words += ["-o", str(folder), "--group", self.plan.group, "--resume", *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "flopping", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches it through this process only
        )
        with _forward_signals(process) as received:
            code = process.wait()
        if code and received:
            raise RunInterruptedError(f"stopped in run {run.name}. {AGAIN}")
        if code:
            raise RunStoppedError(f"{run.name} ended with code {code}; its output is above. {AGAIN}")
        config = read_json(find_checkpoint(folder) / CONFIG)
        content: dict[str, Any] = {"command": shlex.join(["flopping", *words])}
        content |= {"classes": config["num_classes"], "machine": asdict(this_machine(device))}
        write_json(folder / FINISHED, content)
        if received:
            raise RunInterruptedError(f"stopped after run {run.name}. {AGAIN}")

    def finished(self, run: Run) -> Finished | None:
        """The result of a run, if it has finished. It must be the run that the plan asks for now."""
        folder = self.path / run.name
        if not (folder / FINISHED).exists():
            return None
        content = read_json(folder / FINISHED)
        with as_usage_error(KeyError, TypeError, ValueError, context=f"{str(folder / FINISHED)!r} can't be read"):
            content["machine"] = Machine(**content["machine"])
        kept = Job.read(folder)
        # the machine may have chosen another precision
        recipe = run.pair.content.override([*run.changes(self.epochs(run)), f"precision={kept.recipe.precision}"])
        job = Job(recipe, run.model, self.data).resume(kept, folder)
        tests = [event for event in read_log(folder) if event["kind"] == "epoch"]
        group = get_group(self.plan.group)
        if not tests or [*tests[-1].get("moved", {})] != [*group.elements[1:]]:
            raise UsageError(f"{str(folder)!r} has finished, but its log has no evaluation of images moved by {group}")
        return Finished(run, job, tests=tests, **content)

    def all_finished(self) -> list[Finished]:
        return [found for run in self.plan.runs if (found := self.finished(run)) is not None]


@contextmanager
def _forward_signals(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """SIGINT and SIGTERM ask the run to save and end; asked twice, it ends at once. Gives the signals received."""
    received: list[int] = []

    def forward(number: int, _: object) -> None:
        received.append(number)
        process.terminate()

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def measure_pace(plan: Plan, pair: Pair, data: str, options: RunOptions) -> Pace:
    """Time training steps of all arms in turn in one process, with reading and augmenting images."""
    recipes = timed_recipes(plan, pair)
    jobs = {recipes[arm.name]: Job(pair.changed(arm), pair.model(arm), data) for arm in plan.arms}
    with TemporaryDirectory() as folder, detect_lost_workers(options.workers):
        trainers = {
            recipe: build_trainer(job, options, Path(folder), Console(quiet=True)) for recipe, job in jobs.items()
        }
        timings = interleave({recipe: _steps(trainer) for recipe, trainer in trainers.items()}, ROUNDS, WARM)
    first = recipes[plan.arms[0].name]
    gains = {name: timings[first].interval_over(timings[recipe]) for name, recipe in recipes.items()}
    speed = STEPS * trainers[first].order.batch_size / timings[first].median
    return Pace(speed, gains, ROUNDS, torch.get_num_threads(), recipes)


def timed_recipes(plan: Plan, pair: Pair) -> dict[str, str]:
    """All that decides how fast the arms of a pair are: not headers, nor how long and at what rate they learn.

    Moving an image is left out, too: it takes microseconds. So arms that differ in it alone are timed once.
    """
    same: dict[str, Any] = {"about": About(), "epochs": 1, "warmup_epochs": 0.0, "lr": 1.0, "seed": 0, "symmetry": None}
    return {arm.name: replace(pair.changed(arm), model=pair.model(arm), **same).to_yaml() for arm in plan.arms}


def _steps(trainer: Trainer) -> Callable[[], float]:
    """A few training steps, done when their last loss is known."""
    batches = repeat_epochs(trainer.source)

    def run() -> float:
        for _ in range(STEPS):
            loss = trainer.learner.step(0, 0, batches)
        return loss.item()

    return run
