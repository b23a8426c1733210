"""The same as test_resume.py with many more kills, with compiled networks, and on a disk that is full (minutes)."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest
from support.training_runs import (
    FAMILIES,
    Ended,
    Launcher,
    assert_same,
    newest,
    recipe_file,
    run_of,
    wait_for_a_step,
)

from flopping.training.checkpoint import CheckpointManager

pytestmark = pytest.mark.long
KILLS = 25


@pytest.mark.parametrize("family", FAMILIES)
def test_killed_many_times(family: str, tmp_path: Path, launcher: Launcher, images: Path) -> None:
    moments = random.Random()
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert launcher.run(tmp_path, *run_of(family, images, whole), "epochs=20").code == 0
    kills = []
    while len(kills) < KILLS:
        process = launcher.start(tmp_path, *run_of(family, images, run), "epochs=20")
        if moments.random() < 0.5:
            wait_for_a_step(run)
        sleep(moments.uniform(0, 0.5))
        process.send(signal.SIGKILL)
        assert process.wait().code == -signal.SIGKILL, f"after {kills}"
        kills.append(newest(run))
    assert launcher.run(tmp_path, *run_of(family, images, run), "epochs=20").code == 0
    assert_same(run, whole)


class Shell:
    """Commands as a shell starts them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(place / "cache")}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flopping", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> Ended:
        return self.end(self.start(*arguments))

    def end(self, process: subprocess.Popen[str]) -> Ended:
        out, err = process.communicate()
        return Ended(process.returncode, out, err)


def test_killed_and_stopped_with_compiled_networks(tmp_path: Path, images: Path) -> None:
    shell = Shell(tmp_path)
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert shell.run(*run_of("ViT", images, whole, "--compile")).code == 0
    arguments = run_of("ViT", images, run, "--compile")
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        process = shell.start(*arguments)
        wait_for_a_step(run)
        os.killpg(process.pid, number)
        ended = shell.end(process)
        assert ended.code == (-number if number == signal.SIGKILL else 3), ended.err
        assert "Traceback" not in ended.err
    ended = shell.run(*arguments)
    assert ended.code == 0, ended.err
    assert_same(run, whole)


def test_asked_to_stop_while_a_network_is_compiled(tmp_path: Path, images: Path) -> None:
    """By a real compiler, which is signalled with the whole group as soon as it runs."""
    shell = Shell(tmp_path)
    run, whole = tmp_path / "run", tmp_path / "whole"
    arguments = run_of("ViT", images, run, "--compile", "--workers", "0")
    process = shell.start(*arguments)
    end = monotonic() + 300
    while not compilers_of(process.pid):
        assert process.poll() is None
        assert monotonic() < end, "nothing was compiled"
        sleep(0.005)
    os.killpg(process.pid, signal.SIGTERM)
    ended = shell.end(process)
    assert ended.code == 3, ended.err
    assert "Traceback" not in ended.err
    assert newest(run) == 1
    assert shell.run(*arguments).code == 0
    assert shell.run(*run_of("ViT", images, whole, "--compile")).code == 0
    assert_same(run, whole)


def compilers_of(group: int) -> list[str]:
    """The compilers proper that run in a process group."""
    found = subprocess.run(["ps", "-A", "-o", "pgid=,comm="], capture_output=True, text=True, check=True).stdout
    return [name for number, name in map(str.split, found.splitlines()) if int(number) == group and "cc1" in name]


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare mounts a small disk")
def test_a_disk_that_is_full(tmp_path: Path, images: Path) -> None:
    """The first checkpoint fits on it and the second doesn't; what was written of that goes, and the first is good."""
    place = tmp_path / "disk"
    place.mkdir()
    copy = tmp_path / "copy"
    recipe = recipe_file(tmp_path / "recipe.yaml", "ViT", epochs=3, batch_size=24, optimizer="adamw", lr=1e-3)
    options = f"--model deit3_flop_test_patch16_64 --data {images} -o {place}/run --no-compile --workers 0"
    script = (
        f"mount -t tmpfs -o size=3m none {place} || exit 77;"
        f" {sys.executable} -m flopping train {recipe} {options}; code=$?; cp -r {place}/run {copy}; exit $code"
    )
    ended = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    if ended.returncode in (1, 77) and not copy.exists():
        pytest.skip(f"no disk may be mounted here: {ended.stderr}")
    assert ended.returncode == 1, ended.stderr
    assert re.search(r"checkpoint of step 4 was not written: it takes 1\.\d MB in", ended.stderr)
    assert "(No space left on device). The last good checkpoint is" in ended.stderr
    newest, problems = CheckpointManager(copy).find_newest()
    assert newest is not None
    assert newest.step == 2
    assert not problems
    assert sorted(os.listdir(copy / "checkpoints")) == ["step-00000002"]
