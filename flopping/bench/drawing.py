"""How figures look: colours, marks, panels; and files that are the same whenever they are made. Needs matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from flopping.bench.comparison import FAMILIES, OTHERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

INK, GRID, BACKGROUND = "#1f2328", "#d8dee4", "#fefefe"
"""Colours of text, grid and paper: no other element has them, so that a page can put its own in their place."""
COLOURS = dict(zip((*FAMILIES, OTHERS), ("#d55e00", "#0072b2", "#009e73", "#cc79a7"), strict=True))
"""Of Okabe and Ito, told apart by colour-blind eyes; an architecture has its own everywhere."""
MARKERS = {"X": "o", "E": "s", "H": "D", "I": "^"}
KINDS = {"X": "X", "E": "E(X)", "H": "H(X)", "I": "I(X)"}
WIDTH = 9.0  # inches: with letters of 9 points, legible on a page of 800 pixels
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a name may have dollars in it
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": BACKGROUND,
    "axes.facecolor": BACKGROUND,
    "savefig.facecolor": BACKGROUND,
    "legend.frameon": False,
    "svg.hashsalt": "flopping",
    "svg.fonttype": "path",
}


def require_matplotlib() -> None:
    """Refuse to begin what can't be finished."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError("figures are drawn by matplotlib: pip install 'flopping[plot]'") from error


@contextmanager
def style() -> Iterator[None]:
    """Our settings for the drawing that follows, whatever the user's are, which come back afterwards."""
    require_matplotlib()
    import matplotlib

    settings: Any = matplotlib.rcParams
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # letters that the font lacks become boxes
        matplotlib.rcdefaults()
        settings.update(STYLE)
        yield


def render(figure: Figure, form: str) -> bytes:
    """The figure as a file, `png` or `svg`: the same figure gives the same bytes."""
    buffer = io.BytesIO()
    silent = dict.fromkeys(("Date", "Creator", "Format", "Type") if form == "svg" else ("Software",))
    with style():
        figure.savefig(buffer, format=form, dpi=200, metadata=silent)
    return buffer.getvalue()


def finished(figure: Figure) -> Figure:
    """The figure with its panels where the layout put them, once and for all: else each rendering moves them a bit."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def across(number: int) -> int:
    """How many of so many panels stand in a row."""
    return 2 if number in (2, 4) else min(number, 3)


def panels(number: int, height: float, share: bool = True) -> tuple[Figure, list[Axes]]:
    """So many panels, row by row, that share their axes or don't."""
    from matplotlib.figure import Figure

    columns = across(number)
    down = -(-number // columns)
    figure = Figure(figsize=(WIDTH if columns > 1 else 0.7 * WIDTH, height * down), layout="constrained")
    found = figure.subplots(down, columns, sharex=share, sharey=share, squeeze=False).flatten().tolist()
    for axes in found[number:]:
        axes.remove()
    for axes in found[:number]:
        axes.tick_params(length=0, labelbottom=True)
    return figure, found[:number]


def legend(
    figure: Figure,
    kinds: Mapping[str, str],
    families: Sequence[str] = (),
    hollow: str | None = None,
    hollow_x: bool = False,
    bound: bool = False,
) -> None:
    """What the marks mean, under the panels."""
    from matplotlib.lines import Line2D

    def mark(marker: str, label: str, **look: Any) -> Line2D:
        usual: dict[str, Any] = {"ls": "", "marker": marker, "color": INK, "ms": 6, "label": label}
        return Line2D([], [], **(usual | look))

    faces = {"X": {"mfc": BACKGROUND}} if hollow_x else {}
    marks = [mark("", name, color=COLOURS[name], ls="-", lw=4) for name in families]
    marks += [mark(marker, KINDS[kind], **faces.get(kind, {})) for kind, marker in kinds.items()]
    if hollow is not None:
        marks.append(mark(next(iter(kinds.values())), hollow, mfc=BACKGROUND))
    if bound:
        marks.append(mark("_", "FLOPs of X over those of E", ms=11, mew=1.6))
    columns = len(marks)
    if figure.get_figwidth() < WIDTH and columns > 4:  # two rows, and matplotlib fills columns first
        columns = -(-columns // 2)
        marks = [mark for pair in zip_longest(marks[:columns], marks[columns:]) for mark in pair if mark is not None]
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, handletextpad=0.4, columnspacing=1.6)


def label(
    axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], ha: str, colour: str = INK
) -> None:
    """A word beside a point, with a rim that keeps lines away from it."""
    from matplotlib.patheffects import withStroke

    drawn = axes.annotate(text, at, shift, textcoords="offset points", ha=ha, va="center", fontsize=8, color=colour)
    drawn.set_path_effects([withStroke(linewidth=2.5, foreground=BACKGROUND)])


def lines(text: str, width: int) -> str:
    """Text on several lines, broken behind commas only.

    >>> lines("inference, compiled, float32, batch 8", 22)
    'inference, compiled,\\nfloat32, batch 8'
    """
    lines = [""]
    for part in text.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) + 2 > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{part}"
    return ",\n".join(lines)


def logarithmic(axis: Any, ticks: Sequence[float], limits: tuple[float, float] | None = None) -> None:
    """A logarithmic axis with plain numbers."""
    from matplotlib.ticker import FixedLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    if limits is not None:
        axis.axes.set(**{f"{axis.axis_name}lim": limits})


def nice(low: float, high: float) -> list[float]:
    """Round numbers from one power of ten below to one above.

    >>> nice(4.3, 23)[3:7]
    [1.0, 2.0, 5.0, 10.0]
    """
    powers = range(floor(log10(low)) - 1, ceil(log10(high)) + 1)
    return [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
