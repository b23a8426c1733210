"""The curves of a run."""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image
from rich.console import Console

from flopping.lab.curves import show_curves
from flopping.training.run_log import CURVES, LOG


def test_curves_are_drawn_beside_the_log_and_only_once(tmp_path: Path) -> None:
    steps = [{"kind": "step", "step": s, "epoch": s / 10, "loss": 2.3 - s / 20} for s in range(1, 30)]
    ends = [{"kind": "epoch", "step": 10 * e, "epoch": e, "train_loss": 2.3 - e / 2, "top1": 20.0 * e} for e in (1, 2)]
    last = {**ends[-1], "epoch": 3, "ema_top1": 18.0}
    (tmp_path / LOG).write_text("".join(json.dumps(event) + "\n" for event in (*steps, *ends, last)))
    console = Console(file=io.StringIO(), width=300)
    show_curves(tmp_path, "ViT-S", console)
    show_curves(tmp_path, "ViT-S", console)
    assert console.file.getvalue().count(CURVES) == 1  # type: ignore[attr-defined]
    with Image.open(tmp_path / CURVES) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24) or []}
    assert picture.size[0] > 1000
    assert (0xD5, 0x5E, 0x00) in colours
