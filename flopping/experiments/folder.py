"""The folder of an experiment: what it was started with, a folder for each run, and what finished runs found."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flopping.bench.machine import Machine, this_machine
from flopping.experiments.pace import Pace, timed
from flopping.experiments.plan import Arm, Pair, Plan, Run, scaled
from flopping.training.job import Job
from flopping.training.journal import read_log
from flopping.training.run_folder import is_free
from flopping.whole import whole

SETTINGS = "experiment.json"
FORMAT = "flopping-experiment-2"
FINISHED = "finished.json"


@dataclass(frozen=True)
class Settings:
    """What an experiment was started with, and what it has measured since."""

    experiment: str
    data: str
    scale: float
    paces: Mapping[str, Pace] = field(default_factory=dict)
    """How fast the networks of a pair train, by the pair's name."""


@dataclass(frozen=True)
class Finished:
    """What a run found."""

    run: Run
    job: Job
    command: str
    """What carried it out, with the variables of the environment that it had of its own."""
    classes: int
    steps: int
    seconds: float
    """Time that its training steps took, beside whatever else the machine did."""
    wall: float
    """Time from beginning to end, or from the last resumption to the end; with compiling, tests and checkpoints."""
    top1: float
    mirrored_top1: float
    changed: int
    test_images: int
    curve: tuple[tuple[int, float], ...]
    """Training images seen and accuracy after every epoch."""
    machine: Machine

    @property
    def epochs(self) -> int:
        return self.job.recipe.epochs

    @property
    def images(self) -> int:
        """Training images that were seen."""
        return self.steps * self.job.recipe.batch_size


class Folder:
    """An experiment on the disk."""

    def __init__(self, path: Path, plan: Plan, data: str, scale: float) -> None:
        self.path, self.plan = path, plan
        for pair in plan.pairs:
            scaled(pair.content.epochs, scale)
        self.settings = Settings(plan.name, data, scale)
        if path.exists() and not path.is_dir():
            raise ValueError(f"{str(path)!r} is a file: -o names the folder of the experiment")
        if not (path / SETTINGS).exists() and not is_free(path):
            raise ValueError(f"{str(path)!r} holds other files than those of an experiment: name another folder")
        self._compare()

    def _compare(self) -> None:
        """Take over what an earlier process decided, if it was asked for the same."""
        if (self.path / SETTINGS).exists():
            kept = self._kept()
            if replace(self.settings, paces=kept.paces) != kept:
                was = f"{kept.experiment} with --data {kept.data} --scale {kept.scale:g}"
                raise ValueError(f"{str(self.path)!r} holds {was}: go on with these, or name another folder")
            self.settings = kept

    def _kept(self) -> Settings:
        path = self.path / SETTINGS
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT}")
            paces = {name: Pace.of(pace) for name, pace in content.pop("paces").items()}
            return Settings(**content, paces=paces)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{str(path)!r} is no description of an experiment: {error}") from error

    def begin(self) -> None:
        """Write down what the experiment was started with, unless it was done. No other process may do it meanwhile."""
        self._compare()
        self._keep()

    def _keep(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with whole(self.path / SETTINGS) as place:
            place.write_text(json.dumps({"format": FORMAT, **asdict(self.settings)}, indent=1), encoding="utf-8")

    def epochs(self, run: Run) -> int:
        """How long a run is; for the last arm the pace of the pair decides, which has to be known by then."""
        epochs = scaled(run.pair.content.epochs, self.settings.scale)
        return epochs if run.arm is not Arm.LONGER else self.settings.paces[run.pair.name].longer(epochs)

    def pace(self, pair: Pair) -> Pace | None:
        """How fast the networks of a pair train, if it was measured; with another recipe it was not."""
        found = self.settings.paces.get(pair.name)
        return found if found is not None and found.recipe == timed(pair) else None

    def keep_pace(self, pair: Pair, pace: Pace) -> None:
        self.settings = replace(self.settings, paces={**self.settings.paces, pair.name: pace})
        self._keep()

    def command(self, run: Run) -> list[str]:
        """The words behind `flopping` that carry a run out."""
        return run.command(self.epochs(run), self.settings.data, self.path)

    def arm(self, pair: Pair, arm: Arm) -> list[Finished]:
        """Finished runs that differ in their seed only."""
        return [found for run in pair.runs(arm) if (found := self.finished(run)) is not None]

    def all_finished(self) -> list[Finished]:
        return [found for run in self.plan.runs if (found := self.finished(run)) is not None]

    def finish(
        self, run: Run, words: Sequence[str], variables: Mapping[str, str], wall: float, classes: int, device: str
    ) -> None:
        """Write down that a run has come to its end, and what is not in its own files.

        Its command is the words behind `flopping`, with variables of the environment that it had of its own.
        """
        machine = this_machine(device)
        machine = replace(machine, flags={**variables, **machine.flags})
        command = " ".join(
            [*(f"{name}={value}" for name, value in variables.items()), shlex.join(["flopping", *words])]
        )
        content = {"command": command, "wall": wall, "classes": classes, "machine": asdict(machine)}
        with whole(self.path / run.name / FINISHED) as place:
            place.write_text(json.dumps(content, indent=1), encoding="utf-8")

    def _job(self, run: Run) -> Job:
        """What a run has done, if that is what it is to do now; the machine had a say in the arithmetic."""
        kept = Job.read(self.path / run.name)
        recipe = run.pair.content.override([*run.changes(self.epochs(run)), f"precision={kept.recipe.precision}"])
        return Job(recipe, run.model, self.settings.data).continued(kept, self.path / run.name)

    def finished(self, run: Run) -> Finished | None:
        """What a run found, or None where it has not come to its end."""
        folder = self.path / run.name
        if not (folder / FINISHED).exists():
            return None
        try:
            content: dict[str, Any] = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
            job = self._job(run)
            tests = [event for event in read_log(folder) if event["kind"] == "epoch"]
            last = tests[-1]
            return Finished(
                run,
                job,
                content["command"],
                classes=content["classes"],
                steps=last["step"],
                seconds=last["seconds"],
                wall=content["wall"],
                top1=last["top1"],
                mirrored_top1=last["mirrored_top1"],
                changed=last["changed"],
                test_images=last["images"],
                curve=tuple((event["step"] * job.recipe.batch_size, event["top1"]) for event in tests),
                machine=Machine(**content["machine"]),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = error if isinstance(error, ValueError) else f"{type(error).__name__} {error}"
            raise ValueError(
                f"the finished run in {str(folder)!r} can't be used: {why}. Remove it, and it is done again"
            ) from error
