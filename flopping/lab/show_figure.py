"""The figure of `flopping show`. Needs matplotlib.

The right half of the figure is laid out as the mirror image of the left half, so whatever a network doesn't mirror is
seen at once. Lengths are inches, from the left and from the top.
"""

from __future__ import annotations

from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any

from flopping.lab.drawing import COLOURS, GRID, INK, WIDTH, style
from flopping.lab.show import Section, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN, MIDDLE, GAP = 0.3, 0.5, 0.12
HALF = (WIDTH - 2 * MARGIN - MIDDLE) / 2
TITLE, HEADING, LINE, BAR = 0.3, 0.34, 0.17, 0.24
LARGEST = 1.9
"""The longest side of a panel."""
NAMES = 1.15
"""Half of the room between the bars, for the names of classes."""
SOFT = "#59636e"


def draw(view: View) -> Figure:
    """Draw a view."""
    with style():
        from matplotlib.figure import Figure

        summary = wrap(view.summary, 125)
        sizes = [_panel_size(len(section.panels), view.aspect) for section in view.sections]
        height = 2 * MARGIN + TITLE + LINE * len(summary) + sum(HEADING + high + 2 * LINE for _, high in sizes)
        figure: Any = Figure(figsize=(WIDTH, height + (HEADING + BAR * len(view.scores) if view.scores else 0)))
        _write(figure, MARGIN, MARGIN, view.title, fontsize=13, weight="bold")
        _write(figure, MARGIN, MARGIN + TITLE, "\n".join(summary), linespacing=1.35)
        top = MARGIN + TITLE + LINE * len(summary)
        for section, size in zip(view.sections, sizes, strict=True):
            _draw_section(figure, top, section, *size)
            top += HEADING + size[1] + 2 * LINE
        if view.scores:
            _draw_answer(figure, top, view)
        return figure  # type: ignore[no-any-return]


def _panel_size(number: int, aspect: float) -> tuple[float, float]:
    """Width and height of panels that are side by side in one half."""
    width = min((HALF - GAP * (number - 1)) / number, LARGEST, LARGEST / aspect)
    return width, width * aspect


def _write(figure: Any, x: float, y: float, text: str, **look: Any) -> None:
    look = {"ha": "left", "va": "top", "fontsize": 9, **look}
    figure.text(x / WIDTH, 1 - y / figure.get_figheight(), text, **look)


def _write_heading(figure: Any, y: float, section: Section) -> None:
    _write(figure, MARGIN, y + 0.1, section.heading, weight="bold")
    _write(figure, WIDTH - MARGIN, y + 0.12, section.caption, fontsize=7.5, color=SOFT, ha="right")


def _add_axes(figure: Any, x: float, y: float, width: float, height: float, label: str) -> Any:
    high = figure.get_figheight()
    return figure.add_axes((x / WIDTH, 1 - (y + height) / high, width / WIDTH, height / high), label=label)


def _draw_section(figure: Any, y: float, section: Section, width: float, height: float) -> None:
    from matplotlib.lines import Line2D

    _write_heading(figure, y, section)
    y += HEADING
    ends = [1 - end / figure.get_figheight() for end in (y, y + height)]
    figure.add_artist(Line2D([0.5, 0.5], ends, color=INK, lw=0.8, ls=(0, (4, 3))))
    spare = HALF - len(section.panels) * (width + GAP) + GAP
    for number, panel in enumerate(section.panels):
        left = MARGIN + spare / 2 + number * (width + GAP)
        sides = (left, panel.image), (WIDTH - left - width, panel.mirrored)
        for (x, pixels), caption in zip(sides, panel.captions, strict=True):
            if pixels is not None:
                axes = _add_axes(figure, x, y, width, height, caption)
                axes.imshow(pixels, interpolation="nearest", aspect="auto")
                axes.set(xticks=[], yticks=[])
                axes.grid(False)
                axes.spines[:].set(visible=True, color=GRID, linewidth=0.6)
                _write(figure, x + width / 2, y + height + 0.03, caption, fontsize=7.5, color=SOFT, ha="center")


def _draw_answer(figure: Any, y: float, view: View) -> None:
    """Bars that grow from the names of classes to both sides: equal answers make a symmetric picture."""
    _write_heading(figure, y, view.answer)
    y += HEADING
    longest = max(max(score.probabilities) for score in view.scores)
    ends = (0.0, 1.45 * longest)  # room for the numbers after the bars
    for side, (x, align) in enumerate(((MARGIN, "right"), (WIDTH / 2 + NAMES, "left"))):
        axes = _add_axes(figure, x, y, WIDTH / 2 - MARGIN - NAMES, BAR * len(view.scores), "answer")
        axes.set(xlim=ends if side else ends[::-1], ylim=(len(view.scores) - 0.5, -0.5))
        axes.set_axis_off()
        for line, score in enumerate(view.scores):
            share = score.probabilities[side]
            axes.barh(line, share, height=0.7, color=COLOURS["ConvNeXt"])
            axes.text(share + 0.02 * longest, line, score.texts[side], ha=align, va="center", fontsize=8)
    for line, score in enumerate(view.scores):
        name = shorten(score.label, 30, placeholder="…")
        _write(figure, WIDTH / 2, y + BAR * (line + 0.5), name, fontsize=8, ha="center", va="center")
