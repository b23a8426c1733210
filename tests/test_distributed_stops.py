"""Several processes begin and end together: what stops one of them stops all, and one of them says why."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest
from spread_plans import PROCESSES, everyday
from spread_runs import Room, Session, environment, played, torchrun
from training_runs import image_folder

from flopping.training.checkpoint import Keeper
from flopping.training.journal import read_log


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Session:
    return played("everyday", everyday, tmp_path_factory, worker_id)


def said(session: Session, name: str, code: int) -> str:
    """What the first process said about how a command ended; the other one ended the same way, and said nothing."""
    first, second = session.of(name)
    assert (first["code"], second["code"]) == (code, code), first["stderr"]
    assert second["stderr"] == second["stdout"] == ""
    assert "Traceback" not in first["stderr"]
    return " ".join(first["stderr"].split())


def test_images_that_one_process_cannot_read_stop_all(session: Session) -> None:
    text = said(session, "unreadable", 1)
    assert "The run stopped: 2 of 18 training images can't be read" in text
    assert text.count(".png") == 2


def test_reading_that_fails_for_one_process_stops_all(session: Session) -> None:
    assert "The run stopped: 1 images in a row can't be read" in said(session, "no images", 1)
    assert not (session.path / "no-images" / "checkpoints").exists()


def test_a_test_that_fails_for_one_process_stops_all(session: Session) -> None:
    text = said(session, "no test images", 1)
    assert "The run stopped: 1 images in a row can't be read" in text
    assert "class-0/001.png" in text


def test_what_one_process_refuses_all_refuse(session: Session) -> None:
    text = said(session, "one is blind", 2)
    assert f"process 1 of {PROCESSES}: " in text
    assert "view1'" in text
    assert not (session.path / "blind").exists()


def test_processes_that_see_different_files_are_refused(session: Session) -> None:
    text = said(session, "views differ", 2)
    assert "process 0 has 18 training and 9 test images of 3 classes, process 1 has 21 training and 9 test" in text
    assert "some processes find a run" in said(session, "runs differ", 2)


def test_a_refused_run_leaves_no_folder(session: Session) -> None:
    assert "1 chunks, which 2 processes can't share evenly" in said(session, "uneven", 2)
    assert not (session.path / "uneven").exists()


# -- the command line under a launcher


@contextmanager
def started(*command: str, stderr: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a session of its own, which is ended at the end."""
    with open(stderr, "w") as file:
        process = subprocess.Popen(
            command, env={**environment(), **variables}, stdout=file, stderr=file, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def endless(room: Room, run: str) -> list[str]:
    """A run that never ends by itself, with processes that read images."""
    image_folder(room.path / "data", train=6, test=3)
    room.recipe("endless", "ViT", epochs=100000, precision="float32")
    return room.command("endless", "data", run, "--test-epochs", "100000", "--save-steps", "100000", "--workers", "1")


def wait_for_steps(process: subprocess.Popen[str], run: Path, steps: int, errors: Path) -> None:
    deadline = monotonic() + 300
    while len(read_log(run)) < steps:
        assert process.poll() is None, errors.read_text()
        assert monotonic() < deadline, errors.read_text()
        sleep(0.1)


def test_sigterm_to_torchrun_saves_once(tmp_path: Path) -> None:
    """It passes the signal on to whole groups, with processes that read images; the run ends its step and saves."""
    errors = tmp_path / "errors"
    with started(*torchrun("-m", "flopping", *endless(Room(tmp_path, {}), "run")), stderr=errors) as process:
        wait_for_steps(process, tmp_path / "run", 3, errors)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 1  # torchrun's own code
    text = errors.read_text()
    checkpoint, problems = Keeper(tmp_path / "run").newest()
    assert checkpoint is not None, text
    assert not problems
    assert text.count("SIGTERM: ending the step and saving") == 1
    assert text.count(f"stopped after step {checkpoint.step} of") == 1
    assert "Error" not in text
    assert text.count("Traceback") == text.count("SignalException: Process") == 1  # torchrun's own
