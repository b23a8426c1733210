"""The curves of a run: loss and accuracy over the epochs. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from flopping.errors import UsageError
from flopping.lab.drawing import COLOURS, finished, panels, save, style
from flopping.training.run_log import CURVES, LOG, read_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def show_curves(run: Path, name: str, console: Console) -> None:
    """Draw the curves of a run in its folder, unless they are newer than its log, and say where they are."""
    path = run / CURVES
    if path.exists() and path.stat().st_mtime_ns >= (run / LOG).stat().st_mtime_ns:
        return
    try:
        save(_draw(read_log(run), name), path)
    except UsageError as error:  # a run needs no matplotlib
        console.print(f"No curves: {escape(str(error))}", highlight=False, soft_wrap=True)
        return
    console.print(f"Curves: {escape(str(path))}", highlight=False, soft_wrap=True)


def _draw(events: Sequence[dict[str, Any]], name: str) -> Figure:
    """The loss and the accuracy of a run, from the events of its log."""
    with style():
        from matplotlib.ticker import MaxNLocator

        figure, (loss, top1) = panels(2, 3.2, share=False)
        thin, line = {"lw": 0.5, "alpha": 0.4}, {"ls": "-", "marker": ".", "lw": 1.2}
        for axes, kind, value, label, look in (
            (loss, "step", "loss", None, thin),
            (loss, "epoch", "train_loss", name, line),
            (top1, "epoch", "top1", name, line),
            (top1, "epoch", "ema_top1", f"{name}, averaged weights", {"ls": ":", "lw": 1.2}),
        ):
            points = [(event["epoch"], event[value]) for event in events if event["kind"] == kind and value in event]
            if points:
                axes.plot(*zip(*points, strict=True), color=COLOURS["ResMLP"], label=label, **look)
        loss.set(title="Training loss", xlabel="epoch")
        top1.set(title="Top-1 accuracy, test images", xlabel="epoch", ylabel="%")
        for axes in (loss, top1):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        top1.legend(loc="lower right")
        return finished(figure)
