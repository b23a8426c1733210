"""Checkpoints are complete or absent, and a corrupted one is never loaded."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as count_from
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.training_runs import Launcher, write_checkpoint

from flopping.errors import UsageError
from flopping.training.checkpoint import (
    AVERAGE,
    CONFIG,
    FORMAT,
    MANIFEST,
    TRAINING,
    WEIGHTS,
    CheckpointManager,
    CorruptedCheckpointError,
    _checksum,
)


def write(manager: CheckpointManager, step: int, score: float | None = None, size: int = 8) -> Path:
    return write_checkpoint(manager.run, step, score, size)


def steps(manager: CheckpointManager) -> list[int]:
    return [checkpoint.step for checkpoint in manager.checkpoints()]


def names(manager: CheckpointManager) -> list[str]:
    return sorted(path.name for path in manager.folder.iterdir())


def assert_newest(manager: CheckpointManager, step: int) -> None:
    """The newest checkpoint is valid, and all its files are those of a step."""
    newest, _ = manager.find_newest()
    assert newest is not None
    assert newest.step == step
    for weights in (newest.weights(), newest.average()):
        assert weights is not None
        assert weights["weight"].tolist() == [step] * 8
    assert newest.training() == {"step": step}
    assert json.loads((newest.folder / CONFIG).read_text()) == {"step": step}


@pytest.fixture
def manager(tmp_path: Path) -> CheckpointManager:
    return CheckpointManager(tmp_path)


# -- which are kept


def test_last_previous_and_best_are_kept(manager: CheckpointManager) -> None:
    for step, score in ((10, 50.0), (20, 70.0), (30, None), (40, 60.0), (50, None)):
        write(manager, step, score)
    assert names(manager) == ["step-00000020", "step-00000040", "step-00000050"]
    assert (manager.run / "last").resolve() == manager.step_folder(50)
    assert (manager.run / "best").resolve() == manager.step_folder(20)
    assert not (manager.run / "best").readlink().is_absolute()  # a run may be moved
    write(manager, 60, 70.0)
    assert (manager.run / "best").resolve() == manager.step_folder(60), "of equal scores the newest is the best"
    assert steps(manager) == [60, 50]
    write(manager, 60, 80.0)
    assert [(c.step, c.score) for c in manager.checkpoints()] == [(60, 80.0), (50, None)]
    assert_newest(manager, 60)


def test_a_run_without_tests_has_no_best_and_steps_are_in_the_order_of_numbers(manager: CheckpointManager) -> None:
    for step in (99_999_999, 100_000_000, 100_000_001):
        write(manager, step)
    assert not (manager.run / "best").is_symlink()
    assert steps(manager) == [100_000_001, 100_000_000]


def test_other_files_are_left_alone(manager: CheckpointManager) -> None:
    (manager.run / "last").mkdir()
    (manager.run / "last" / "mine.txt").write_text("mine")
    write(manager, 10)
    others = ["step-00000010-backup", "step-ten", "step-20", "step-000000020", "step-" + "\uff11" * 8, "notes"]
    for name in others:
        shutil.copytree(manager.step_folder(10), manager.folder / name)
    (manager.folder / "step-readme.txt").write_text("mine")
    for step in (20, 30, 40):
        write(manager, step)
    assert_newest(manager, 40)
    assert names(manager) == sorted([*others, "step-readme.txt", "step-00000030", "step-00000040"])
    assert (manager.run / "last" / "mine.txt").read_text() == "mine"


# -- contents


def test_weights_are_a_safetensors_file_of_any_types(manager: CheckpointManager) -> None:
    weights = {
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "number": torch.tensor(7),
        "flags": torch.tensor([True, False, True]),
        "empty": torch.zeros(0, 4),
        "columns": torch.randn(4, 6, dtype=torch.float64).T,
    }
    manager.save(1, None, {CONFIG: "{}", WEIGHTS: weights, TRAINING: {}}.items())
    found = load_file(manager.step_folder(1) / WEIGHTS)
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_one_part_is_in_memory_at_a_time(manager: CheckpointManager) -> None:
    references = []

    def parts() -> Iterator[tuple[str, Any]]:
        yield CONFIG, "{}"
        for name in (WEIGHTS, AVERAGE, TRAINING):
            assert [reference() for reference in references] == [None] * len(references)
            tensor = torch.ones(8)
            references.append(weakref.ref(tensor))
            content = {"weight": tensor}
            del tensor
            yield name, content
            del content

    manager.save(1, None, parts())
    assert len(references) == 3
    assert manager.find_newest()[1] == []


# -- a writer that is killed


def test_writer_may_be_killed_at_any_moment(tmp_path: Path, launcher: Launcher) -> None:
    """It is killed before every change that it makes to the file system; a valid checkpoint remains."""
    first = CheckpointManager(tmp_path / "run")
    for step in (10, 20, 30):
        write(first, step, 50.0)
    left = []
    for event in ("open", "os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir"):
        for count in count_from(1):
            run = tmp_path / f"{event}-{count}"
            shutil.copytree(first.run, run, symlinks=True)
            moment = (event, "", count, signal.SIGKILL)
            arguments = (str(run), 30, 90.0)
            if launcher.run(tmp_path, *arguments, function=write_checkpoint, strikes=[moment]).code == 0:
                break  # there is no later moment
            left.append(run)
    assert len(left) > 20
    found = set()
    for folder in left:
        manager = CheckpointManager(folder)
        newest, problems = manager.find_newest()
        assert not problems
        assert newest is not None
        found.add((newest.step, newest.score))
        assert_newest(manager, newest.step)
        assert not [name for name in names(manager) if name.startswith(".")]
        write(manager, 40)
        assert steps(manager) == [40, 30], folder.name
        assert names(manager) == sorted(manager.step_folder(step).name for step in steps(manager))
    assert found == {(30, 90.0), (30, 50.0)}, "both before and after it has its name"


# -- corrupted files


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (CONFIG, truncate),
        (WEIGHTS, flip_bit),
        (AVERAGE, Path.unlink),
        (TRAINING, replace_by_folder),
        (MANIFEST, truncate),
        (MANIFEST, Path.unlink),
    ],
)
def test_corrupted_checkpoint_is_set_aside(manager: CheckpointManager, name: str, damage: Any) -> None:
    for step in (10, 20):
        write(manager, step, float(step))
    damage(manager.step_folder(20) / name)
    newest, (problem,) = manager.find_newest()
    assert newest is not None
    assert newest.step == 10
    assert name in problem
    assert str(manager.step_folder(20)) in problem
    assert names(manager) == ["corrupted-step-00000020", "step-00000010"]
    assert {(manager.run / link).resolve() for link in ("last", "best")} == {manager.step_folder(10)}
    assert manager.find_newest() == (newest, [])
    write(manager, 20, 20.0)
    assert_newest(manager, 20)
    damage(manager.step_folder(20) / name)
    assert manager.find_newest()[0] == newest, "it may happen again"


def test_nothing_but_corrupted_checkpoints_is_refused(manager: CheckpointManager) -> None:
    """They keep their names, so that it is refused every time, until a restart is asked for."""
    for step in (10, 20):
        flip_bit(write(manager, step) / WEIGHTS)
    for _ in range(2):
        with pytest.raises(CorruptedCheckpointError, match=r"step-00000020.*step-00000010.*--restart"):
            manager.find_newest()
    newest, problems = manager.find_newest(restart=True)
    assert (newest, len(problems)) == (None, 2)
    assert names(manager) == ["corrupted-step-00000010", "corrupted-step-00000020"]


def with_checksum(**content: Any) -> str:
    return json.dumps({**content, "sha256": _checksum(content)})


VALID = {"format": FORMAT, "step": 20, "score": None, "files": dict.fromkeys((CONFIG, WEIGHTS, TRAINING), "0" * 64)}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "[" * 100_000,
        '{"format": "another-1"}',
        json.dumps(VALID),
        with_checksum(**{**VALID, "files": {}}),
        with_checksum(**{**VALID, "files": {**VALID["files"], "../../secret": "0" * 64}}),
        with_checksum(**{**VALID, "files": [CONFIG, WEIGHTS, TRAINING]}),
        with_checksum(**{**VALID, "step": "20"}),
        with_checksum(**{**VALID, "score": float("nan")}),
        with_checksum(**{**VALID, "step": 21}),
    ],
)
def test_invalid_manifest_is_refused(manager: CheckpointManager, text: str) -> None:
    for step in (10, 20):
        write(manager, step)
    (manager.step_folder(20) / MANIFEST).write_text(text)
    newest, problems = manager.find_newest()
    assert newest is not None
    assert newest.step == 10
    assert len(problems) == 1


def test_a_file_in_place_of_a_checkpoint_is_replaced(manager: CheckpointManager) -> None:
    write(manager, 10)
    manager.step_folder(20).write_text("a file")
    assert manager.find_newest()[1] != []
    manager.step_folder(20).write_text("a file")
    write(manager, 20)
    assert_newest(manager, 20)
    assert names(manager) == ["corrupted-step-00000020", "step-00000010", "step-00000020"]


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


def test_code_in_a_checkpoint_is_refused(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums are right: anybody can compute them."""
    monkeypatch.chdir(manager.run)
    parts = {CONFIG: "{}", WEIGHTS: {"weight": torch.ones(1)}, TRAINING: {"optimizer": Malice()}}
    manager.save(10, None, parts.items())
    newest, problems = manager.find_newest()
    assert newest is not None
    assert not problems
    with pytest.raises(ValueError, match=r"training.pt.*system"):
        newest.training()
    assert not Path("owned").exists()
    torch.save([1, 2], manager.step_folder(10) / TRAINING)
    with pytest.raises(UsageError, match="list"):
        newest.training()


# -- a full disk


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to write more, in the middle of a file, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size", [0, 1000, 3_000_000])
def test_full_disk_leaves_older_checkpoints_untouched(manager: CheckpointManager, size: int) -> None:
    """All parts are asked for all the same: other ranks take part in gathering them."""
    for step in (10, 20):
        write(manager, step, 50.0)
    before = {path: path.read_bytes() for path in manager.folder.rglob("*") if path.is_file()}
    asked = []

    def parts() -> Iterator[tuple[str, Any]]:
        for name, content in {CONFIG: "{}", WEIGHTS: {"w": torch.ones(500_000)}, TRAINING: torch.ones(10**6)}.items():
            asked.append(name)
            yield name, content

    with files_no_larger_than(size), pytest.raises(OSError, match=r"step 20 .*\(File too large\)"):
        manager.save(20, 90.0, parts())
    assert asked == [CONFIG, WEIGHTS, TRAINING]
    assert {path: path.read_bytes() for path in manager.folder.rglob("*") if path.is_file()} == before
    assert names(manager) == ["step-00000010", "step-00000020"]
    assert_newest(manager, 20)


def test_all_parts_are_asked_for_after_any_error(manager: CheckpointManager) -> None:
    asked = []

    def parts() -> Iterator[tuple[str, Any]]:
        for name, content in {CONFIG: "{}", WEIGHTS: {"w": "no tensor"}, TRAINING: {}}.items():
            asked.append(name)
            yield name, content

    write(manager, 10)
    with pytest.raises(AttributeError):
        manager.save(20, None, parts())
    assert asked == [CONFIG, WEIGHTS, TRAINING]
    assert names(manager) == ["step-00000010"]


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(OSError, match="step 10"):
        write(CheckpointManager(tmp_path), 10)
