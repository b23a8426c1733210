"""The drawings of docs/idea.md. Nothing in them is drawn by hand: maps are computed, and matrices are those of a layer.

python tools/draw_idea.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from flopping import Layout, flop
from flopping import nn as fnn
from flopping.data.fashion import read_subset
from flopping.lab.drawing import INK, WIDTH, finished, save, style

DOCS = Path(__file__).parents[1] / "docs"
SHOE = 0
"""The ankle boot that is shown: the first test image of Fashion-MNIST in the package."""
ROWS = slice(5, 25)
"""Those with the shoe in them."""
EVEN, ODD = "#1b6fa8", "#b0306f"
"""The colours of docs/path.svg."""
CHANNELS = 8


def responses(image: Tensor) -> tuple[Tensor, Tensor]:
    """An even and an odd map `(H, W)` of an image: a symmetric and an antisymmetric filter of 3 x 3.

    >>> image = torch.rand(28, 28)
    >>> (even, odd), (mirrored_even, mirrored_odd) = responses(image), responses(image.flip(1))
    >>> torch.allclose(mirrored_even, even.flip(1), atol=1e-6), torch.allclose(mirrored_odd, -odd.flip(1), atol=1e-6)
    (True, True)
    """
    symmetric = torch.tensor([[1.0, 2, 1], [0, 0, 0], [-1, -2, -1]]) / 4
    antisymmetric = symmetric.T
    even, odd = torch.conv2d(image[None, None], torch.stack([symmetric, antisymmetric])[:, None], padding=1)[0]
    return even, odd


def mirror() -> Figure:
    """A shoe and its mirror image, and what an even and an odd filter see of both."""
    image = torch.from_numpy(read_subset(train=False)[0][SHOE]).float() / 255
    image = image[ROWS]
    figure: Any = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    rows = figure.subplots(2, 3)
    titles = (
        ("the image", "an even feature", "an odd feature"),
        ("its mirror image", "even: mirrored", "odd: mirrored, and negated"),
    )
    for axes, names, shown in zip(rows, titles, (image, image.flip(1)), strict=True):
        even, odd = responses(shown)
        _picture(axes[0], shown, names[0], "gray_r", (0, 1), INK)
        _picture(axes[1], even, names[1], "PuOr", (-1, 1), EVEN)
        _picture(axes[2], odd, names[2], "RdBu", (-1, 1), ODD)
    return finished(figure)


def _picture(axes: Any, pixels: Tensor, title: str, colours: str, limits: tuple[float, float], colour: str) -> None:
    axes.imshow(pixels.numpy(), cmap=colours, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, color=colour)
    _bare(axes)


def matrices() -> tuple[Tensor, Tensor, Tensor]:
    """Three matrices `(C, C)`: of an ordinary layer, of an equivariant one on twin channels, and on even and odd ones.

    The second and the third are the same map. Twins are channels that a flop swaps.

    >>> dense, twins, blocks = matrices()
    >>> half = CHANNELS // 2
    >>> bool((twins[:half, :half] == twins[half:, half:]).all()), bool((blocks[:half, half:] == 0).all())
    (True, True)
    """
    layout = Layout.regular(flop, CHANNELS)
    generator = torch.Generator().manual_seed(5)
    layer = fnn.Linear(layout, layout, bias=False)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator) * 2 - 1)
    blocks = layer.to_dense().weight.detach()
    dense = torch.rand(CHANNELS, CHANNELS, generator=generator) * 2 - 1
    half = torch.eye(CHANNELS // 2) / 2**0.5
    fourier = torch.cat([torch.cat([half, half], 1), torch.cat([half, -half], 1)])  # twins to even and odd
    return dense, (fourier.T @ blocks @ fourier).mul(1e6).round() / 1e6, blocks


def blocks() -> Figure:
    """Why the arithmetic halves: what is free, what is repeated, and what is zero."""
    dense, twins, blocks = matrices()
    free, products = CHANNELS**2, CHANNELS**2 // 2
    figure: Any = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    axes = figure.subplots(1, 3)
    names = ("", ""), ("channels", "their twins"), ("even", "odd")
    titles = (
        ("ordinary layer", f"{free} weights, {free} products"),
        ("equivariant, on twin channels", f"{products} weights, each twice: {free} products"),
        ("the same layer, on even and odd", f"{products} weights, {products} products"),
    )
    for place, matrix, labels, (title, cost) in zip(axes, (dense, twins, blocks), names, titles, strict=True):
        _matrix(place, matrix, title, cost)
        if matrix is not dense:
            _halves(place, labels, (EVEN, ODD) if matrix is blocks else (INK, INK))
    return finished(figure)


def _matrix(axes: Any, matrix: Tensor, title: str, cost: str) -> None:
    from matplotlib import colormaps

    for row, line in enumerate(matrix.tolist()):
        for column, value in enumerate(line):
            colour = "#f6f6f6" if value == 0 else colormaps["RdBu"](0.5 + value / 2.2)
            axes.add_patch(_square(column, row, colour))
    axes.set(xlim=(0, CHANNELS), ylim=(CHANNELS, 0), aspect="equal", xticks=[], yticks=[])
    axes.set_title(title)
    axes.set_xlabel(cost)
    _bare(axes)


def _bare(axes: Any) -> None:
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _square(x: int, y: int, colour: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, facecolor=colour, edgecolor="none")


def _halves(axes: Any, names: tuple[str, str], colours: tuple[str, str]) -> None:
    half = CHANNELS / 2
    axes.axhline(half, color=INK, lw=1)
    axes.axvline(half, color=INK, lw=1)
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        axes.text(-0.3, half * (number + 0.5), name, ha="right", va="center", rotation=90, color=colour)


def main(folder: Path = DOCS) -> None:
    """Write both drawings."""
    with style(), matplotlib.rc_context({"svg.hashsalt": "flopping"}):
        save(mirror(), folder / "mirror.png")
        silent = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        blocks().savefig(folder / "blocks.svg", format="svg", dpi=200, metadata=silent)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
