"""What a run writes down: its log, TensorBoard's files, and its curves."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flopping.training.curves import draw_curves
from flopping.training.journal import LOG, Journal, read_log


def journal(run: Path, step: int = 0, events: int = 0, *, speaks: bool = True) -> Journal:
    return Journal(run, Console(file=io.StringIO()), 100, step, events, speaks=speaks)


def test_events_are_lines_of_json_and_scalars_of_tensorboard(tmp_path: Path) -> None:
    with journal(tmp_path) as written:
        written.write("step", 10, loss=2.5, lr=1e-3, images_per_s=None)
        written.write("epoch", 20, top1=50.0, images=8)
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert lines == read_log(tmp_path)
    assert lines[0] == {"kind": "step", "step": 10, "loss": 2.5, "lr": 1e-3, "images_per_s": None}
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(board.Tags()["scalars"]) == ["epoch/images", "epoch/top1", "step/loss", "step/lr"]
    assert [(event.step, event.value) for event in board.Scalars("epoch/top1")] == [(20, 50.0)]


def test_a_resumed_run_forgets_what_came_behind_its_checkpoint(tmp_path: Path) -> None:
    with journal(tmp_path) as written:
        for step in (10, 20, 30):
            written.write("step", step, loss=float(step))
    time.sleep(1)  # files of TensorBoard are ordered by the second in which they were begun
    with journal(tmp_path, step=20, events=2) as written:
        written.write("step", 30, loss=1.0)
    assert [(event["step"], event["loss"]) for event in read_log(tmp_path)] == [(10, 10.0), (20, 20.0), (30, 1.0)]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("step/loss")] == [(10, 10.0), (20, 20.0), (30, 1.0)]


def test_processes_that_do_not_speak_write_nothing(tmp_path: Path) -> None:
    with journal(tmp_path, speaks=False) as silent:
        silent.write("step", 10, loss=2.5)
        silent.say("hello")
        silent.progress(1, "")
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    (tmp_path / LOG).write_text('{"kind": "step", "step": 1}\nnonsense\n{"kind": "step", "step": 2}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_log(tmp_path)


def test_curves_of_several_runs(tmp_path: Path) -> None:
    def events(start: float) -> list[dict[str, object]]:
        steps = [{"kind": "step", "step": s, "epoch": s / 10, "loss": start - s / 20} for s in range(1, 30)]
        ends: list[dict[str, object]] = [
            {
                "kind": "epoch",
                "step": 10 * e,
                "epoch": e,
                "train_loss": start - e / 2,
                "top1": 20.0 * e,
                "ema_top1": 18.0 * e,
            }
            for e in (1, 2, 3)
        ]
        return [*steps, *ends]

    path = tmp_path / "curves.png"
    draw_curves({"ViT-S": events(2.3), "E(ViT-S)": events(2.2)}, path)
    with Image.open(path) as picture:
        both = picture.convert("RGB").getcolors(1 << 24)
    draw_curves({"ViT-S": events(2.3)}, path)
    with Image.open(path) as picture:
        one = picture.convert("RGB").getcolors(1 << 24)
    assert picture.size[0] > 1000
    assert both is not None
    assert one is not None
    assert {colour for _, colour in both} > {(0xD5, 0x5E, 0x00), (0x00, 0x72, 0xB2)}
    assert (0x00, 0x72, 0xB2) not in {colour for _, colour in one}
