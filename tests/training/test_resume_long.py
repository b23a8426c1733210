"""The same as test_resume.py with many more kills, and with compiled networks (minutes)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest
from support.training_runs import (
    EVERYTHING,
    FAMILIES,
    SAVED,
    Launcher,
    assert_same,
    command,
    newest,
    recipe_file,
    run_of,
    wait_for_a_step,
)

from flopping.models import ZOO, ConvNeXt, ResMlp, ResNet, VisionTransformer

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


FAMILY_OF = {VisionTransformer: "ViT", ResMlp: "ResMLP", ConvNeXt: "ConvNeXt", ResNet: "ResNet"}


@pytest.mark.parametrize("name", [name for name in ZOO if "test" in name])
def test_every_kind_of_network_goes_on(name: str, tmp_path: Path, launcher: Launcher, images: Path) -> None:
    """All groups, hand-offs and parts: killed before its second checkpoint has its name, and resumed."""
    fields = {**EVERYTHING, "epochs": 2, "optimizer": "adamw", "img_size": ZOO[name].img_size}
    recipe = recipe_file(tmp_path / "recipe.yaml", FAMILY_OF[ZOO[name].model], **fields)
    run, whole = (command(recipe, images, tmp_path / folder, name, *SAVED) for folder in ("run", "whole"))
    assert launcher.run(tmp_path, *whole).code == 0
    strike = ("os.rename", "/.new-step-", 2, signal.SIGKILL)
    assert launcher.run(tmp_path, *run, strikes=[strike]).code == -signal.SIGKILL
    ended = launcher.run(tmp_path, *run)
    assert ended.code == 0, ended.err
    assert "Resumed after step 1 of 8" in ended.err
    assert_same(tmp_path / "run", tmp_path / "whole")


def start(cache: Path, *arguments: str) -> subprocess.Popen[str]:
    """A command as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "flopping", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """How a command ended, and what it said."""
    _, err = process.communicate()  # closes its pipes
    return process.returncode, err


def test_killed_and_stopped_with_compiled_networks(tmp_path: Path, images: Path) -> None:
    cache, run, whole = tmp_path / "cache", tmp_path / "run", tmp_path / "whole"
    code, err = end(start(cache, *run_of("ViT", images, whole, "--compile")))
    assert code == 0, err
    arguments = run_of("ViT", images, run, "--compile")
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        process = start(cache, *arguments)
        wait_for_a_step(run)
        os.killpg(process.pid, number)
        code, err = end(process)
        assert code == (-number if number == signal.SIGKILL else 3), err
        assert "Traceback" not in err
    code, err = end(start(cache, *arguments))
    assert code == 0, err
    assert_same(run, whole)
