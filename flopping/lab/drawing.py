"""The look of all figures: colours, panels, axes; and files with the same bytes each time. Needs matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopping.errors import UsageError
from flopping.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GRID, BACKGROUND = "#1f2328", "#d8dee4", "#fefefe"
"""Colours of text, grid and paper."""
COLOURS = {"ResMLP": "#d55e00", "ViT": "#0072b2", "ConvNeXt": "#009e73", "others": "#cc79a7", "ResNet": "#56b4e9"}
"""The colour of each architecture: those of Okabe and Ito, which colour-blind people can tell apart."""
WIDTH = 9.0  # inches: with letters of 9 points, legible on a page of 800 pixels
STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.parse_math": False,  # a name may have dollars in it
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), BACKGROUND),
    "legend.frameon": False,
}


def require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("figures are drawn by matplotlib: pip install 'flopping[plot]'") from error


@contextmanager
def style() -> Iterator[None]:
    """Within it, matplotlib has our settings; afterwards, the user's."""
    require_matplotlib()
    import matplotlib

    settings: Any = matplotlib.rcParams
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # letters that the font lacks become boxes
        matplotlib.rcdefaults()
        settings.update(STYLE)
        yield


def save(figure: Figure, path: Path) -> None:
    """Write the figure as PNG: the same figure gives the same bytes."""
    with style(), atomic_write(path) as place:
        figure.savefig(place, format="png", dpi=200, metadata={"Software": None})


def finished(figure: Figure) -> Figure:
    """The figure with a fixed layout: without it, each rendering moves the panels a bit."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def panels_per_row(number: int) -> int:
    """How many of so many panels are side by side."""
    return 2 if number in (2, 4) else min(number, 3)


def panels(number: int, height: float, share: bool = True) -> tuple[Figure, list[Axes]]:
    """So many panels, row by row, with shared axes or their own."""
    from matplotlib.figure import Figure

    columns = panels_per_row(number)
    down = -(-number // columns)
    figure = Figure(figsize=(WIDTH if columns > 1 else 0.7 * WIDTH, height * down), layout="constrained")
    found = figure.subplots(down, columns, sharex=share, sharey=share, squeeze=False).flatten().tolist()
    for axes in found[number:]:
        axes.remove()
    for axes in found[:number]:
        axes.tick_params(length=0, labelbottom=True)
    return figure, found[:number]


def logarithmic(axis: Any, limits: tuple[float, float], digits: tuple[float, ...] = (1, 2, 5)) -> None:
    """A logarithmic axis with plain numbers: these digits times powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.axes.set(**{f"{axis.axis_name}scale": "log", f"{axis.axis_name}lim": limits})
    axis.set_major_locator(LogLocator(subs=digits, numticks=99))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: f"{value:g}")
