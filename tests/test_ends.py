"""How predict, export, show and others end when a disk is full, or somebody presses Ctrl-C."""

from __future__ import annotations

import errno
import json
import signal
from pathlib import Path

import pytest
from measurements import ordinary
from pictures import picture
from training_runs import Launcher

from flopping.show import files
from flopping.whole import UnwrittenError, whole
from flopping_cli.bench import RecordFile

SMALL = "convnext_flop_iso_test"
FULL = "File too large. Free some space, then start again"
"""What a limit of the size of files looks like, one of the ways in which a disk is full."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        picture(number, size=(20, 20)).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize("output", ["a.pt2", "a.onnx", "a"])
@pytest.mark.parametrize("older", [False, True])
def test_an_export_that_finds_no_room(output: str, older: bool, tmp_path: Path, launcher: Launcher) -> None:
    path = tmp_path / "made" / output
    path.parent.mkdir()
    if older and not path.suffix:
        path.mkdir()
    if older:
        (path if path.suffix else path / "config.json").write_text("older")
    found = launcher.run(
        tmp_path, "export", SMALL, "-o", str(path), "-q", *(["--force"] if older else []), limit=20_000
    )
    assert found.code == 1, found
    assert found.out == ""
    assert found.err == f"{str(path)!r} was not written: {FULL}; what was there before still is\n"
    files = {file.name: file.read_text() for file in path.parent.rglob("*") if file.is_file()}
    assert files == ({path.name if path.suffix else "config.json": "older"} if older else {})


def test_a_picture_that_finds_no_room(photos: Path, tmp_path: Path, launcher: Launcher) -> None:
    made = tmp_path / "made" / "a.png"
    made.parent.mkdir()
    words = ["show", str(photos / "0.png"), "--model", SMALL, "-o", str(made), "--html", "-q"]
    found = launcher.run(tmp_path, *words, limit=2_000, curves=True)
    assert (found.code, found.out) == (1, ""), found
    assert found.err == f"{str(made)!r} was not written: {FULL}; what was there before still is\n"
    assert not list(made.parent.iterdir())


def test_a_page_that_finds_no_room_beside_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is replaced, and the message names the one that was too large."""
    made = [tmp_path / name for name in ("a.png", "a.html")]
    for path in made:
        path.write_text("older")
    monkeypatch.setattr(files, "png", lambda view: b"picture")
    monkeypatch.setattr(files, "page", lambda view, image: "page")
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.suffix == ".html":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UnwrittenError, match=r"a\.html' was not written: No space left on device"):
        files.write(None, "photo", made)  # type: ignore[arg-type]
    assert [path.read_text() for path in made] == ["older", "older"]


def test_what_else_fails_while_a_file_is_written_is_not_about_the_file(tmp_path: Path) -> None:
    for error in (BrokenPipeError(errno.EPIPE, "Broken pipe"), FileNotFoundError(errno.ENOENT, "none", "/else/where")):
        with pytest.raises(type(error)), whole(tmp_path / "a.txt"):
            raise error


def test_records_that_could_not_be_written_are_not_said_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, records: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = RecordFile(tmp_path / "out.jsonl")
    monkeypatch.setattr("flopping.bench.records.append", full)
    file.add([ordinary()])
    assert not file.whole
    assert "1 record could not be written to" in capsys.readouterr().err
    assert file.interrupted(1, 2) == "Interrupted: 1 of 2 rows were measured."


@pytest.mark.parametrize("form", ["table", "jsonl", "csv"])
def test_results_that_find_no_room(form: str, photos: Path, tmp_path: Path, launcher: Launcher) -> None:
    found = launcher.run(tmp_path, "predict", SMALL, str(photos), "--format", form, "-q", limit=2_000)
    assert found.code == 1, found
    warning, said = found.err.splitlines()
    assert warning.startswith("Warning: ")
    assert said == (
        f"The command stopped: {FULL}; of its results there is what was written before, and the last line may be cut"
    )
    assert len(found.out.encode()) == 2_000


def test_an_interrupted_table_is_shown(photos: Path, tmp_path: Path, launcher: Launcher) -> None:
    """Photos are read a few ahead: when the 30th is opened, the network has seen most of those before."""
    strikes = [("open", "/29.png", 1, int(signal.SIGINT))]
    words = ["predict", SMALL, str(photos), "--batch", "1", "--top", "1", "-q"]
    found = launcher.run(tmp_path, *words, strikes=strikes)
    assert found.code == 130, found
    known = [line for line in found.out.splitlines() if ".png" in line]
    assert 20 <= len(known) < 40
    assert "/0.png" in known[0]
    assert f"Interrupted: {len(known)} of 40 images classified." in found.err
    assert "Traceback" not in found.err
    lines = launcher.run(tmp_path, *words, "--json", strikes=strikes)
    assert lines.code == 130, lines
    rows = [json.loads(line) for line in lines.out.splitlines()]
    assert 20 <= len(rows) < 40
    assert f"Interrupted: {len(rows)} of 40 images classified." in lines.err
