"""Files and folders that are written completely or not at all, and locks on folders."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flopping import files
from flopping.errors import UsageError
from flopping.files import WriteError, atomic_write, folder_lock, read_json, require_writable, write_json


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "key"])
@pytest.mark.parametrize("folder", [False, True])
def test_what_was_there_stays_until_all_is_written(tmp_path: Path, folder: bool, error: BaseException) -> None:
    path = tmp_path / "a"
    for text in ("old", "new"):
        with atomic_write(path, folder=folder) as place:
            (place / "x" if folder else place).write_text(text)
            if text == "new":
                assert (path / "x" if folder else path).read_text() == "old"
        assert (path / "x" if folder else path).read_text() == text

    def fail() -> None:
        with atomic_write(path, folder=folder) as place:
            (place / "x" if folder else place).write_text("half")
            raise error

    with pytest.raises((WriteError, KeyboardInterrupt), match=r"'.*a' was not written: No space|^$"):
        fail()
    assert (path / "x" if folder else path).read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_never_replaces_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").touch()
    with pytest.raises(WriteError), atomic_write(tmp_path / "a") as place:
        place.write_text("new")
    assert (tmp_path / "a" / "mine").exists()


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_follow_the_umask_and_a_link_stays_one(tmp_path: Path, mask: int) -> None:
    target, link = tmp_path / "a", tmp_path / "latest"
    link.symlink_to(target)
    before = os.umask(mask)
    try:
        with atomic_write(link) as place:
            place.write_text("all of it")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert target.read_text() == "all of it"
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"\xff", "no text in UTF-8"), (b"{", "can't be read"), (b"[" * 100_000, "can't be read")],
)
def test_small_files_that_cannot_be_read_are_refused(
    tmp_path: Path, content: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"'.*a.json'.*{message}"):
        read_json(path)
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    monkeypatch.setattr(files, "LARGEST_TEXT", 5)
    with pytest.raises(UsageError, match="more than the 5 that are read"):
        read_json(path)


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, options, message in (
        ("file", {}, "exists; --force replaces it"),
        ("file", {"python": "force=True"}, r"exists; --force \(in Python force=True\) replaces it"),
        ("file", {"force": True, "folder": True}, "is a file"),
        ("folder", {"force": True}, "is a folder"),
        ("none/file", {}, "no folder '.*none'"),
        ("loop", {}, "leads to itself"),
    ):
        with pytest.raises(UsageError, match=message):
            require_writable(tmp_path / name, **{"force": False} | options)
    require_writable(tmp_path / "file", True)
    require_writable(tmp_path / "new", False)


HOLD = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("77 on there", file=file, flush=True)
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_another_process_has_locked_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with folder_lock(folder, str):
        assert (folder / ".lock").read_text().startswith(f"{os.getpid()} on ")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder / ".lock")], **pipes) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(UsageError, match=r"^held by 77 on there$"), folder_lock(folder, "held by {}".format):
            pass
        holder.stdin.close()
    with folder_lock(folder, str):
        pass
