"""Resuming: the same data and network are recognised however they are spelt, and others are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.image_files import image_folder, make_image
from support.training_runs import ANIMALS, train_tiny

from flopping.errors import UsageError
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


def link(root: Path) -> str:
    (root / "link").symlink_to(root / "animals")
    return str(root / "link")


def move(root: Path) -> str:
    return str((root / "animals").rename(root / "moved"))


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "relative": lambda root: "animals",
    "link": link,
    "moved": move,
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_same_data(spelling: str, stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stopped)
    ended = train_tiny(SPELLINGS[spelling](stopped), stopped / "run", "--resume")
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


def make_older(run: Path) -> None:
    """As older versions wrote it: without a fingerprint, and with `chunk`."""
    content = json.loads((run / RUN).read_text())
    del content["fingerprint"]
    content["chunk"] = content.pop("micro_batch")
    (run / RUN).write_text(json.dumps(content))


def test_runs_of_older_versions(stopped: Path) -> None:
    run = stopped / "run"
    expected = Job.read(run)
    make_older(run)
    assert Job.read(run).micro_batch == expected.micro_batch == 4
    image_folder(stopped / "other", ANIMALS)
    assert "data=" in train_tiny(stopped / "other", stopped / "run", "--resume").err
    ended = train_tiny(f"{stopped}/animals/", stopped / "run", "--resume")
    assert ended.code == 0, ended.err
    assert Job.read(run).fingerprint == expected.fingerprint


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other"}', '{"format": "flopping-run-1"}'])
def test_damaged_descriptions(content: str, tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(content)
    with pytest.raises(UsageError, match=RUN):
        Job.read(tmp_path)


def test_the_older_name_of_the_option(tmp_path: Path) -> None:
    data = image_folder(tmp_path / "animals", ANIMALS)
    assert train_tiny(data, tmp_path / "run", "--chunk", "2").code == 0
    assert Job.read(tmp_path / "run").micro_batch == 2
