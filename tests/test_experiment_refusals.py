"""Experiments that are refused before anything runs: names, plans, and folders that others use."""

import fcntl
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flopping.experiments import running
from flopping.experiments.folder import Folder
from flopping.experiments.plan import load
from flopping.experiments.running import locked
from flopping_cli import app


def test_one_process_works_in_a_folder_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PATIENCE", 0.3)
    said: list[str] = []
    with locked(tmp_path, said.append) as lock:
        other = os.open(tmp_path / running.LOCK, os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(ValueError, match="another process works in"), locked(tmp_path, said.append):
            pass
        assert lock != other
        assert len(said) == 1
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cifar11"], "no experiment is called 'cifar11'; there is cifar10"),
        (["missing.yaml"], "no experiment 'missing.yaml': there is no such file"),
        (["cifar10", "--scale", "0"], "scale is positive, got 0.0"),
        (["cifar10", "--scale", "inf"], "scale is positive, got inf"),
        (["cifar10", "--report", "page.html"], "--report ends in .md, got 'page.html'"),
        (["cifar10", "--device", "gpu"], "no device is called 'gpu'"),
        (["cifar10", "--only-report"], "nothing has finished in"),
    ],
)
def test_refusals(arguments: list[str], message: str, tmp_path: Path) -> None:
    words = ["experiment", "--data", "x", "-o", str(tmp_path / "runs"), "--report", "report.md", *arguments]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files than those of an experiment"):
        Folder(tmp_path, load("cifar10"), "data", 1.0)
    (tmp_path / "experiment.json").write_text("{}")
    with pytest.raises(ValueError, match="is no description of an experiment"):
        Folder(tmp_path, load("cifar10"), "data", 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "an experiment is a table with title, about, and a list of pairs, got [1, 2]"),
        ("{title: A, about: B, pairs: []}", "an experiment is a table with title, about, and a list of pairs, got"),
        ("{titel: A, about: B, pairs: [{recipe: cifar10_vit, seeds: 1}]}", "no field 'titel'; did you mean 'title'?"),
        (
            "{title: A, about: B, pairs: [{recipe: cifar10_vit, seed: 3}]}",
            "a pair has no field 'seed'; did you mean 'seeds'?",
        ),
        (
            "{title: A, about: B, pairs: [{recipe: cifar10_vit, seeds: 0}]}",
            "seeds is a whole number of at least 1, got 0",
        ),
        ("{title: A, about: B, pairs: [{recipe: cifar10_vt, seeds: 1}]}", "no recipe is called 'cifar10_vt'"),
        ("{title: A, about: [B], pairs: [{recipe: cifar10_vit, seeds: 1}]}", "about is text, got"),
        ("{title: A, about: B, pairs: [{recipe: cifar10_vit, seeds: 1}, {recipe: cifar10_vit, seeds: 2}]}", "one pair"),
        ("title: [", "line 1"),
    ],
)
def test_plans_that_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        load(str(tmp_path / "plan.yaml"))
