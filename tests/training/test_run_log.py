"""The log of a run."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.image_files import image_folder
from support.training_runs import ANIMALS, TINY, call, train_tiny

from flopping.errors import UsageError
from flopping.training.run_log import LOG, RunLog, read_log


def open_log(run: Path, step: int = 0, events: int = 0, *, enabled: bool = True) -> RunLog:
    return RunLog(run, Console(file=io.StringIO()), 100, step, events, enabled=enabled)


def test_events_are_lines_of_json(tmp_path: Path) -> None:
    with open_log(tmp_path) as written:
        written.write("step", 10, loss=2.5, lr=1e-3, images_per_s=None)
        written.write("epoch", 20, top1=50.0, images=8)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert lines == read_log(tmp_path)
    assert lines[0] == {"kind": "step", "step": 10, "loss": 2.5, "lr": 1e-3, "images_per_s": None}


def test_a_resumed_run_forgets_what_came_behind_its_checkpoint(tmp_path: Path) -> None:
    with open_log(tmp_path) as written:
        for step in (10, 20, 30):
            written.write("step", step, loss=float(step))
    with open_log(tmp_path, step=20, events=2) as written:
        written.write("step", 30, loss=1.0)
    assert [(event["step"], event["loss"]) for event in read_log(tmp_path)] == [(10, 10.0), (20, 20.0), (30, 1.0)]


def test_ranks_whose_log_is_disabled_write_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path, enabled=False) as silent:
        silent.write("step", 10, loss=2.5)
        silent.say("hello")
        silent.update_bar(1, "")
    assert list(tmp_path.iterdir()) == []


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    lines = [b'{"kind": "step", "step": 1}', b"\xff nonsense", b"[" * 100_000, b'{"kind": "step", "step": 3}', b'{"ki']
    (tmp_path / LOG).write_bytes(b"\n".join(lines))
    assert [event["step"] for event in read_log(tmp_path)] == [1, 3]
    with open_log(tmp_path, step=2, events=3) as written:
        written.write("step", 4)
    assert [event["step"] for event in read_log(tmp_path)] == [1, 4], "the fourth line is after the checkpoint"


def test_a_log_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOG).mkdir()
    with pytest.raises(UsageError, match=LOG):
        read_log(tmp_path)


def test_what_a_run_says_of_short_epochs(tmp_path: Path) -> None:
    """The first step is not timed, so there is no speed before the second; images beyond full batches are mentioned."""
    data = image_folder(tmp_path / "animals", ANIMALS)
    changes = [*TINY[:-1], "batch_size=5", "epochs=2", "warmup_epochs=0"]
    options = ["--device", "cpu", "--workers", "0", "--no-compile"]
    ended = call("train", "fashion_vit", *changes, "--data", str(data), "-o", str(tmp_path / "run"), *options)
    assert ended.code == 0, ended.err
    assert "2 epochs of 1 step; batch 5 (1 x 5); every epoch leaves out 3 images, chosen at random" in ended.err
    first, second = ended.err.split("epoch 1 of 2: ")[1].split("epoch 2 of 2: ")
    assert "images/s" not in first
    assert re.search(r", \d+ images/s", second)
    assert "leaves out" not in train_tiny(data, tmp_path / "full").err
