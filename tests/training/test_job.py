"""Resuming: the same data and network are recognised however they are spelt, and others are refused."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.at_once import at_once
from support.image_files import image_folder, make_image
from support.training_runs import ANIMALS, train_tiny

from flopping.errors import UsageError
from flopping.training import job
from flopping.training.job import RUN, Job


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("job")
    ended = train_tiny(image_folder(root / "animals", ANIMALS), root / "run")
    assert ended.code == 0, ended.err
    return root


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Path:
    """A run without checkpoints, beside its images."""
    shutil.copytree(finished / "animals", tmp_path / "animals")
    (tmp_path / "run").mkdir()
    content = json.loads((finished / "run" / RUN).read_text())
    (tmp_path / "run" / RUN).write_text(json.dumps({**content, "data": str(tmp_path / "animals")}))
    return tmp_path


def move(root: Path) -> str:
    return str((root / "animals").rename(root / "moved"))


@pytest.mark.parametrize("spelling", ["animals", "link", "moved"])
def test_the_same_data(spelling: str, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stopped)
    if spelling == "link":
        (stopped / "link").symlink_to(stopped / "animals")
    elif spelling == "moved":
        move(stopped)
    ended = train_tiny(spelling, stopped / "run", "--resume")
    assert ended.code == 0, ended.err


def test_the_same_data_of_a_finished_run(stopped: Path, finished: Path) -> None:
    shutil.copytree(finished / "run", stopped / "run", dirs_exist_ok=True)
    ended = train_tiny(move(stopped), stopped / "run", "--resume")
    assert "The run is already complete" in ended.err
    assert ended.code == 0


def test_the_same_network(finished: Path) -> None:
    before = (finished / "run" / RUN).read_bytes()
    ended = train_tiny(finished / "animals", finished / "run", "--resume", "--model", "deit3_flop_small_patch16_224")
    assert ended.code == 0, ended.err
    assert (finished / "run" / RUN).read_bytes() == before
    other = train_tiny(finished / "animals", finished / "run", "--resume", "--model", "ViT-S")
    assert other.code == 2
    assert "model=ViT-S" in other.err


def one_less(root: Path) -> None:
    (root / "animals" / "train" / "cat" / "0.png").unlink()


def another_name(root: Path) -> None:
    (root / "animals" / "train" / "cat" / "0.png").rename(root / "animals" / "train" / "cat" / "9.png")


def more_tests(root: Path) -> None:
    make_image(0).save(root / "animals" / "val" / "cat" / "9.png")


@pytest.mark.parametrize("change", [one_less, another_name, more_tests])
def test_other_data(change: Callable[[Path], None], stopped: Path) -> None:
    change(stopped)
    ended = train_tiny(stopped / "animals", stopped / "run", "--resume")
    assert ended.code == 2
    assert "is not the data of the run" in ended.err
    assert "names" in ended.err
    assert Job.read(stopped / "run").fingerprint in ended.err


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"format": "other"}', b'{"format": "flopping-run-1"}']
)
def test_damaged_descriptions(content: bytes, tmp_path: Path) -> None:
    (tmp_path / RUN).write_bytes(content)
    with pytest.raises(UsageError, match=RUN):
        Job.read(tmp_path)


def test_a_bug_is_not_taken_for_damage(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "read", lambda text, where: text.no_such_method())
    with pytest.raises(AttributeError):
        Job.read(finished / "run")


def test_a_run_of_an_older_version(finished: Path, tmp_path: Path) -> None:
    """It calls a micro-batch a chunk, and knows its data by where it lies."""
    content = json.loads((finished / "run" / RUN).read_text())
    content["chunk"] = content.pop("micro_batch")
    del content["fingerprint"], content["network"]
    (tmp_path / RUN).write_text(json.dumps(content))
    old = Job.read(tmp_path)
    assert old.micro_batch == content["chunk"]
    assert old.resume(old, tmp_path) == old
    moved = Job(old.recipe, old.model, str(tmp_path), micro_batch=old.micro_batch)
    with pytest.raises(UsageError, match="data="):
        moved.resume(old, tmp_path)


def test_older_names_of_arguments(finished: Path, tmp_path: Path) -> None:
    """They stand for the same network in a run and in the command that goes on with it, whichever has them."""
    run = Job.read(finished / "run")
    args = [{**run.recipe.model_args, name: 0.5} for name in ("invariant_share", "extra_share")]
    old, new = (replace(run, recipe=replace(run.recipe, model_args=each)) for each in args)
    assert new.resume(old, tmp_path) == old
    assert old.resume(new, tmp_path) == new
    with pytest.raises(UsageError, match=r"settings: model_args.extra_share=None \(was 0.5\)\. Resume"):
        run.resume(old, tmp_path)
    both = replace(run, recipe=replace(run.recipe, model_args=args[0] | args[1]))
    with pytest.raises(UsageError, match="invariant_share is the old name of extra_share"):
        both.resume(old, tmp_path)


def test_a_description_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RUN)
    with at_once(), pytest.raises(UsageError, match=RUN):
        Job.read(tmp_path)
