"""How predict, export, show and others end when a disk is full, or somebody presses Ctrl-C."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest
from support.image_files import make_image
from support.measurements import ordinary
from support.training_runs import Launcher

from flopping.cost.records import RecordFile

SMALL = "convnext_flop_iso_test"
FULL = "File too large. Free some space, then start again"
"""What a limit of the size of files looks like, one of the ways in which a disk is full."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        make_image(number, size=(20, 20)).save(folder / f"{number}.png")
    return folder


NOT_WRITTEN = {
    "a.pt2": ["export", SMALL, "-o"],
    "a.onnx": ["export", SMALL, "-o"],
    "folder": ["export", SMALL, "-o"],
    "a.png": ["show", "photos/0.png", "--model", SMALL, "-o"],
}


@pytest.mark.parametrize(
    ("output", "older"),
    [
        *(pytest.param(name, True, marks=pytest.mark.long) for name in ("a.pt2", "a.onnx")),
        ("folder", True),
        ("a.png", False),
    ],
)
def test_files_that_find_no_room(output: str, older: bool, photos: Path, launcher: Launcher) -> None:
    """What was there before still is."""
    path = photos.parent / "made" / output
    path.parent.mkdir()
    kept = path if path.suffix else path / "config.json"
    if older:
        kept.parent.mkdir(exist_ok=True)
        kept.write_text("older")
    words = [word.replace("photos/", f"{photos}/") for word in NOT_WRITTEN[output]]
    force = ["--force"] if older else []
    found = launcher.run(photos.parent, *words, str(path), "-q", *force, limit=2_000, curves=True)
    assert (found.code, found.out) == (1, ""), found
    assert found.err == f"{str(path)!r} was not written: {FULL}; the previous file is unchanged\n"
    files = {file: file.read_text() for file in path.parent.rglob("*") if file.is_file()}
    assert files == ({kept: "older"} if older else {})


def test_records_that_could_not_be_written_are_not_said_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, records: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    said: list[str] = []
    file = RecordFile(tmp_path / "out.jsonl", said.append)
    monkeypatch.setattr("flopping.cost.records.append", full)
    file.add(ordinary())
    assert (file.written, file.unwritten) == (0, 1)
    assert [text.split(str(tmp_path))[0] for text in said] == ["A record could not be written to "]


@pytest.mark.parametrize("form", ["table", "jsonl", "csv"])
def test_results_that_find_no_room(form: str, photos: Path, tmp_path: Path, launcher: Launcher) -> None:
    found = launcher.run(tmp_path, "predict", SMALL, str(photos), "--format", form, "-q", limit=2_000)
    assert found.code == 1, found
    warning, said = found.err.splitlines()
    assert warning.startswith("Warning: ")
    assert said == (f"The command stopped: {FULL}; earlier results are kept, the last line may be incomplete")
    assert len(found.out.encode()) == 2_000


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_interrupted_prediction_shows_what_it_has(
    more: list[str], photos: Path, tmp_path: Path, launcher: Launcher
) -> None:
    """Photos are read a few ahead: when the 30th is opened, the network has seen most of those before."""
    words = ["predict", SMALL, str(photos), "--batch", "1", "--top", "1", "-q", *more]
    found = launcher.run(tmp_path, *words, strikes=[("open", "/29.png", 1, int(signal.SIGINT))])
    assert found.code == 130, found
    known = [line for line in found.out.splitlines() if ".png" in line]
    assert 20 <= len(known) < 40
    assert "/0.png" in known[0]
    assert f"Interrupted: {len(known)} of 40 images classified." in found.err
    assert "Traceback" not in found.err
