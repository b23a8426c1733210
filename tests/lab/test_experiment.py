"""A whole experiment on a tiny scale, stopped on its way; its report says what the runs' logs say. And refusals."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from support.forked_python import ForkedPython
from typer.testing import CliRunner

from flopping.errors import UsageError
from flopping.groups import octic
from flopping.lab.experiment import runs
from flopping.lab.experiment.figure import draw_over_elements, draw_over_time
from flopping.lab.experiment.plan import load
from flopping.lab.experiment.runs import Experiment
from flopping.lab.experiment.summary import minutes, rows_of, write_report
from flopping.training.job import Job
from flopping.training.recipe import load as load_recipe
from flopping.training.run_log import read_log
from flopping_cli import app

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
STOPPED_IN = ORDER[1]
TURNED = """
title: Turned
about: In all orientations.
group: octic
pairs: [{recipe: tiny.yaml, seeds: 1}]
arms:
  - {name: x, ordinary: true, label: plain}
  - {name: octic, label: all eight, changes: [model_args.group=octic, symmetry=octic]}
"""
STEPS = 40


def noisy_images(root: Path, train: int, test: int, noise: float = 250) -> Path:
    """Two classes that are brighter at the top or at the bottom, by default under so much noise that networks err."""
    numbers = np.random.default_rng(0)
    slope = np.linspace(80, -80, 16)[:, None, None]
    for split, each in (("train", train), ("val", test)):
        for name, sign in (("top", 1), ("bottom", -1)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(each):
                pixels = 128 + sign * slope + numbers.normal(0, noise, (16, 16, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")
    return root


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["experiment", *words], env={"COLUMNS": "300"})


class Done:
    """An experiment that was stopped in its second run, and then went on to its end."""

    def __init__(self, root: Path) -> None:
        self.root, self.runs, self.page = root, root / "runs", root / "docs" / "noise.md"
        (root / "noise.yaml").write_text(PLAN)
        (root / "tiny.yaml").write_text(RECIPE)
        self.words = [str(root / "noise.yaml"), "--data", str(noisy_images(root / "data", 2 * STEPS, 25))]
        self.words += ["-o", str(self.runs), "--report", str(self.page)]
        self.words += ["--no-compile", "--workers", "0", "--device", "cpu"]
        ended = Event()
        thread = Thread(target=self._interrupt, args=(ended,))
        thread.start()
        self.stopped = run(*self.words)
        ended.set()
        thread.join()
        assert self.stopped.exit_code == 3, self.stopped.output
        self.finished = run(*self.words)
        assert self.finished.exit_code == 0, self.finished.output
        self.report = self.page.read_text(encoding="utf-8")

    def _interrupt(self, ended: Event) -> None:
        while not any(event["kind"] == "step" for event in read_log(self.runs / STOPPED_IN)):
            if ended.wait(0.01):
                return
        self.kept = (self.runs / STOPPED_IN / "log.jsonl").read_text().rpartition("\n")[0]
        os.kill(os.getpid(), signal.SIGTERM)

    @property
    def experiment(self) -> Experiment:
        return Experiment(self.runs, load(str(self.root / "noise.yaml")), str(self.root / "data"), 1.0)

    def last(self, name: str) -> dict[str, Any]:
        """The final test of a run, as its log has it."""
        return [event for event in read_log(self.runs / name) if event["kind"] == "epoch"][-1]

    def table(self, head: str) -> list[list[str]]:
        """The cells of a table, found by the beginning of its first line."""
        lines = self.report[self.report.index(f"| {head}") :].split("\n\n")[0].splitlines()
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.fixture(scope="module")
def quick(forks: ForkedPython) -> Iterator[None]:
    """Runs start at once, and are timed briefly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(forks.executable))
        patch.setattr(runs, "ROUNDS", 4)
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, quick: None) -> Iterator[Done]:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # should it come too late
    yield Done(tmp_path_factory.mktemp("experiment"))
    signal.signal(signal.SIGTERM, before)


def test_a_stopped_experiment_goes_on_where_it_was(done: Done) -> None:
    def announced(result: Result) -> list[int]:
        return [int(number) for number in re.findall(r"^Run (\d) of 6: ", result.output, re.MULTILINE)]

    assert announced(done.stopped) == [1, 2]
    assert f"stopped in run {STOPPED_IN}" in done.stopped.output
    assert announced(done.finished) == [2, 3, 4, 5, 6]
    assert ["Timing ViT-S and E(ViT-S)" in said.output for said in (done.stopped, done.finished)] == [True, False]
    # had the run begun anew, its first lines would have other times
    assert 1 <= len(done.kept.splitlines()) < STEPS
    assert (done.runs / STOPPED_IN / "log.jsonl").read_text().startswith(done.kept)


def test_every_run_was_planned_and_its_command_is_in_the_report(done: Done) -> None:
    assert [each.name for each in done.experiment.plan.runs] == ORDER
    jobs = [Job.read(done.runs / name) for name in ORDER]
    assert [job.model for job in jobs] == ["ViT-S", "E(ViT-S)", "E(ViT-S)"] * 2
    assert [job.recipe.seed for job in jobs] == [0, 0, 0, 1, 1, 1]
    fitting = max(1, int(done.experiment.paces["tiny"].gains["e"].value))
    assert [job.recipe.epochs for job in jobs] == [1, 1, fitting] * 2
    assert [job.recipe.warmup_epochs for job in jobs] == [0.25, 0.25, 0.25 * fitting] * 2
    commands = [shlex.split(line) for line in done.report.splitlines() if line.startswith("flopping train")]
    for words, job, name in zip(commands, jobs, ORDER, strict=True):
        assert load_recipe(words[2]).override([word for word in words if "=" in word]) == job.recipe
        assert words[words.index("--model") + 1] == job.model
        assert words[words.index("-o") + 1] == str(done.runs / name)
        assert words[-5:] == ["--device", "cpu", "--workers", "0", "--no-compile"]
    own = next(line for line in done.report.splitlines() if line.startswith("flopping experiment"))
    assert sorted(shlex.split(own)[2:]) == sorted(done.words)


def test_the_report_has_the_figures_of_the_logs(done: Done) -> None:
    measured = done.experiment.paces["tiny"]
    assert measured.gains["x"] == (1, 1, 1)
    assert measured.gains["e"] == measured.gains["e-time"]
    assert measured.gains["e"].low <= measured.gains["e"].value <= measured.gains["e"].high
    table = done.table("network | epochs")
    arms = [arm.name for arm in done.experiment.plan.arms]
    for (model, epochs, seeds, top1, mirrored, changed, time, speed), arm in zip(table, arms, strict=True):
        found = [done.last(f"tiny-{arm}-{seed}") for seed in (0, 1)]
        assert model == ("ViT-S" if arm == "x" else "E(ViT-S)")
        assert epochs.split(",")[0] == str(found[0]["epoch"])
        assert seeds == "2"
        flops = [each["moved"]["flop"]["top1"] for each in found]
        seen = [each["top1"] for each in found]
        for cell, values, digits in (
            (top1, seen, 2),
            (mirrored, flops, 2),
            (changed, [e["changed"] for e in found], 0),
        ):
            assert cell == f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"
        fast = measured.first * measured.gains[arm].value
        assert (speed, time) == (f"{fast:.0f}", minutes(found[0]["step"] * 4 / fast))
    assert [cells[4:6] for cells in table[1:]] == [[cells[3], "0 ± 0"] for cells in table[1:]]
    for cells, name in zip(done.table("run | epochs"), ORDER, strict=True):
        last = done.last(name)
        assert cells[:3] == [name, str(last["epoch"]), f"{last['top1']:.2f}"]
        mirrored = last["moved"]["flop"]["top1"]
        assert cells[3:6] == [f"{mirrored:.2f}", str(last["changed"]), f"{last['seconds']:.1f}"]
    assert "All 6 runs have finished." in done.report
    assert f"An epoch has {4 * STEPS} training images." in done.report


def test_the_report_compares_networks_and_their_costs(done: Done) -> None:
    x, e, _ = rows_of(done.experiment)
    assert 0.4 < e.parameters / x.parameters < 0.6
    assert 0.5 < e.forward_flops / x.forward_flops < 0.8
    assert x.training_flops == x.step_flops * 4 * STEPS
    gains = [done.last(f"tiny-e-{seed}")["top1"] - done.last(f"tiny-x-{seed}")["top1"] for seed in (0, 1)]
    line = next(line for line in done.report.splitlines() if line.startswith("- E(ViT-S), 1 epochs, as many as X"))
    assert f"top-1 {mean(gains):+.2f} points (± {stdev(gains):.2f} over seeds)" in line
    assert f"{e.speed / x.speed:.2f} times the images/s of ViT-S" in line


def test_the_figure_has_every_arm_at_its_mean(done: Done) -> None:
    with Image.open(done.page.with_suffix(".png")) as picture:
        assert picture.format == "PNG"
    assert "](noise.png)" in done.report
    rows = rows_of(done.experiment)
    (axes,) = draw_over_time(rows).axes
    assert axes.get_title(loc="left") == "ViT, 2 seeds"
    for row, container in zip(rows, axes.containers, strict=True):
        ((x, y),) = container.lines[0].get_xydata().tolist()  # type: ignore[union-attr]
        assert (x, y) == pytest.approx((row.seconds / 60, mean(row.values("identity"))))
        assert axes.get_ylim()[0] < y < axes.get_ylim()[1]


def test_an_experiment_of_other_arms_with_all_orientations(quick: None, tmp_path: Path) -> None:
    (tmp_path / "turned.yaml").write_text(TURNED)
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("epochs: 1\n", "epochs: 3\n").replace("1.0e-3", "1.0e-2"))
    plan, page = tmp_path / "turned.yaml", tmp_path / "turned.md"
    data = noisy_images(tmp_path / "data", 32, 20, noise=20)
    words = [str(plan), "--data", str(data), "-o", str(tmp_path / "runs"), "--report", str(page)]
    ended = run(*words, "--no-compile", "--workers", "0", "--device", "cpu")
    assert ended.exit_code == 0, ended.output
    found = Experiment(tmp_path / "runs", load(str(plan)), str(data), 1.0)
    rows = rows_of(found)
    assert [row.network for row in rows] == ["plain", "all eight"]
    assert rows[1].parameters < 0.3 * rows[0].parameters
    turned = page.read_text(encoding="utf-8")
    for row in rows:
        (last,) = (one.last for one in row.runs)
        tops = [last["top1"], *(last["moved"][name]["top1"] for name in octic.elements[1:])]
        cells = [f"{top:.1f}" for top in (*tops, mean(tops))]
        assert f"| {row.network} | {' | '.join(cells)} |" in turned
    assert rows[1].values("changed") == [0]
    assert rows[0].values("changed") > [10]  # a half turn makes one class of the other
    (axes,) = draw_over_elements(rows, octic).axes
    assert axes.containers[0].lines[0].get_ydata().tolist() == pytest.approx(  # type: ignore[union-attr]
        [rows[0].values(name)[0] for name in octic.elements]
    )
    assert [Job.read(tmp_path / "runs" / each.name).recipe.symmetry for each in found.plan.runs] == [None, "octic"]


def test_the_plan_with_residual_networks() -> None:
    planned = load("cifar10_resnet")
    assert [each.name for each in planned.runs][:3] == [f"cifar10_resnet-{arm}-0" for arm in ("x", "e", "e-time")]
    assert len(planned.runs) == 9


@pytest.mark.long
def test_an_experiment_with_residual_networks(quick: None, tmp_path: Path) -> None:
    """The plan of the package in small: its recipe with a narrow network, trained for an epoch."""
    narrow = ["epochs=1", "warmup_epochs=0.5", "batch_size=8", "model_args={widths: [4, 8, 8], stem_width: 4}"]
    (tmp_path / "small.yaml").write_text(load_recipe("cifar10_resnet").override(narrow).to_yaml())
    (tmp_path / "plan.yaml").write_text("{title: Small, about: Noise., pairs: [{recipe: small.yaml, seeds: 1}]}")
    data, page = noisy_images(tmp_path / "data", 16, 10), tmp_path / "page.md"
    words = [str(tmp_path / "plan.yaml"), "--data", str(data), "-o", str(tmp_path / "runs"), "--report", str(page)]
    ended = run(*words, "--no-compile", "--workers", "0", "--device", "cpu")
    assert ended.exit_code == 0, ended.output
    x, *others = rows_of(Experiment(tmp_path / "runs", load(str(tmp_path / "plan.yaml")), str(data), 1.0))
    assert [row.network for row in (x, *others)] == ["ResNet-8 (32 px)", *["E(ResNet-8 (32 px))"] * 2]
    assert all(row.values("changed") == [0] for row in others)
    assert 0.45 < others[0].forward_flops / x.forward_flops < 0.75
    (axes,) = draw_over_time([x, *others]).axes
    assert axes.get_title(loc="left") == "ResNet, 1 seed"


def test_what_has_finished_is_not_run_again_and_a_report_of_a_part_says_so(done: Done, tmp_path: Path) -> None:
    logs = {name: (done.runs / name / "log.jsonl").stat().st_mtime_ns for name in ORDER}
    assert json.loads(run(*done.words, "--json").output)["runs"] == 6
    assert {name: (done.runs / name / "log.jsonl").stat().st_mtime_ns for name in ORDER} == logs
    assert done.page.read_text(encoding="utf-8") == done.report
    marker = done.runs / ORDER[-1] / "finished.json"
    aside = marker.rename(tmp_path / "aside")
    try:
        write_report(done.experiment, tmp_path / "part.md", "flopping experiment")
        assert "**5 of 6 runs have finished**" in (tmp_path / "part.md").read_text()
    finally:
        aside.rename(marker)


def test_runs_of_another_recipe_scale_or_data_are_refused(done: Done) -> None:
    """Else a report could compare what was trained differently."""
    for more in (["--scale", "2"], ["--data", "elsewhere"]):
        result = run(*done.words, *more)
        assert result.exit_code == 2, result.output
        assert "--scale 1" in result.output
    recipe = done.root / "tiny.yaml"
    try:
        recipe.write_text(RECIPE.replace("cost: seconds", "cost: less"))
        assert done.experiment.pace(done.experiment.plan.pairs[0]) is not None
        recipe.write_text(RECIPE.replace("depth: 1", "depth: 2"))
        assert done.experiment.pace(done.experiment.plan.pairs[0]) is None
        recipe.write_text(RECIPE.replace("lr: 1.0e-3", "lr: 2.0e-3"))
        result = run(*done.words)
    finally:
        recipe.write_text(RECIPE)
    assert result.exit_code == 2, result.output
    assert ORDER[0] in result.output
    assert "0.002" in result.output


def test_after_a_run_that_fails_no_other_is_started(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\necho started >>{tmp_path}/log\nexit 7\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(runs, "measure_pace", lambda *_: done.experiment.paces["tiny"])
    result = run(*done.words, "-o", str(tmp_path / "runs"), "--report", str(tmp_path / "report.md"))
    assert result.exit_code == 1, result.output
    assert "tiny-x-0 ended with code 7" in result.output
    assert (tmp_path / "log").read_text() == "started\n"
    assert not (tmp_path / "report.md").exists()


# Refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar11"], "'cifar11'; the closest is cifar10"),
        (["missing.yaml"], "missing.yaml"),
        (["cifar10", "--scale", "0"], "got 0.0"),
        (["cifar10", "--report", "page.html"], "'page.html'"),
        (["cifar10"], "no-such-folder"),
    ],
)
def test_refusals(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run("--data", "no-such-folder", "-o", str(tmp_path / "runs"), "--report", "report.md", *arguments)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("name", "message"), [("notes.txt", "other files"), ("experiment.json", r"experiment\.json")])
def test_folders_that_others_use_are_refused(tmp_path: Path, name: str, message: str) -> None:
    for content in ("{}", "[" * 100_000):
        (tmp_path / name).write_text(content)
        with pytest.raises(UsageError, match=message):
            Experiment(tmp_path, load("cifar10"), "data", 1.0)


ONE_PAIR = "title: A, about: B, pairs: [{recipe: cifar10_vit, seeds: 1}]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "got [1, 2]"),
        ("{titel: A, about: B, pairs: [{recipe: cifar10_vit, seeds: 1}]}", "'titel'; did you mean 'title'?"),
        ("{title: A, about: B, pairs: [{recipe: cifar10_vit, seeds: 0}]}", "got 0"),
        ("{title: A, about: B, pairs: [{recipe: mine.yaml, seeds: 1}]}", "got 'ViT-S'"),
        ("{title: A, about: B, pairs: [{recipe: cifar10_vit, seeds: 1}, {recipe: cifar10_vit, seeds: 2}]}", "one pair"),
        (f"{{{ONE_PAIR}, group: octal}}", "'octal'"),
        (f"{{{ONE_PAIR}, arms: [{{name: a/b}}]}}", "'a/b'"),
        (f"{{{ONE_PAIR}, arms: [{{name: a}}, {{name: a}}]}}", "a, a"),
        (f"{{{ONE_PAIR}, arms: [{{name: a, changes: [ir=1]}}]}}", "'ir'"),
        (f"{{{ONE_PAIR}, arms: [{{name: a, changes: [seed=1]}}]}}", "twice"),
        ("title: [", "line 1"),
        ("title: \xe9", "UTF-8"),
    ],
)
def test_plans_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(text, encoding="latin-1")
    (tmp_path / "mine.yaml").write_text(RECIPE.replace("E(ViT-S)", "ViT-S"))
    with pytest.raises(UsageError, match=re.escape(message)):
        load(str(tmp_path / "plan.yaml"))
