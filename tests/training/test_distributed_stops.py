"""Several processes begin and end together: what stops one of them stops all, and one of them says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest
from support.forked_python import ForkedPython
from support.training_runs import children_of, image_folder
from support.two_ranks import (
    TESTS,
    Room,
    Session,
    assert_same_checkpoint,
    environment,
    everyday,
    played,
    torchrun,
)

from flopping.training.checkpoint import CheckpointManager
from flopping.training.run_log import read_log


@pytest.fixture(scope="module")
def session(forks: ForkedPython, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Session:
    return played("everyday", everyday, forks, tmp_path_factory, worker_id)


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
    assert "class-0/001.png" in said(session, "no test images", 1)


def test_a_test_in_which_one_process_is_asked_to_stop(session: Session) -> None:
    """All leave it unfinished and save once. A launcher repeats signals: asked twice is asked once."""
    assert "stopped after step 2 of 2; all is kept" in said(session, "asked in a test", 3)
    checkpoint, problems = CheckpointManager(session.path / "asked").find_newest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.score, problems) == (2, None, [])


def test_what_one_process_refuses_all_refuse(session: Session) -> None:
    text = said(session, "one is blind", 2)
    assert "rank 1 of 2: " in text
    assert "view1'" in text
    assert not (session.path / "blind").exists()


def test_processes_that_see_different_files_are_refused(session: Session) -> None:
    text = said(session, "views differ", 2)
    assert "process 0 has 18 training and 9 test images of 3 classes" in text
    assert "process 1 has 21 training and 9 test" in text
    assert "some processes find a run" in said(session, "runs differ", 2)


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


@pytest.mark.long
def test_sigterm_to_torchrun_saves_once(tmp_path: Path) -> None:
    """It passes the signal on to whole groups, with processes that read images; the run ends its step and saves."""
    errors = tmp_path / "errors"
    with started(*torchrun("-m", "flopping", *endless(Room(tmp_path, {}), "run")), stderr=errors) as process:
        wait_for_steps(process, tmp_path / "run", 3, errors)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 1  # torchrun's own code
    text = errors.read_text()
    checkpoint, problems = CheckpointManager(tmp_path / "run").find_newest()
    assert checkpoint is not None, text
    assert not problems
    assert text.count("SIGTERM: ending the step and saving") == 1
    assert text.count(f"stopped after step {checkpoint.step} of") == 1
    assert "Error" not in text
    assert text.count("Traceback") == text.count("SignalException: Process") == 1  # torchrun's own


@pytest.mark.long
def test_a_killed_reader_of_one_process_stops_all(tmp_path: Path) -> None:
    """As when the system has no memory left; the other process doesn't wait for ever."""
    errors = tmp_path / "errors"
    with started(*torchrun("-m", "flopping", *endless(Room(tmp_path, {}), "run")), stderr=errors) as process:
        wait_for_steps(process, tmp_path / "run", 3, errors)
        second = next(p for p in children_of(process.pid) if b"\0RANK=1\0" in Path(f"/proc/{p}/environ").read_bytes())
        (reader,) = children_of(second)
        os.kill(reader, signal.SIGKILL)
        assert process.wait(timeout=120) == 1  # torchrun's own code
    text = errors.read_text()
    assert text.count("The run stopped: a process that reads images has ended (signal 9") == 1
    assert text.count("Traceback") == text.count("ChildFailedError: ") == 1  # torchrun's own


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["deit3_base", "--data", "nowhere"], ["no-such-recipe", "--data", "data"]])
def test_a_refusal_is_said_once(arguments: list[str], tmp_path: Path) -> None:
    """Whether processes have met before they refuse, or not yet."""
    command = torchrun("-m", "flopping", "train", *arguments, "-o", tmp_path / "run", "--device", "cpu")
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1  # torchrun's own
    assert done.stderr.count("Invalid value") == 1
    assert "exitcode  : 2" in done.stderr
    assert not (tmp_path / "run").exists()


# Slurm's commands, as far as the script uses them: two tasks on one machine, and the highest of their exit codes.
SRUN = """#!/bin/bash
[[ $1 == --wait=* ]] && shift
for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 "$@" & tasks+=($!); done
echo "${tasks[@]}" > "$ROOM/tasks"
for task in "${tasks[@]}"; do wait "$task"; code=$?; (( code > highest )) && highest=$code; done
exit "${highest:-0}"
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo localhost; else echo "$@" >> "$ROOM/requeued"; fi
"""


@pytest.mark.long
def test_the_slurm_script_goes_on_by_itself(tmp_path: Path) -> None:
    """Processes are signalled ahead of the time limit, save, and the job is queued again, until the run is complete."""
    for name, text in (
        ("srun", SRUN),
        ("scontrol", SCONTROL),
        ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    image_folder(tmp_path / "data", train=6, test=3)
    room = Room(tmp_path, {})
    room.recipe("recipe", "ViT", epochs=40)
    command = room.command("recipe", "data", "run", "--test-epochs", "40", "--save-steps", "100000", "--workers", "1")
    script = [str(TESTS.parent / "examples" / "slurm.sbatch"), *command[1:]]
    slurm = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ROOM": str(tmp_path)}
    slurm |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "localhost"}
    errors = tmp_path / "errors"
    with started("bash", *script, stderr=errors, **slurm) as process:
        wait_for_steps(process, tmp_path / "run", 3, errors)
        for task in (tmp_path / "tasks").read_text().split():
            os.kill(int(task), signal.SIGTERM)
        assert process.wait(timeout=120) == 3, errors.read_text()
    assert (tmp_path / "requeued").read_text() == f"requeue {os.getpid()}\n"
    with started("bash", *script, stderr=errors, **slurm) as process:
        assert process.wait(timeout=600) == 0, errors.read_text()
    assert "Resumed after step" in errors.read_text()
    assert (tmp_path / "requeued").read_text().count("requeue") == 1
    room.alone("recipe", "alone", "--test-epochs", "40")
    found, expected = (CheckpointManager(tmp_path / run).find_newest()[0] for run in ("run", "alone"))
    assert found is not None
    assert expected is not None
    assert_same_checkpoint(found, expected)
