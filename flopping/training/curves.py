"""The curves of runs: loss and accuracy over the epochs. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from flopping.bench.drawing import COLOURS, finished, panels, render, style
from flopping.training.journal import read_log
from flopping.whole import whole

CURVES = "curves.png"


def draw_curves(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """A PNG of the loss and the accuracy of runs, given as their events by name."""
    with style():
        from matplotlib.ticker import MaxNLocator

        figure, (loss, top1) = panels(2, 3.2, share=False)
        for (name, events), colour in zip(runs.items(), cycle(COLOURS.values()), strict=False):
            steps = [event for event in events if event["kind"] == "step"]
            epochs = [event for event in events if event["kind"] == "epoch"]
            loss.plot([e["epoch"] for e in steps], [e["loss"] for e in steps], color=colour, lw=0.5, alpha=0.4)
            loss.plot(
                [e["epoch"] for e in epochs], [e["train_loss"] for e in epochs], ".-", color=colour, lw=1.2, label=name
            )
            top1.plot([e["epoch"] for e in epochs], [e["top1"] for e in epochs], ".-", color=colour, lw=1.2, label=name)
            if any("ema_top1" in e for e in epochs):
                averaged = [e for e in epochs if "ema_top1" in e]
                top1.plot(
                    [e["epoch"] for e in averaged],
                    [e["ema_top1"] for e in averaged],
                    ":",
                    color=colour,
                    lw=1.2,
                    label=f"{name}, averaged weights",
                )
        loss.set(title="Training loss", xlabel="epoch")
        top1.set(title="Top-1 accuracy, test images", xlabel="epoch", ylabel="%")
        for axes in (loss, top1):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        top1.legend(loc="lower right")
        content = render(finished(figure), "png")
    with whole(path) as place:
        place.write_bytes(content)


def draw_run(run: Path, name: str) -> Path:
    """The curves of one run, in its folder."""
    path = run / CURVES
    draw_curves({name: read_log(run)}, path)
    return path
