"""The picture of the demo: shoes and mirrored shoes with what two networks say, and how often they are right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flopping.bench.drawing import BACKGROUND, COLOURS, INK, WIDTH, finished, render, style
from flopping.training.images import Source
from flopping.whole import whole

if TYPE_CHECKING:
    from flopping.demo import Outcome

SHOWN = 6
RIGHT, WRONG = "#1a7f37", "#cf222e"


def draw(outcomes: Sequence[Outcome], images: Source, labels: Tensor, shoes: Tensor, path: Path) -> None:
    """Write the picture as PNG."""
    with style():
        from matplotlib.figure import Figure

        figure: Any = Figure(figsize=(WIDTH, 6.4), layout="constrained")
        top, bottom = figure.subfigures(2, 1, height_ratios=(1.15, 1))
        chosen = _shown(outcomes, labels, shoes)
        axes = top.subplots(2, len(chosen))
        for column, index in enumerate(chosen):
            picture = np.asarray(images.open(index)[0])
            for row, pixels in enumerate((picture, picture[:, ::-1])):
                _image(axes[row, column], pixels, outcomes, index, images.classes, int(labels[index]), bool(row))
        top.suptitle(
            "Test images (above) and the same ones mirrored (below): what the two networks say", x=0.01, ha="left"
        )
        left, right = bottom.subplots(1, 2, width_ratios=(1, 1.4))
        _costs(left, outcomes)
        _accuracies(right, outcomes, labels, shoes)
        content = render(finished(figure), "png")
    with whole(path) as place:
        place.write_bytes(content)


def _shown(outcomes: Sequence[Outcome], labels: Tensor, shoes: Tensor) -> list[int]:
    """Shoes that both networks know; first those that the ordinary one doesn't know in the mirror."""
    ordinary, equivariant = outcomes
    known = shoes & (ordinary.seen == labels) & (equivariant.seen == labels)
    lost = (known & (ordinary.mirrored != labels)).nonzero()[:, 0].tolist()
    kept = (known & (ordinary.mirrored == labels)).nonzero()[:, 0].tolist()
    rest = torch.arange(len(labels)).tolist()
    wanted = SHOWN - 2 if len(lost) >= SHOWN - 2 else len(lost)
    found = [*lost[:wanted], *kept, *lost[wanted:], *rest]
    return list(dict.fromkeys(found))[:SHOWN]


def _image(
    axes: Any, pixels: Any, outcomes: Sequence[Outcome], index: int, classes: Sequence[str], label: int, mirrored: bool
) -> None:
    axes.imshow(pixels, cmap="gray_r", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for line, outcome in enumerate(outcomes):
        said = int((outcome.mirrored if mirrored else outcome.seen)[index])
        axes.text(
            0.5,
            -0.06 - 0.14 * line,
            f"{outcome.name}: {classes[said]}",
            transform=axes.transAxes,
            ha="center",
            va="top",
            fontsize=7,
            color=RIGHT if said == label else WRONG,
        )


def _costs(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Each figure as a share of the ordinary network's."""
    ordinary, equivariant = outcomes
    rows = {
        f"parameters\n{equivariant.parameters / 1e3:.0f} k of {ordinary.parameters / 1e3:.0f} k": (
            equivariant.parameters / ordinary.parameters
        ),
        f"FLOPs per image\n{equivariant.flops / 1e6:.1f} M of {ordinary.flops / 1e6:.1f} M": (
            equivariant.flops / ordinary.flops
        ),
        f"time to train\n{equivariant.speed:.0f} against {ordinary.speed:.0f} images/s": (
            ordinary.speed / equivariant.speed
        ),
    }
    axes.barh(list(rows), list(rows.values()), color=_colours()[1], height=0.5)
    axes.axvline(1.0, color=_colours()[0], lw=1.5)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    for row, share in enumerate(rows.values()):
        axes.text(share - 0.02, row, f"{share:.2f}", ha="right", va="center", color=BACKGROUND, fontsize=8)
    axes.set(title="Equivariant, as a share of ordinary", xlim=(0, max(1.25, *rows.values()) + 0.1))


def _accuracies(axes: Any, outcomes: Sequence[Outcome], labels: Tensor, shoes: Tensor) -> None:
    groups = {
        "all images": (torch.ones_like(shoes), False),
        "mirrored": (torch.ones_like(shoes), True),
        "shoes": (shoes, False),
        "mirrored\nshoes": (shoes, True),
    }
    for side, (outcome, colour) in enumerate(zip(outcomes, _colours(), strict=True)):
        places = [place + 0.4 * (side - 0.5) for place in range(len(groups))]
        heights = [outcome.right(labels, among, mirrored=mirrored) for among, mirrored in groups.values()]
        axes.bar(places, heights, width=0.36, color=colour, label=outcome.name)
        for place, height in zip(places, heights, strict=True):
            axes.text(place, height + 1, f"{height:.1f}", ha="center", fontsize=7.5, color=INK)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(title="Test accuracy (%)", ylim=(0, 118))
    axes.grid(False, axis="x")
    axes.legend(loc="upper right", ncols=2)


def _colours() -> list[str]:
    return list(COLOURS.values())[:2]
