"""Checkpoints are whole or not there, and a damaged one is never taken for a good one."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as count_from
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import Launcher, write_checkpoint

from flopping.training.checkpoint import (
    AVERAGE,
    CONFIG,
    FORMAT,
    MANIFEST,
    TRAINING,
    WEIGHTS,
    DamagedError,
    Keeper,
    read_manifest,
)

FILES = (CONFIG, WEIGHTS, AVERAGE, TRAINING, MANIFEST)


def write(keeper: Keeper, step: int, score: float | None = None, size: int = 8) -> Path:
    return write_checkpoint(keeper.run, step, score, size)


def steps(keeper: Keeper) -> list[int]:
    return [checkpoint.step for checkpoint in keeper.found()]


def names(keeper: Keeper) -> list[str]:
    """All that lies where the checkpoints are."""
    return sorted(path.name for path in keeper.folder.iterdir())


def is_of_step(keeper: Keeper, step: int) -> None:
    """The newest checkpoint is good, and all its files are those of a step."""
    newest, _ = keeper.newest()
    assert newest is not None
    assert newest.step == step
    for weights in (newest.weights(), newest.average()):
        assert weights is not None
        assert weights["weight"].tolist() == [step] * 8
    assert newest.training() == {"step": step}
    assert json.loads((newest.folder / CONFIG).read_text()) == {"step": step}


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(tmp_path)


# -- which are kept


def test_the_last_one_in_reserve_and_the_best_are_kept(keeper: Keeper) -> None:
    for step, score in ((10, 50.0), (20, 70.0), (30, None), (40, 60.0), (50, None)):
        write(keeper, step, score)
    assert steps(keeper) == [50, 40, 20]
    assert names(keeper) == ["step-00000020", "step-00000040", "step-00000050"]
    assert (keeper.run / "last").resolve() == keeper.place(50)
    assert (keeper.run / "best").resolve() == keeper.place(20)
    assert not (keeper.run / "best").readlink().is_absolute()  # a run may be moved
    write(keeper, 60, 70.0)
    assert (keeper.run / "best").resolve() == keeper.place(60), "of equals the newest is the best"
    assert steps(keeper) == [60, 50]
    is_of_step(keeper, 60)


def test_a_run_without_tests_has_no_best(keeper: Keeper) -> None:
    for step in (1, 2, 3):
        write(keeper, step)
    assert not (keeper.run / "best").is_symlink()
    assert steps(keeper) == [3, 2]


def test_a_checkpoint_is_written_again_once_it_is_tested(keeper: Keeper) -> None:
    write(keeper, 10)
    write(keeper, 10, 90.0)
    assert [(c.step, c.score) for c in keeper.found()] == [(10, 90.0)]
    assert names(keeper) == ["step-00000010"]


def test_steps_are_ordered_as_numbers(keeper: Keeper) -> None:
    for step in (99_999_999, 100_000_000, 100_000_001):
        write(keeper, step)
    assert steps(keeper) == [100_000_001, 100_000_000]


def test_where_links_are_in_the_way_checkpoints_are_written(keeper: Keeper) -> None:
    (keeper.run / "last").mkdir()
    (keeper.run / "last" / "mine.txt").write_text("mine")
    write(keeper, 10, 50.0)
    is_of_step(keeper, 10)
    assert (keeper.run / "last" / "mine.txt").read_text() == "mine"


# -- a writer that is killed


@pytest.mark.parametrize("again", [False, True], ids=["new", "written again"])
def test_a_writer_may_be_killed_at_any_moment(tmp_path: Path, launcher: Launcher, again: bool) -> None:
    """It is, before every change it makes to the file system; what it leaves is good, and goes on."""
    first = Keeper(tmp_path / "run")
    for step in (10, 20, *([30] if again else [])):
        write(first, step, 50.0)
    left = []
    for event in ("open", "os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir"):
        for count in count_from(1):
            run = tmp_path / f"{event}-{count}"
            shutil.copytree(first.run, run, symlinks=True)
            moment = (event, "", count, signal.SIGKILL)
            arguments = (str(run), 30, 90.0)
            if launcher.run(tmp_path, *arguments, function=write_checkpoint, strikes=[moment]).code == 0:
                break  # it came to its end: there is no later moment
            left.append(run)
    assert len(left) > 20
    found = set()
    for folder in left:
        keeper = Keeper(folder)
        newest, problems = keeper.newest()
        assert not problems
        assert newest is not None
        found.add((newest.step, newest.score))
        is_of_step(keeper, newest.step)
        assert not [name for name in names(keeper) if name.startswith(".")]
        write(keeper, 40)
        assert steps(keeper) == [40, 30, *([20] if newest.step == 20 else [])] or steps(keeper) == [40, 20], folder.name
        assert names(keeper) == sorted(keeper.place(step).name for step in steps(keeper))
    assert found == {(30, 90.0), (30, 50.0) if again else (20, 50.0)}, "both before and after it has its name"


# -- one that is damaged


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncated, emptied, flipped, Path.unlink, replaced_by_a_folder])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_one_is_set_aside_and_the_one_before_it_used(keeper: Keeper, name: str, damage: Any) -> None:
    for step in (10, 20):
        write(keeper, step, float(step))
    damage(keeper.place(20) / name)
    newest, problems = keeper.newest()
    assert newest is not None
    assert newest.step == 10
    (problem,) = problems
    assert name in problem
    assert str(keeper.place(20)) in problem
    assert names(keeper) == ["damaged-step-00000020", "step-00000010"]
    assert {(keeper.run / link).resolve() for link in ("last", "best")} == {keeper.place(10)}
    is_of_step(keeper, 10)
    assert keeper.newest()[1] == [], "a second look has nothing to say"
    write(keeper, 20, 20.0)
    is_of_step(keeper, 20)
    damage(keeper.place(20) / name)
    assert keeper.newest()[0] == newest, "and it may happen again"


def test_every_single_byte_of_a_manifest_counts(keeper: Keeper) -> None:
    write(keeper, 10, 50.0)
    path = keeper.place(10) / MANIFEST
    content, checkpoint = path.read_bytes(), read_manifest(keeper.place(10))
    noticed = 0
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert read_manifest(keeper.place(10)) == checkpoint  # e.g. a space that became a line break
        except DamagedError:
            noticed += 1
    assert noticed > 0.9 * len(content)


def test_if_all_are_damaged_there_is_none(keeper: Keeper) -> None:
    for step in (10, 20):
        flipped(write(keeper, step, 50.0) / WEIGHTS)
    newest, problems = keeper.newest()
    assert newest is None
    assert len(problems) == 2
    assert not any((keeper.run / link).is_symlink() for link in ("last", "best"))


def test_a_damaged_older_one_is_no_reason_to_worry(keeper: Keeper) -> None:
    for step in (10, 20):
        write(keeper, step)
    (keeper.place(10) / MANIFEST).unlink()
    assert keeper.newest()[1] == []
    is_of_step(keeper, 20)


# -- what a stranger put there


def sealed(**content: Any) -> str:
    from flopping.training.checkpoint import _sealed

    return json.dumps({**content, "sha256": _sealed(content)})


SOUND = {"format": FORMAT, "step": 20, "score": None, "files": dict.fromkeys((CONFIG, WEIGHTS, TRAINING), "0" * 64)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not as it was written"),
        ("[]", "format None"),
        ("[" * 100_000, "is not as it was written"),
        ('{"format": "another-1"}', "format 'another-1'; this reads 'flopping-checkpoint-1'"),
        (json.dumps(SOUND), "is not as it was written"),
        (sealed(**{**SOUND, "files": {}}), "is not as it was written"),
        (sealed(**{**SOUND, "files": {**SOUND["files"], "../../secret": "0" * 64}}), "is not as it was written"),
        (sealed(**{**SOUND, "files": {**SOUND["files"], "/etc/passwd": "0" * 64}}), "is not as it was written"),
        (sealed(**{**SOUND, "files": [CONFIG, WEIGHTS, TRAINING]}), "is not as it was written"),
        (sealed(**{**SOUND, "files": {name: [] for name in SOUND["files"]}}), "is not as it was written"),
        (sealed(**{**SOUND, "step": "20"}), "is not as it was written"),
        (sealed(**{**SOUND, "step": 1e400}), "is not as it was written"),
        (sealed(**{**SOUND, "score": float("nan")}), "is not as it was written"),
        (sealed(**{**SOUND, "step": 21}), "another step, 21"),
    ],
)
def test_a_manifest_that_we_did_not_write_is_refused(keeper: Keeper, text: str, message: str) -> None:
    for step in (10, 20):
        write(keeper, step)
    (keeper.place(20) / MANIFEST).write_text(text)
    newest, (problem,) = keeper.newest()
    assert newest is not None
    assert newest.step == 10
    assert message in problem


def test_names_of_a_stranger_are_left_alone(keeper: Keeper) -> None:
    write(keeper, 10)
    strangers = ["step-00000010-backup", "step-ten", "step-20", "step-000000020", "step-" + "\uff11" * 8, "notes"]
    for name in strangers:
        shutil.copytree(keeper.place(10), keeper.folder / name)
    (keeper.folder / "step-readme.txt").write_text("mine")
    for step in (20, 30, 40):
        write(keeper, step)
    is_of_step(keeper, 40)
    assert names(keeper) == sorted([*strangers, "step-readme.txt", "step-00000030", "step-00000040"])


def test_a_file_in_the_place_of_a_checkpoint_gives_way(keeper: Keeper) -> None:
    write(keeper, 10)
    keeper.place(20).write_text("a file")
    assert keeper.newest()[1] != []
    keeper.place(20).write_text("a file")
    write(keeper, 20)
    is_of_step(keeper, 20)
    assert names(keeper) == ["damaged-step-00000020", "step-00000010", "step-00000020"]


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


def test_code_in_a_checkpoint_is_refused(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums are right: a stranger can compute them, too."""
    monkeypatch.chdir(keeper.run)
    keeper.write(10, None, "{}", {"weight": torch.ones(1)}, None, {"optimizer": Malice()})
    newest, problems = keeper.newest()
    assert newest is not None
    assert not problems
    with pytest.raises(ValueError, match=r"training.pt' holds \w+.system, which is no data, and code is never run"):
        newest.training()
    assert not Path("owned").exists()


def test_another_kind_of_state_is_refused(keeper: Keeper) -> None:
    write(keeper, 10)
    torch.save([1, 2], keeper.place(10) / TRAINING)
    with pytest.raises(DamagedError, match="no state of a run but a list"):
        read_manifest(keeper.place(10)).training()


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


@pytest.mark.parametrize("size", [0, 100, 1000, 10_000])
def test_a_full_disk_leaves_older_ones_untouched(keeper: Keeper, size: int) -> None:
    for step in (10, 20):
        write(keeper, step, 50.0)
    before = {path: path.read_bytes() for path in keeper.folder.rglob("*") if path.is_file()}
    message = r"step 20 could not be written: it takes 4.0 MB in '.*checkpoints' \(File too large\)"
    with files_no_larger_than(size), pytest.raises(OSError, match=message):
        write(keeper, 20, 90.0, size=500_000)
    assert {path: path.read_bytes() for path in keeper.folder.rglob("*") if path.is_file()} == before
    assert names(keeper) == ["step-00000010", "step-00000020"]
    is_of_step(keeper, 20)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(OSError, match="step 10 could not be written"):
        write(Keeper(tmp_path), 10)
