"""The picture as a figure: the image on the left, its mirror image on the right, and below what a network computes.

The right half is laid out as the mirror image of the left half, so whatever a network doesn't mirror is seen at once.
"""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from flopping.lab.drawing import COLOURS, GRID, INK, WIDTH, style
from flopping.lab.show.view import Section, View

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGIN, MIDDLE, GAP = 0.3, 0.5, 0.12  # inches, as all lengths here
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
        sheet: Figure = _Sheet(view).figure
        return sheet


class _Sheet:
    """A figure that is filled from top to bottom."""

    def __init__(self, view: View) -> None:
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D

        summary = wrap(view.summary, 125)
        rows = [HEADING + self._panel_size(section, view)[1] + 2 * LINE for section in view.sections]
        answers = HEADING + BAR * len(view.scores) if view.scores else 0.0
        self.height = 2 * MARGIN + TITLE + LINE * len(summary) + sum(rows) + answers
        self.figure: Any = Figure(figsize=(WIDTH, self.height))
        self.top = MARGIN
        self._write(MARGIN, view.title, size=13, weight="bold")
        self.top += TITLE
        for line in summary:
            self._write(MARGIN, line)
            self.top += LINE
        start = self.top
        for section, height in zip(view.sections, rows, strict=True):
            self._draw_section(section, view)
            self.top = start = start + height
        ends = [1 - (self.top - sum(rows) + HEADING + 0.05) / self.height, 1 - (self.top - 0.3) / self.height]
        self.figure.add_artist(Line2D([0.5, 0.5], ends, color=INK, lw=0.8, ls=(0, (4, 3))))
        if view.scores:
            self._draw_answer(view)

    def _panel_size(self, section: Section, view: View) -> tuple[float, float]:
        """Width and height of panels that are side by side in one half."""
        number = len(section.panels)
        width = min((HALF - GAP * (number - 1)) / number, LARGEST, LARGEST / view.aspect)
        return width, width * view.aspect

    def _write(self, x: float, text: str, size: float = 9, down: float = 0.0, **look: Any) -> None:
        look = {"ha": "left", "va": "top", "fontsize": size, **look}
        self.figure.text(x / WIDTH, 1 - (self.top + down) / self.height, text, **look)

    def _add_axes(self, x: float, width: float, height: float, label: str) -> Any:
        box = (x / WIDTH, 1 - (self.top + height) / self.height, width / WIDTH, height / self.height)
        return self.figure.add_axes(box, label=label)

    def _write_heading(self, section: Section) -> None:
        self._write(MARGIN, section.heading, weight="bold", down=0.1)
        self._write(WIDTH - MARGIN, section.caption, size=7.5, down=0.12, color=SOFT, ha="right")
        self.top += HEADING

    def _draw_section(self, section: Section, view: View) -> None:
        self._write_heading(section)
        width, height = self._panel_size(section, view)
        spare = HALF - len(section.panels) * (width + GAP) + GAP
        for number, panel in enumerate(section.panels):
            left = MARGIN + spare / 2 + number * (width + GAP)
            sides = (left, panel.image), (WIDTH - left - width, panel.mirrored)
            for (x, pixels), caption, label in zip(sides, panel.captions, panel.alt, strict=True):
                if pixels is not None:
                    axes = self._add_axes(x, width, height, label)
                    axes.imshow(pixels, interpolation="nearest", aspect="auto")
                    axes.set(xticks=[], yticks=[])
                    axes.grid(False)
                    axes.spines[:].set(visible=True, color=GRID, linewidth=0.6)
                    self._write(x + width / 2, caption, size=7.5, down=height + 0.03, color=SOFT, ha="center")

    def _draw_answer(self, view: View) -> None:
        """Bars that grow from the names of classes to both sides: equal answers make a symmetric picture."""
        self._write_heading(view.answer)
        height = BAR * len(view.scores)
        width = WIDTH / 2 - MARGIN - NAMES
        longest = max(max(score.probabilities) for score in view.scores) or 1.0
        for side, x in enumerate((MARGIN, WIDTH / 2 + NAMES)):
            axes = self._add_axes(x, width, height, f"answer{', mirrored' if side else ''}")
            ends = (0.0, 1.45 * longest)  # room for the numbers behind the bars
            axes.set(xlim=ends if side else ends[::-1], ylim=(len(view.scores) - 0.5, -0.5))
            axes.set_axis_off()
            for line, score in enumerate(view.scores):
                share, align = score.probabilities[side], "left" if side else "right"
                axes.barh(line, share, height=0.7, color=COLOURS["ConvNeXt"])
                axes.text(share + 0.02 * longest, line, score.texts[side], ha=align, va="center", fontsize=8)
        for line, score in enumerate(view.scores):
            label = score.label if len(score.label) <= 30 else f"{score.label[:29]}…"
            self._write(WIDTH / 2, label, size=8, ha="center", va="center", down=BAR * (line + 0.5))
