"""The picture of the demo: shoes and mirrored shoes with what two networks say, and how often they are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flopping.data.images import ImageDataset
from flopping.lab.drawing import BACKGROUND, COLOURS, INK, WIDTH, finished, save, style

if TYPE_CHECKING:
    from flopping.lab.demo import DemoResult

SHOWN = 6
RIGHT, WRONG = "#1a7f37", "#cf222e"
FIRST, SECOND = list(COLOURS.values())[:2]
"""Of the ordinary network and of the equivariant one."""


def draw(ordinary: DemoResult, equivariant: DemoResult, images: ImageDataset, shoes: Tensor, path: Path) -> None:
    """Write the picture as PNG."""
    with style():
        from matplotlib.figure import Figure

        figure: Any = Figure(figsize=(WIDTH, 6.4), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        chosen = _choose(ordinary, equivariant, shoes)
        axes = top.subplots(2, len(chosen))
        for column, index in enumerate(chosen):
            picture = np.asarray(images.read(index)[0])
            _draw_image(axes[0, column], picture, images.classes, index, ordinary, equivariant, mirrored=False)
            _draw_image(axes[1, column], picture[:, ::-1], images.classes, index, ordinary, equivariant, mirrored=True)
        top.suptitle(
            "Test images (above) and the same ones mirrored (below): what the two networks say", x=0.01, ha="left"
        )
        left, right = bottom.subplots(1, 2, width_ratios=(1, 1.4))
        _draw_costs(left, ordinary, equivariant)
        _draw_accuracies(right, (ordinary, equivariant), shoes)
        save(finished(figure), path)


def _choose(ordinary: DemoResult, equivariant: DemoResult, shoes: Tensor) -> list[int]:
    """Shoes that both networks know: mostly those that the ordinary one doesn't know in the mirror."""
    known = shoes & (ordinary.seen == ordinary.labels) & (equivariant.seen == ordinary.labels)
    lost = (known & (ordinary.mirrored != ordinary.labels)).nonzero()[:, 0].tolist()
    kept = (known & (ordinary.mirrored == ordinary.labels)).nonzero()[:, 0].tolist()
    chosen = [*lost[: SHOWN - 2], *kept, *lost[SHOWN - 2 :], *range(len(shoes))]
    return list(dict.fromkeys(chosen))[:SHOWN]


def _draw_image(
    axes: Any, pixels: Any, classes: Sequence[str], index: int, *outcomes: DemoResult, mirrored: bool
) -> None:
    """An image with the answers of the networks below it."""
    axes.imshow(pixels, cmap="gray_r", interpolation="nearest")
    axes.set_axis_off()
    for line, outcome in enumerate(outcomes):
        answer = int((outcome.mirrored if mirrored else outcome.seen)[index])
        axes.text(
            0.5,
            -0.06 - 0.14 * line,
            f"{outcome.name}: {classes[answer]}",
            transform=axes.transAxes,
            ha="center",
            va="top",
            fontsize=7,
            color=RIGHT if answer == outcome.labels[index] else WRONG,
        )


def _draw_costs(axes: Any, ordinary: DemoResult, equivariant: DemoResult) -> None:
    """Each figure as a share of the ordinary network's."""
    x, e = ordinary, equivariant
    rows = {
        f"parameters\n{e.parameters / 1e3:.0f} k of {x.parameters / 1e3:.0f} k": e.parameters / x.parameters,
        f"FLOPs per image\n{e.flops / 1e6:.1f} M of {x.flops / 1e6:.1f} M": e.flops / x.flops,
        f"time to train\n{e.speed:.0f} against {x.speed:.0f} images/s": x.speed / e.speed,
    }
    axes.barh(list(rows), list(rows.values()), color=SECOND, height=0.5)
    axes.axvline(1.0, color=FIRST, lw=1.5)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    for row, share in enumerate(rows.values()):
        place, ha, colour = (share - 0.02, "right", BACKGROUND) if share < 0.98 else (max(1, share) + 0.02, "left", INK)
        axes.text(place, row, f"{share:.2f}", ha=ha, va="center", color=colour, fontsize=8)
    axes.set(title="Equivariant, as a share of ordinary", xlim=(0, max(1.25, *rows.values()) + 0.1))


def _draw_accuracies(axes: Any, outcomes: Sequence[DemoResult], shoes: Tensor) -> None:
    everything = torch.ones_like(shoes)
    groups = {
        "all images": (everything, False),
        "mirrored": (everything, True),
        "shoes": (shoes, False),
        "mirrored\nshoes": (shoes, True),
    }
    for side, (outcome, colour) in enumerate(zip(outcomes, (FIRST, SECOND), strict=True)):
        places = [place + 0.4 * (side - 0.5) for place in range(len(groups))]
        heights = [outcome.score(among, mirrored=mirrored) for among, mirrored in groups.values()]
        bars = axes.bar(places, heights, width=0.36, color=colour, label=outcome.name)
        axes.bar_label(bars, fmt="%.1f", fontsize=7.5, color=INK, padding=1)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(title="Test accuracy (%)", ylim=(0, 118))
    axes.grid(False, axis="x")
    axes.legend(loc="upper right", ncols=2)
