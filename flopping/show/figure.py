"""The picture: the image on the left, its mirror image on the right, and below what a network makes of them.

The right half is laid out as the mirror image of the left half. So whatever a network doesn't mirror is seen at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopping.bench.drawing import GRID, INK, WIDTH, render, style
from flopping.show import words
from flopping.show.view import Map, Pair, Row, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

MARGIN, MIDDLE, GAP = 0.3, 0.5, 0.12  # inches
HEADING, LINE, BAR = 0.46, 0.17, 0.24
LARGEST = 1.9
"""The longest side of a panel."""
NAMES = 1.15
"""Half of the room between the bars, for the names of classes."""
SOFT = "#59636e"
RGB = NDArray[np.uint8]


def sequential() -> Colormap:
    """Colours of maps in which 0 has no meaning."""
    from matplotlib import colormaps

    return colormaps["viridis"]


def diverging() -> Colormap:
    """Colours of maps whose sign counts: from blue by white at 0 to orange."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = ["#00304d", words.MINUS, "#ffffff", words.PLUS, "#5c2900"]
    return LinearSegmentedColormap.from_list("flopping", colours)


Look = tuple["Colormap", tuple[float, float]]
"""Colours, and the values at both ends of them."""


def looks(row: Row, pair: Pair) -> Look:
    """How a pair of maps is painted: both in the same way; around 0 where the sign counts."""
    return (diverging(), pair.symmetric_limits) if row.kind == "odd" else (sequential(), pair.limits)


def changed(pair: Pair) -> Look:
    """How the change of a channel is painted: its strongest colours are changes as large as all of its range."""
    low, high = pair.limits
    return diverging(), (low - high, high - low)


def painted(values: Map, colours: Colormap, limits: tuple[float, float]) -> RGB:
    """A map `(h, w)` as an image `(h, w, 3)`."""
    low, high = limits
    image: RGB = (colours((values - low) / (high - low or 1.0))[..., :3] * 255).round().astype(np.uint8)
    return image


def colourful(pixels: RGB) -> RGB:
    """Grey images `(H, W)` as `(H, W, 3)`."""
    return np.repeat(pixels[..., None], 3, 2) if pixels.ndim == 2 else pixels


def heat(pixels: RGB, focus: Map, limits: tuple[float, float]) -> RGB:
    """An image `(H, W, 3)`, made grey, under a map in colours; each place of the map covers its patch."""
    from matplotlib import colormaps

    rows = np.arange(pixels.shape[0]) * focus.shape[0] // pixels.shape[0]
    columns = np.arange(pixels.shape[1]) * focus.shape[1] // pixels.shape[1]
    colours = painted(focus[rows][:, columns], colormaps["inferno"], limits)
    mixed: RGB = (0.35 * pixels.mean(2, keepdims=True) + 0.65 * colours).round().astype(np.uint8)
    return mixed


def draw(view: View) -> Figure:
    """The picture as a figure."""
    with style():
        sheet: Figure = _Sheet(view).figure
        return sheet


def png(view: View) -> bytes:
    return render(draw(view), "png")


class _Sheet:
    """A figure that is filled from top to bottom. Lengths are inches."""

    def __init__(self, view: View) -> None:
        from matplotlib.figure import Figure

        self.view = view
        self.aspect = view.pixels.shape[0] / view.pixels.shape[1]
        self.half = (WIDTH - 2 * MARGIN - MIDDLE) / 2
        self.figure: Any = Figure(figsize=(WIDTH, self._height()))
        self.top = MARGIN
        self._title()
        start = self.top
        self._focus()
        for row in view.rows:
            self._maps(row)
        self._mirror(start, self.top)
        if view.scores:
            self._answers()

    def _panel(self, number: int) -> tuple[float, float]:
        """Width and height of panels that stand side by side in one half."""
        width = min((self.half - GAP * (number - 1)) / number, LARGEST, LARGEST / self.aspect)
        return width, width * self.aspect

    def _height(self) -> float:
        view = self.view
        rows = [self._panel(2)[1] + HEADING + LINE]
        for row in view.rows:
            panels = 2 if row.kind == "plain" else 1
            rows += [HEADING + panels * (self._panel(len(row.pairs))[1] + LINE)]
        answers = HEADING + BAR * len(view.scores) if view.scores else 0.0
        return 2 * MARGIN + 0.3 + LINE * len(self._summary()) + sum(rows) + answers

    def _summary(self) -> list[str]:
        from textwrap import wrap

        return wrap(words.summary(self.view), 125)

    def _text(self, x: float, text: str, size: float = 9, down: float = 0.0, **look: Any) -> None:
        height = self.figure.get_figheight()
        look = {"ha": "left", "va": "top", "fontsize": size, **look}
        self.figure.text(x / WIDTH, 1 - (self.top + down) / height, text, **look)

    def _axes(self, x: float, width: float, height: float, label: str) -> Axes:
        """A panel below what has been drawn; its label tells it from others."""
        full = self.figure.get_figheight()
        box = (x / WIDTH, 1 - (self.top + height) / full, width / WIDTH, height / full)
        axes: Axes = self.figure.add_axes(box, label=label)
        return axes

    def _image(
        self,
        x: float,
        size: tuple[float, float],
        label: str,
        values: Any,
        colours: Colormap | None = None,
        limits: tuple[float, float] | None = None,
    ) -> None:
        axes = self._axes(x, *size, label)
        axes.imshow(values, colours, interpolation="nearest", aspect="auto", clim=limits)
        axes.set(xticks=[], yticks=[])
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set(visible=True, color=GRID, linewidth=0.6)

    def _places(self, number: int, width: float) -> list[tuple[float, float]]:
        """Left edges of panels in the left half, from the edge inwards, and of their mirror images."""
        middle = WIDTH / 2
        spare = self.half - number * width - (number - 1) * GAP
        left = [MARGIN + spare / 2 + index * (width + GAP) for index in range(number)]
        return [(x, 2 * middle - x - width) for x in left]

    def _heading(self, text: str, caption: str) -> None:
        self._text(MARGIN, text, weight="bold", down=0.1)
        self._text(WIDTH - MARGIN, caption, size=7.5, down=0.12, color=SOFT, ha="right")
        self.top += HEADING - 0.12

    def _title(self) -> None:
        self._text(MARGIN, words.title(self.view), size=13, weight="bold")
        self.top += 0.3
        for line in self._summary():
            self._text(MARGIN, line)
            self.top += LINE

    def _focus(self) -> None:
        view = self.view
        self._heading(words.focus_heading(view), words.focus_caption(view))
        size = self._panel(2)
        (outer, mirrored_outer), (inner, mirrored_inner) = self._places(2, size[0])
        pixels = colourful(view.pixels)
        mirrored = pixels[:, ::-1]
        for x, label, values in (
            (outer, "image", pixels),
            (inner, "focus", heat(pixels, view.focus.image, view.focus.limits)),
            (mirrored_inner, "focus, mirrored", heat(mirrored, view.focus.mirrored, view.focus.limits)),
            (mirrored_outer, "image, mirrored", mirrored),
        ):
            self._image(x, size, label, values)
        self.top += size[1] + 0.04
        for x, text in ((outer, words.COLUMNS[0]), (mirrored_outer, words.COLUMNS[1])):
            self._text(x + size[0] / 2, text, size=8, ha="center")
        self.top += LINE + 0.08

    def _maps(self, row: Row) -> None:
        self._heading(words.row_heading(row), words.row_caption(row, self.view))
        size = self._panel(len(row.pairs))
        places = list(zip(row.pairs, self._places(len(row.pairs), size[0]), strict=True))
        for pair, edges in places:
            look = looks(row, pair)
            for x, values, side in zip(edges, (pair.image, pair.mirrored), ("", ", mirrored"), strict=True):
                label = f"{row.kind} {pair.name}{side}"
                self._image(x, size, label, values, *look)
        self.top += size[1] + 0.03
        for pair, edges in places:
            for x in edges:
                self._text(x + size[0] / 2, pair.name, size=7, color=SOFT, ha="center")
        self.top += LINE - 0.03
        if row.kind == "plain":
            self._changes(places, size)
        self.top += 0.12

    def _changes(self, places: list[tuple[Pair, tuple[float, float]]], size: tuple[float, float]) -> None:
        """What a mirror changes in ordinary channels beyond mirroring them, below the mirror image's maps."""
        for line, text in enumerate(words.CHANGES):
            self._text(MARGIN + self.half, text, down=size[1] / 2 + LINE * (line - 1), ha="right")
        for pair, (_, x) in places:
            self._image(x, size, f"change of {pair.name}", pair.change, *changed(pair))
        self.top += size[1] + LINE

    def _mirror(self, start: float, end: float) -> None:
        from matplotlib.lines import Line2D

        height = self.figure.get_figheight()
        ys = [1 - (start + 0.4) / height, 1 - (end - 0.3) / height]
        self.figure.add_artist(Line2D([0.5, 0.5], ys, color=INK, lw=0.8, ls=(0, (4, 3))))

    def _answers(self) -> None:
        """Bars that grow from the names of classes to both sides: equal answers make a symmetric picture."""
        view = self.view
        self._heading(words.answer_heading(view), words.answer_caption(view))
        height = BAR * len(view.scores)
        width = WIDTH / 2 - MARGIN - NAMES
        longest = max(max(score.probabilities) for score in view.scores) or 1.0
        for side, x in enumerate((MARGIN, WIDTH / 2 + NAMES)):
            axes = self._axes(x, width, height, f"answers{', mirrored' if side else ''}")
            ends = (0.0, 1.45 * longest)  # room for the figures behind the bars
            axes.set(xlim=ends if side else ends[::-1], ylim=(len(view.scores) - 0.5, -0.5))
            axes.set_axis_off()
            for line, score in enumerate(view.scores):
                share = score.probabilities[side]
                axes.barh(line, share, height=0.7, color=words.BARS)
                text = words.said(share, score.logits[side])
                align = "right" if side == 0 else "left"
                axes.text(share + 0.02 * longest, line, text, ha=align, va="center", fontsize=8)
        for line, score in enumerate(view.scores):
            self._text(WIDTH / 2, words.cut(score.label, 30), size=8, ha="center", va="center", down=BAR * (line + 0.5))
        self.top += height
