"""A whole experiment on a tiny scale, killed and stopped on its way; its report says what the runs' logs say."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from threading import Thread
from time import sleep
from typing import Any

import pytest
from forked_python import ForkedPython
from PIL import Image
from small_experiment import Cut, noisy_images
from training_runs import Launcher
from typer.testing import CliRunner

from flopping.bench.pace import minutes
from flopping.cores import usable_cores
from flopping.experiments import running
from flopping.experiments.figure import draw
from flopping.experiments.folder import Folder
from flopping.experiments.pace import ROUNDS, Pace
from flopping.experiments.plan import Arm, Plan, load
from flopping.experiments.running import expected
from flopping.experiments.summary import rows
from flopping.training.job import Job
from flopping.training.journal import read_log
from flopping.training.recipe import load as load_recipe
from flopping_cli import app

runner = CliRunner()
WIDE = {"COLUMNS": "300"}
PLAN = "{title: Noise, about: Two kinds of it., pairs: [{recipe: tiny.yaml, seeds: 2}]}"
RECIPE = """
about: {source: a test, command: none, cost: seconds}
family: ViT
model: E(ViT-S)
model_args: {embed_dim: 16, depth: 1, num_heads: 2, patch_size: 8, init_values: 0.1}
img_size: 16
epochs: 1
batch_size: 4
optimizer: adamw
lr: 1.0e-3
warmup_epochs: 0.25
crop_scale: 0.8
"""
ORDER = ["tiny-x-0", "tiny-e-0", "tiny-e-time-0", "tiny-x-1", "tiny-e-1", "tiny-e-time-1"]
STOPPED_IN = ORDER[2]
STEPS = 80
SHARE = f"OMP_NUM_THREADS={max(1, usable_cores() // 2)}"
"""Of the cores, for each of two runs side by side."""


@dataclass
class Done:
    """An experiment that was killed in its first run, stopped in its third, and then came to its end."""

    root: Path
    words: list[str]
    said: dict[str, str]
    """On each of the three occasions."""
    kept: dict[str, str]
    """The log of each run that was cut off."""

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def report(self) -> str:
        return (self.root / "docs" / "noise.md").read_text(encoding="utf-8")

    @property
    def folder(self) -> Folder:
        return Folder(self.runs, self.plan, str(self.root / "data"), 1.0)

    @property
    def plan(self) -> Plan:
        return load(str(self.root / "noise.yaml"))

    @property
    def pace(self) -> Pace:
        (pace,) = self.folder.settings.paces.values()
        return pace

    def last(self, run: str) -> dict[str, Any]:
        """The final test of a run, as its log has it."""
        return [event for event in read_log(self.runs / run) if event["kind"] == "epoch"][-1]

    def table(self, head: str) -> list[list[str]]:
        """The cells of a table, found by the beginning of its first line."""
        lines = self.report[self.report.index(f"| {head}") :].split("\n\n")[0].splitlines()
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, launcher: Launcher, forks: ForkedPython) -> Iterator[Done]:
    root = tmp_path_factory.mktemp("experiment")
    (root / "noise.yaml").write_text(PLAN)
    (root / "tiny.yaml").write_text(RECIPE)
    runs, data = root / "runs", noisy_images(root / "data", train=2 * STEPS, test=100)
    words = ["experiment", str(root / "noise.yaml"), "--data", str(data), "-o", str(runs)]
    words += ["--report", str(root / "docs" / "noise.md"), "--no-compile", "--workers", "0", "--device", "cpu"]
    said, kept = {}, {}

    process = launcher.start(root, *words, curves=True)
    with Cut(runs, ORDER[0], lambda: process.send(signal.SIGKILL)) as cut:
        said["killed"], kept[ORDER[0]] = process.wait().err, cut.log
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # should it come too late
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(forks.executable))
        with Cut(runs, STOPPED_IN, lambda: os.kill(os.getpid(), signal.SIGTERM)) as cut:
            result = runner.invoke(app, words, env=WIDE)
        assert result.exit_code == 3, result.output
        said["stopped"], kept[STOPPED_IN] = result.output, cut.log
        words += ["--jobs", "2"]
        result = runner.invoke(app, words, env=WIDE)
    assert result.exit_code == 0, result.output
    said["finished"] = result.output
    yield Done(root, words, said, kept)
    signal.signal(signal.SIGTERM, before)


def announced(said: str) -> list[int]:
    return [int(number) for number in re.findall(r"^Run (\d) of 6: ", said, re.MULTILINE)]


def test_a_killed_or_stopped_experiment_goes_on_where_it_was(done: Done) -> None:
    assert announced(done.said["killed"]) == [1]
    assert announced(done.said["stopped"]) == [1, 2, 3]
    assert f"stopped in run {STOPPED_IN}" in done.said["stopped"]
    assert announced(done.said["finished"]) == [3, 4, 5, 6]
    timed = ["Timing ViT-S and E(ViT-S) in turn" in done.said[when] for when in ("killed", "stopped", "finished")]
    assert timed == [True, False, False]


def test_runs_side_by_side_say_what_they_do_in_files(done: Done) -> None:
    for name in ORDER[2:]:
        assert "top-1" in (done.runs / f"{name}.txt").read_text()
    assert not (done.runs / f"{ORDER[0]}.txt").exists()


def test_another_recipe_is_timed_anew(done: Done) -> None:
    (pair,) = done.plan.pairs
    assert done.folder.pace(pair) == done.pace
    assert done.pace.low <= done.pace.speedup <= done.pace.high
    assert done.pace.rounds == ROUNDS
    (done.root / "tiny.yaml").write_text(RECIPE.replace("depth: 1", "depth: 2"))
    try:
        (pair,) = done.plan.pairs
        assert done.folder.pace(pair) is None
        (done.root / "tiny.yaml").write_text(RECIPE.replace("cost: seconds", "cost: less"))
        (pair,) = done.plan.pairs
        assert done.folder.pace(pair) == done.pace
    finally:
        (done.root / "tiny.yaml").write_text(RECIPE)


@pytest.mark.parametrize("run", [ORDER[0], STOPPED_IN])
def test_a_run_whose_experiment_was_killed_or_stopped_saves_and_goes_on(done: Done, run: str) -> None:
    """The lines that stood in the log then still do: had the run begun anew, they would have other times."""
    assert 1 <= len(done.kept[run].splitlines()) < STEPS // 10
    assert (done.runs / run / "log.jsonl").read_text().startswith(done.kept[run])


def test_it_says_how_much_time_is_left(done: Done) -> None:
    assert "Run 1 of 6: ViT-S, ordinary, 1 epoch, seed 0. How long" in " ".join(done.said["killed"].split())
    last = r"Run 6 of 6: E\(ViT-S\), for the training time of X, \d+ epochs?, seed 1\. About .*\d+ s left"
    assert re.search(last, done.said["finished"])


def test_every_run_was_the_one_that_was_planned(done: Done) -> None:
    assert [run.name for run in done.plan.runs] == ORDER
    jobs = {name: Job.read(done.runs / name) for name in ORDER}
    assert [jobs[name].model for name in ORDER] == ["ViT-S", "E(ViT-S)", "E(ViT-S)"] * 2
    assert [jobs[name].recipe.seed for name in ORDER] == [0, 0, 0, 1, 1, 1]
    assert len({str(jobs[name].recipe.model_args) for name in ORDER}) == 1
    fitting = max(1, int(done.pace.speedup))
    assert [jobs[name].recipe.epochs for name in ORDER] == [1, 1, fitting] * 2
    assert [jobs[name].recipe.warmup_epochs for name in ORDER] == [0.25, 0.25, 0.25 * fitting] * 2


def test_the_report_has_the_figures_of_the_logs(done: Done) -> None:
    table = done.table("network | epochs")
    for (model, epochs, seeds, top1, mirrored, changed, time, speed), arm in zip(
        table, ("x", "e", "e-time"), strict=True
    ):
        runs = [done.last(f"tiny-{arm}-{seed}") for seed in (0, 1)]
        assert model == ("ViT-S" if arm == "x" else "E(ViT-S)")
        assert epochs.split(",")[0] == str(runs[0]["epoch"])
        assert seeds == "2"
        for cell, name, digits in ((top1, "top1", 2), (mirrored, "mirrored_top1", 2), (changed, "changed", 0)):
            values = [run[name] for run in runs]
            assert cell == f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"
        pace = done.pace.ordinary * (1 if arm == "x" else done.pace.speedup)
        assert (speed, time) == (f"{pace:.0f}", minutes(runs[0]["step"] * 4 / pace))
    assert f"An epoch has {4 * STEPS} training images." in done.report
    assert [cells[4:6] for cells in table[1:]] == [[cells[3], "0 ± 0"] for cells in table[1:]]


def test_the_report_lists_every_run(done: Done) -> None:
    for cells, name in zip(done.table("run | epochs"), ORDER, strict=True):
        last = done.last(name)
        assert cells[:3] == [name, str(last["epoch"]), f"{last['top1']:.2f}"]
        assert cells[3:6] == [f"{last['mirrored_top1']:.2f}", str(last["changed"]), f"{last['seconds']:.1f}"]
    assert "All 6 runs have finished." in done.report


def test_the_report_has_what_networks_cost_and_how_they_compare(done: Done) -> None:
    ordinary, equivariant = rows(done.folder)[:2]
    parameters = [int(p.numel()) for p in ordinary_network(done).parameters()]
    assert ordinary.cost.parameters == sum(parameters)
    assert 0.5 < equivariant.cost.flops / ordinary.cost.flops < 0.8
    assert ordinary.training_flops == ordinary.cost.training_flops * 4 * STEPS
    gains = [done.last(f"tiny-e-{seed}")["top1"] - done.last(f"tiny-x-{seed}")["top1"] for seed in (0, 1)]
    line = next(line for line in done.report.splitlines() if line.startswith("- E(ViT-S), 1 epochs, as many as X"))
    assert f"top-1 {mean(gains):+.2f} points (± {stdev(gains):.2f} over seeds)" in line
    assert f"{equivariant.speed / ordinary.speed:.2f} times the images/s of ViT-S" in line


def ordinary_network(done: Done) -> Any:
    from flopping.training.trained import checkpoint_folder, load_checkpoint

    return load_checkpoint(checkpoint_folder(done.runs / ORDER[0]))[0]


def test_the_commands_of_the_report_are_those_that_ran(done: Done) -> None:
    lines = [line for line in done.report.splitlines() if "flopping train" in line]
    assert len(lines) == 6
    for line, name in zip(lines, ORDER, strict=True):
        variables, _, command = line.partition("flopping ")
        words = ["flopping", *shlex.split(command)]
        assert variables == ("" if name in ORDER[:2] or "OMP_NUM_THREADS" in os.environ else f"{SHARE} ")
        job = Job.read(done.runs / name)
        changes = [word for word in words if "=" in word]
        assert load_recipe(words[2]).override(changes) == job.recipe
        assert words[words.index("--model") + 1] == job.model
        assert words[words.index("-o") + 1] == str(done.runs / name)
        assert words[-5:] == ["--device", "cpu", "--workers", "0", "--no-compile"]
    own = next(line for line in done.report.splitlines() if line.startswith("flopping experiment"))
    assert sorted(shlex.split(own)[1:]) == sorted(done.words)


def test_the_figure_has_every_arm_at_its_mean(done: Done) -> None:
    with Image.open(done.root / "docs" / "noise.png") as picture:
        assert picture.format == "PNG"
    assert "](noise.png)" in done.report
    (axes,) = draw(rows(done.folder)).axes
    assert axes.get_title(loc="left") == "ViT, 2 seeds"
    bars = {str(container.get_label())[1:]: container for container in axes.containers}
    assert list(bars) == [arm.value for arm in Arm]
    for name, container in bars.items():
        runs = [done.last(f"tiny-{name}-{seed}") for seed in (0, 1)]
        ((x, y),) = container.lines[0].get_xydata().tolist()  # type: ignore[union-attr]
        pace = done.pace.ordinary * (1 if name == "x" else done.pace.speedup)
        assert x == pytest.approx(runs[0]["step"] * 4 / pace / 60)
        assert y == pytest.approx(mean(run["top1"] for run in runs))
        assert axes.get_ylim()[0] < y < axes.get_ylim()[1]


def test_what_has_finished_is_not_run_again(done: Done) -> None:
    def written() -> dict[Path, int]:
        runs = [path for path in done.runs.rglob("*") if path.is_file() and path.parent != done.runs]
        return {path: path.stat().st_mtime_ns for path in runs}

    before, report = written(), done.report
    result = runner.invoke(app, done.words)
    assert result.exit_code == 0, result.output
    assert written() == before
    assert done.report == report


def test_a_report_of_a_part_says_so(done: Done, tmp_path: Path) -> None:
    marker = done.runs / ORDER[-1] / "finished.json"
    aside = marker.rename(tmp_path / "aside")
    try:
        report = tmp_path / "part.md"
        words = [str(report) if word.endswith("noise.md") else word for word in done.words]
        result = runner.invoke(app, [*words, "--only-report"])
        assert result.exit_code == 0, result.output
        assert "**5 of 6 runs have finished**" in report.read_text()
        assert (tmp_path / "part.png").exists()
        folder = done.folder
        assert expected(folder.plan.runs[-1], folder.all_finished()) == pytest.approx(
            json.loads((done.runs / "tiny-e-time-0" / "finished.json").read_text())["wall"]
        )
    finally:
        aside.rename(marker)


def test_another_scale_or_other_data_need_another_folder(done: Done) -> None:
    for more in (["--scale", "2"], ["--data", "elsewhere"]):
        result = runner.invoke(app, [*done.words, *more], env=WIDE)
        assert result.exit_code == 2
        assert "--scale 1: go on with these, or name another folder" in " ".join(result.output.split())


def test_finished_runs_of_another_recipe_are_refused(done: Done) -> None:
    """Else a report could compare what was trained differently."""
    recipe = done.root / "tiny.yaml"
    recipe.write_text(RECIPE.replace("lr: 1.0e-3", "lr: 2.0e-3"))
    try:
        result = runner.invoke(app, [*done.words, "--only-report"], env=WIDE)
    finally:
        recipe.write_text(RECIPE)
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert f"{ORDER[0]}' was started otherwise: lr=0.002 (was 0.001)" in said
    assert "Remove it, and it is done again" in said


CHILDREN = """
import os, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))
folder = sys.argv[sys.argv.index("-o") + 1]
os.makedirs(folder)
open(os.path.join(folder, "started"), "w").close()
while not asked:
    time.sleep(0.01)
if folder.endswith("e-0"):
    time.sleep(1)
open(os.path.join(folder, "asked"), "w").write(f"{len(asked)} {os.environ['OMP_NUM_THREADS']}")
sys.exit(3)
"""


def test_runs_side_by_side_are_asked_once_to_stop_and_have_their_time(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ends at once, the other saves for a second; a run that is asked twice would save nothing."""
    (tmp_path / "stand_in.py").write_text(CHILDREN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(running, "CHILD", "stand_in")
    monkeypatch.setattr(running, "measure", lambda *_: done.pace)
    runs = tmp_path / "runs"

    def interrupt() -> None:
        while not all((runs / name / "started").exists() for name in ORDER[:2]):
            sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=interrupt)
    thread.start()
    words = ["experiment", str(done.root / "noise.yaml"), "--data", "x", "-o", str(runs), "--jobs", "2"]
    result = runner.invoke(app, [*words, "--report", str(tmp_path / "report.md")], env=WIDE)
    thread.join()
    assert result.exit_code == 3, result.output
    share = SHARE.partition("=")[2]
    assert [(runs / name / "asked").read_text() for name in ORDER[:2]] == [f"1 {share}"] * 2
    assert not (runs / ORDER[2]).exists()


def test_a_run_that_fails_stops_the_experiment(done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "CHILD", "no_such_module")
    monkeypatch.setattr(running, "measure", lambda *_: done.pace)
    words = ["experiment", str(done.root / "noise.yaml"), "--data", "x", "-o", str(tmp_path / "runs")]
    result = runner.invoke(app, [*words, "--report", str(tmp_path / "report.md")], env=WIDE)
    assert result.exit_code == 1
    assert "The run stopped: tiny-x-0 ended with code 1" in result.output
    assert not (tmp_path / "report.md").exists()
